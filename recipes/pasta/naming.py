"""Names, colours and small helpers that the figures of the PASTA recipe share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from ae.figures.draw import PALETTE
from ae.figures.summary import in_order

Row = Mapping[Any, Any]  # one row of a record table

MODELS = ["alexnet", "resnet18", "resnet34", "bert", "gpt2", "whisper", "whisper_paper"]
NAMES = {
    "alexnet": "AlexNet", "resnet18": "ResNet-18", "resnet34": "ResNet-34", "bert": "BERT",
    "gpt2": "GPT-2", "whisper": "Whisper",
    "whisper_paper": "Whisper (paper)",
}  # fmt: skip
MODES = {
    "test": "inference", "train": "training", "step": "training step (ours)",
    "test_bf16": "inference, bf16", "step_bf16": "training step, bf16",
}  # fmt: skip
VARIANTS = {
    "native": "untooled", "events": "events only", "sync": "events, synchronised",
    "empty": "empty patches", "count": "exact counters", "cs_gpu": "CS-GPU",
    "cs_gpu_hot": "CS-GPU (hotness)", "cs_cpu": "CS-CPU", "cs_cpu_mt": "CS-CPU (all cores)",
    "nvbit_cpu": "NVBIT-CPU", "distinct-test": "inference", "distinct-train": "training",
}  # fmt: skip
VARIANT_COLOURS = {
    "native": "#222222", "events": "#d0d0d0", "sync": "#a8a8a8", "empty": PALETTE["grey"],
    "count": "#66c2a5", "cs_gpu": PALETTE["green"], "cs_gpu_hot": "#00573f",
    "cs_cpu": PALETTE["sky"], "cs_cpu_mt": PALETTE["blue"], "nvbit_cpu": PALETTE["orange"],
    "distinct-test": PALETTE["green"], "distinct-train": PALETTE["purple"],
}  # fmt: skip
_LEGEND = 0.3  # inches of a line of legends
ONE_NUMBER = "one number per run, no spread"


def name_of(model: str) -> str:
    """A model's name as the paper writes it."""
    return NAMES.get(model, model)


def ordered(rows: pd.DataFrame, orders: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """The rows sorted by columns, each in its given order; what an order lacks comes last."""
    keys = {column: in_order(rows[column], order) for column, order in orders.items()}
    places = pd.DataFrame(
        {name: [keys[name].index(value) for value in rows[name]] for name in orders},
        index=rows.index,
    )
    return rows.loc[places.sort_values(list(orders), kind="stable").index].reset_index(drop=True)


def factor(value: float) -> str:
    """At least three digits, never in powers of ten."""
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f}"


_GEMM = re.compile(r"(sm\d+_xmma_gemm)_\w+?_([nt]{2})_[nt]_tilesize(\d+x\d+x\d+)_")


def cut(name: str, width: int = 46) -> str:
    """A kernel's name short enough for a label; the CSV holds it whole.

    cuBLAS's names begin alike: what tells them apart is kept.
    """
    gemm = _GEMM.match(name)
    if gemm:
        return "{}, {}, tile {}".format(*gemm.groups())
    return name if len(name) <= width else name[: width - 1] + "…"


def legend_above(figure: Figure, handles: Sequence[Artist]) -> None:
    """A legend between the title of a figure and its panels; the figure grows by its line."""
    layout = figure.get_layout_engine()
    assert layout is not None
    before, height = figure.get_figheight(), figure.get_figheight() + _LEGEND
    left, strip, width, _ = layout.get()["rect"]
    strip *= before / height
    figure.set_figheight(height)
    layout.set(rect=(left, strip, width, 1.0 - strip - _LEGEND / height))  # type: ignore[call-arg]
    figure.legend(
        handles=handles, fontsize=7.5, frameon=False, ncols=len(handles), loc="upper center",
        bbox_to_anchor=(0.5, 1.0 - 0.27 / height), borderaxespad=0.0, columnspacing=1.4,
    )  # fmt: skip


def spread_words(rows: pd.DataFrame, many: str) -> str:
    """How the spread is shown: `many`, unless no value has more than one number behind it."""
    return many if not rows.empty and rows["n"].max() > 1 else ONE_NUMBER

"""What RAP's figures share: names, colours, and rows of marks with their numbers beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan, nan
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from ae.figures.draw import PALETTE, NoData, whiskers
from ae.figures.summary import against, join_evidence, ratio_interval

NAMES = {
    "cpu": "CPU", "sequential_timeslice": "Sequential (artifact)", "sequential": "Sequential",
    "sequential_graph": "Sequential (graph)", "sequential_fused": "Sequential (fused)",
    "sequential_fused_graph": "Sequential (fused, graph)",
    "stream_sync": "CUDA stream (artifact)", "stream": "CUDA stream",
    "stream_priority": "CUDA stream (priority)", "stream_graph": "CUDA stream (graph)",
    "stream_fused_graph": "CUDA stream (fused, graph)", "mps": "MPS",
    "rap_no_fusion": "RAP w/o fusion", "rap_no_mapping": "RAP w/o mapping",
    "rap_no_mapping_graph": "RAP w/o mapping (graph)", "rap": "RAP", "rap_graph": "RAP (graph)",
    "rap_mps": "RAP (MPS)", "rap_plus": "RAP+", "rap_green": "RAP+ (green context)",
    "ideal_barrier": "Ideal (artifact)", "ideal": "Ideal",
}  # fmt: skip
STARTS = {  # of a variant's name, the longest that fits
    "cpu": "olive", "mps": "orange", "stream": "sky", "rap_no": "purple", "rap": "blue",
    "rap_plus": "green", "rap_green": "green", "ideal": "black",
}  # fmt: skip
CELL = ["gpus", "plan", "batch"]
INK = "#222222"
NUMBERS = 7.5  # points, of the numbers beside marks

Row = Mapping[Any, Any]  # one row of a record table


def colour(variant: str) -> str:
    """The colour of a variant's kind."""
    fitting = [start for start in STARTS if variant.startswith(start)]
    return PALETTE[STARTS[max(fitting, key=len)] if fitting else "grey"]


def cell_words(row: Row) -> str:
    """GPUs, plan and batch of a row, as the title of a panel."""
    gpus = row.get("gpus") or "?"
    words = f"{gpus} GPU{'' if gpus == '1' else 's'}, plan {row.get('plan')}"
    return f"{words}\nbatch {row.get('batch')}"


def records_of(frame: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """The records of an experiment, cell by cell; `figure9` is all of those that begin so."""
    if frame.empty or "experiment" not in frame:
        raise NoData(f"no record of experiment {experiment}")
    names = frame["experiment"].astype(str)
    part = frame[
        names.str.startswith("figure9") if experiment == "figure9" else names == experiment
    ]
    if part.empty:
        raise NoData(f"no cell with records of experiment {experiment}")
    by = [name for name in CELL if name in part]
    return part.sort_values(by, kind="stable", key=pd.to_numeric) if by else part


def over(pooled: pd.DataFrame, baseline: str, keys: Sequence[str] = CELL) -> pd.DataFrame:
    """Every row's throughput over that of the baseline which agrees in `keys`."""
    rows = []
    for row, base in against(pooled, baseline, keys):
        found = ratio_interval(row["samples"], base["samples"])
        rows.append(
            {
                "cell": cell_words(row),
                **{key: row[key] for key in keys},
                "variant": row["variant"],
                "speedup": found.value,
                "low": found.low,
                "high": found.high,
                "samples_per_s": row["median"],
                "n": row["n"],
                "evidence": join_evidence(row["evidence"], base["evidence"]),
            }
        )
    return table_of(rows, f"no cell with throughput of {baseline} and of another variant")


def numbered_rows(
    axis: Axes, names: Sequence[str], rows: Sequence[Row | None], value: str, *,
    colours: Sequence[str], texts: Sequence[str], first: float, reach: float, room: float,
    base: float | None = None, most_ticks: int = 4,
) -> None:  # fmt: skip
    """A row per name from the top down: a bar from `base` (None: a point), whiskers, its number.

    Numbers stand in a column of their own at the right, `room` of the axis wide, so that nothing
    crosses them. Ticks go from `first` to beyond `reach`. A row that is None was not measured; ends
    that are the value itself are no whisker.
    """
    for place, (row, text) in enumerate(zip(rows, texts, strict=True)):
        if row is not None and not isnan(row[value]):
            x = float(row[value])
            if base is None:
                axis.plot(x, place, "o", color=colours[place], markersize=5)
            else:
                axis.barh(place, x - base, left=base, height=0.74, color=colours[place])
        look: Any = {"color": INK} if row else {"color": "#777777", "fontstyle": "italic"}
        axis.text(1.0, place, text or "not measured", ha="right", va="center_baseline",
                  fontsize=NUMBERS, transform=axis.get_yaxis_transform(), **look)  # fmt: skip
    whiskers(axis, *([row[end] if row else nan for row in rows] for end in ("low", "high")))
    axis.set_yticks(range(len(names)), labels=list(names))
    axis.set_ylim(len(names) - 0.45, -0.55)
    ticks = MaxNLocator(nbins=most_ticks, steps=[1, 2, 2.5, 5, 10]).tick_values(first, reach)
    ticks = [tick for tick in ticks if tick >= first - 1e-9]
    axis.set_xticks(ticks, labels=[f"{tick:,.10g}" for tick in ticks])
    axis.set_xlim(first, first + (ticks[-1] - first) / (1 - room))
    axis.spines["bottom"].set_bounds(first, ticks[-1])
    axis.xaxis.grid(True)
    axis.tick_params(axis="y", length=0)


def plain_log(axis: Axes, only: str = "both") -> None:
    """Ticks of a logarithmic axis as plain numbers."""
    for name, one in (("x", axis.xaxis), ("y", axis.yaxis)):
        if only in (name, "both"):
            one.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            one.set_minor_formatter(NullFormatter())


def table_of(rows: list[dict[str, Any]], why: str) -> pd.DataFrame:
    """The rows as a table; NoData with the reason if there are none."""
    if not rows:
        raise NoData(why)
    return pd.DataFrame(rows)

"""DLRM's figures of speed-ups: embedding stage, full inference, and the authors' own code."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from pathlib import Path

import pandas as pd

from ae.figures.draw import NoData, Plot
from ae.figures.summary import pool, pool_by
from ae.recipe.code import load_code

_p = load_code(Path(__file__).parent, "panels")

# The abstract, an A100: "up to", so of no data set in particular (docs/papers/dlrm.md, D2 to D4).
COUNTED = ", pin counted"
PAPER_EMBEDDING = {_p.NAMES["optmt"]: 1.53, _p.NAMES["rpf_l2p"]: 2.03}
PAPER_ENDTOEND = {_p.NAMES["rpf_l2p"] + COUNTED: 1.77}


def speedup(frame: pd.DataFrame) -> Plot:
    """Embedding speed-up of every variant over PyTorch 2.1, one table a launch.

    Beside the paper's variants stand the same ones tuned for this GPU, what pinning costs counted
    in and left out, the installed PyTorch, FBGEMM and our best kernel.
    """
    keys = ["dataset", "variant", "launch", "l2_mode"]
    part = _p.of_experiment(frame, "embedding")
    times = pd.concat(
        [
            pool(part, "kernel_time", keys).assign(pin="left out"),
            pool(part, "pin_and_kernel_time", keys).assign(pin="counted"),
        ],
        ignore_index=True,
    )
    times = times[times["launch"].isin(["one_table", ""])]
    if times.empty:
        raise NoData("no record of metric kernel_time of experiment embedding")
    baseline = _p.baseline_of(times)
    rows = _p.with_largest(_p.over_baseline(times, baseline, _naming(times)), PAPER_EMBEDDING)
    figure, _ = _p.panel_bars(
        rows, "speedup", mark=1.0, axis=f"speed-up over {_p.NAMES[baseline]}",
        title=f"Embedding stage, one table a launch: speed-up over {_p.NAMES[baseline]}",
    )  # fmt: skip
    return Plot(figure=figure, table=rows.drop(columns="text"))


def endtoend(frame: pd.DataFrame) -> Plot:
    """Full DLRM inference over PyTorch 2.1 in the same mode, as a CUDA graph and eager.

    The table has the embedding stage's share of the time, too. Pinning is counted in.
    """
    keys = ["dataset", "variant", "mode", "l2_mode"]
    times = pool(frame, "endtoend_time", keys)
    if times.empty:
        raise NoData("no record of metric endtoend_time")
    times["pin"] = ["counted" if mode else "left out" for mode in times["l2_mode"]]
    baseline = _p.baseline_of(times)
    rows = _p.over_baseline(times, baseline, _naming(times), same=("dataset", "mode"))
    shares = {key: row["median"] for key, row in pool_by(frame, "embedding_share", keys).items()}
    cells = zip(*(rows[key] for key in keys), strict=True)
    rows["embedding_share_percent"] = [shares.get(cell, nan) for cell in cells]
    by_mode = {
        str(mode): _p.with_largest(part, PAPER_ENDTOEND)
        for mode, part in rows.groupby("mode", sort=False)
    }
    shown = "graph" if "graph" in by_mode else next(iter(by_mode))
    title = f"Full DLRM inference: speed-up over {_p.NAMES[baseline]}"
    drawn = by_mode[shown]
    if {"graph", "eager"} == set(by_mode):
        title += " (bars: CUDA graph, circles: eager)"
        place = ["dataset", "row"]
        eager = by_mode["eager"].set_index(place)["speedup"].rename("circle")
        drawn = drawn.join(eager, on=place)
    figure, _ = _p.panel_bars(
        drawn, "speedup", mark=1.0, axis=f"speed-up over {_p.NAMES[baseline]}", title=title
    )
    table = pd.concat(by_mode.values(), ignore_index=True)
    return Plot(figure=figure, table=table.drop(columns="text"))


def upstream(frame: pd.DataFrame) -> Plot:
    """Speed-up of the authors' designs over their own baseline, a panel per dataset.

    One process a design, so drift between processes is in it. Rows name the cap on registers.
    """
    if "cap" not in frame or "experiment" not in frame:
        raise NoData("no record of the authors' own code (lane upstream)")
    part = frame[frame["experiment"].astype(str).str.startswith("upstream")]
    times = pool(part, "kernel_time", ["dataset", "variant", "cap", "trace", "hot_list"])
    if times.empty:
        raise NoData("no record of metric kernel_time of the authors' own code (lane upstream)")
    rows = _p.over_baseline(times, "base", _upstream_name)
    sources = dict(zip(times["dataset"], times["trace"], strict=True))
    figure, _ = _p.panel_bars(
        rows, "speedup", mark=1.0, axis="speed-up over their baseline",
        title="The authors' own code on PyTorch 2.1.0: speed-up over their baseline",
        titles={
            name: f"{_p.DATASETS.get(name, name)}\n(trace: {source})"
            for name, source in sources.items()
        },
    )  # fmt: skip
    return Plot(figure=figure, table=rows.drop(columns="text"))


def _naming(times: pd.DataFrame) -> Callable[[_p.Row], str]:
    modes = _p.several_modes(times)
    return lambda row: _p.name_of(row, modes) + (COUNTED if row["pin"] == "counted" else "")


def _upstream_name(row: _p.Row) -> str:
    own = {"base": "Baseline", "rpf_l2p": "RPF+L2P", "lmpf": "LMPF+L2P"}
    name = own.get(str(row["variant"])) or _p.name_of(row)
    if row["variant"] != "base":
        name += ", no cap" if row["cap"] == "none" else f", cap {row['cap']}"
    return name + (" [nothing pinned on low_hot]" if row["hot_list"] == "as_is" else "")

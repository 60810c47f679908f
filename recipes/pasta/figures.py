"""The figures of the PASTA recipe: from the record table to matplotlib figures.

So far those of the authors' own code (lane upstream). Sizes are MiB. Most of their logs give one
number per run, so most values have no spread.
"""

from __future__ import annotations

from math import isnan
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from ae.figures import PALETTE, NoData, Plot, bars, new_panels
from ae.summary import in_order, pool

MODELS = ["alexnet", "resnet18", "resnet34", "bert", "gpt2", "whisper"]
NAMES = {
    "alexnet": "AlexNet", "resnet18": "ResNet-18", "resnet34": "ResNet-34", "bert": "BERT",
    "gpt2": "GPT-2", "whisper": "Whisper",
}  # fmt: skip
MODES = {"test": "inference", "train": "training"}
VARIANTS = {"cs_gpu": "CS-GPU", "cs_cpu": "CS-CPU", "nvbit_cpu": "NVBIT-CPU"}
VARIANT_COLOURS = {
    "cs_gpu": PALETTE["green"], "cs_cpu": PALETTE["sky"], "nvbit_cpu": PALETTE["orange"],
}  # fmt: skip
PARTS = {
    "execution": PALETTE["grey"], "collection": PALETTE["sky"], "transfer": PALETTE["orange"],
    "analysis": PALETTE["vermilion"],
}  # fmt: skip
STATISTICS = {"max": "largest working set", "p90": "90th percentile", "median": "median"}
ONE_NUMBER = "one number per run, no spread"
TOP = 20


def working_sets(frame: pd.DataFrame) -> Plot:
    """Footprint, and largest, 90th percentile and median working set of every model and mode."""
    sets = pool(frame, "working_set", ["model", "mode", "stat"])
    prints = pool(frame, "footprint", ["model", "mode"]).assign(stat="footprint")
    rows = pd.concat([prints, sets[sets["stat"].isin(list(STATISTICS))]], ignore_index=True)
    if sets.empty or prints.empty:
        raise NoData("no record of metric working_set and footprint")
    words = {"footprint": "memory footprint", **STATISTICS}
    colours = dict(
        zip(
            words,
            [PALETTE[name] for name in ("grey", "vermilion", "orange", "blue")],
            strict=True,
        )
    )
    rows = _ordered(rows, {"mode": list(MODES), "model": MODELS, "stat": list(words)})
    rows["row"] = [
        f"{_name(row['model'])}: {words[row['stat']]}" for row in rows.to_dict("records")
    ]
    modes = in_order(rows["mode"], list(MODES))
    names = list(dict.fromkeys(rows["row"]))
    figure, axes = new_panels(len(modes), len(names), title="Memory footprint and working sets")
    reach = float(rows["median"].max())
    for axis, mode in zip(axes, modes, strict=True):
        part = rows[rows["mode"] == mode].set_index("row")
        values = [float(part["median"].get(name, float("nan"))) for name in names]
        bars(
            axis, names, values, low=values, high=values, reach=reach,
            colours=[colours[_stat(part, name)] for name in names],
            texts=["not measured" if isnan(value) else f"{value:.0f}" for value in values],
        )  # fmt: skip
        axis.set_title(MODES.get(mode, mode))
        axis.set_xlabel("MiB")
    return Plot(figure=figure, table=rows.drop(columns="samples"), spread=ONE_NUMBER)


def kernels(frame: pd.DataFrame) -> Plot:
    """The most launched kernels over all runs together, the rest as one bar."""
    counts = pool(frame, "kernel_launches", ["kernel", "model", "mode"])
    if counts.empty:
        raise NoData("no record of metric kernel_launches")
    runs = len(counts[["model", "mode"]].drop_duplicates())
    sums = counts.groupby("kernel", sort=False)["median"].sum().sort_values(ascending=False)
    named = sums.drop("(others)", errors="ignore")
    rest = float(sums.sum() - named.head(TOP).sum())
    shown = [*named.head(TOP).items(), *([("(others)", rest)] if rest else [])]
    evidence = "+".join(sorted(set(counts["evidence"])))
    rows = pd.DataFrame(
        [
            {"kernel": str(name), "launches": value, "n": 1, "evidence": evidence}
            for name, value in shown
        ]
    )
    values = list(rows["launches"])
    figure, (axis,) = new_panels(1, len(rows), title=f"Most launched kernels, {runs} runs together")
    bars(
        axis, [_cut(name) for name in rows["kernel"]], values, low=values, high=values,
        reach=max(values), texts=[f"{value:.0f}" for value in values],
        colours=[PALETTE["grey" if name == "(others)" else "blue"] for name in rows["kernel"]],
    )  # fmt: skip
    axis.set_xlabel("launches")
    return Plot(figure=figure, table=rows, spread=ONE_NUMBER)


def overhead(frame: pd.DataFrame) -> Plot:
    """Time under each variant over time without it, on a logarithmic scale, with both scalings."""
    rows = pool(frame, "slowdown", ["model", "variant", "scaling", "sampling"])
    if rows.empty:
        raise NoData("no record of metric slowdown")
    rows = _ordered(rows, {"model": MODELS, "variant": list(VARIANTS), "scaling": []})
    words = {"none": "", "authors": ", whole time × N", "sound": ", added time scaled"}
    rows["row"] = [
        VARIANTS[row["variant"]] + words[row["scaling"]] for row in rows.to_dict("records")
    ]
    models = in_order(rows["model"], MODELS)
    figure, axes = new_panels(
        len(models), rows["row"].nunique(), title="Time under the profiler over time without it",
        across=3,
    )  # fmt: skip
    names = in_order(rows["row"], [])
    for axis, model in zip(axes, models, strict=True):
        part = rows[rows["model"] == model]
        for row in part.to_dict("records"):
            _log_bar(axis, names.index(row["row"]), row)
        axis.set_xscale("log")
        axis.set_xlim(0.5, 300 * float(rows["high"].max()))
        axis.set_yticks(range(len(names)), labels=names)
        axis.set_ylim(len(names) - 0.45, -0.55)
        axis.axvline(1.0, color="#222222", linewidth=0.8, linestyle=(0, (4, 3)))
        axis.xaxis.grid(True)
        axis.set_title(_name(model))
        axis.set_xlabel("slowdown, x (log)")
    spread = ONE_NUMBER if rows["n"].max() == 1 else "bars: median of the runs"
    return Plot(figure=figure, table=rows.drop(columns="samples"), spread=spread)


def breakdown(frame: pd.DataFrame) -> Plot:
    """Shares of execution, collection, transfer and analysis, stacked to 100 %."""
    rows = pool(frame, "tool_time", ["model", "variant", "part"])
    if rows.empty:
        raise NoData("no record of metric tool_time")
    rows = _ordered(rows, {"model": MODELS, "variant": list(VARIANTS), "part": list(PARTS)})
    totals = rows.groupby(["model", "variant"])["median"].transform("sum")
    rows["share_percent"] = 100 * rows["median"] / totals.where(totals > 0)
    rows["row"] = [
        f"{_name(r['model'])}, {VARIANTS[r['variant']]}" for r in rows.to_dict("records")
    ]
    names = list(dict.fromkeys(rows["row"]))
    figure, (axis,) = new_panels(1, len(names), title="Where the profiler's time goes")
    left = [0.0] * len(names)
    for part, colour in PARTS.items():
        shares = rows[rows["part"] == part].set_index("row")["share_percent"]
        widths = [float(shares.get(name, 0.0)) for name in names]
        axis.barh(range(len(names)), widths, left=left, color=colour, label=part, height=0.74)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axis.set_yticks(range(len(names)), labels=names)
    axis.set_ylim(len(names) - 0.45, -0.55)
    axis.set_xlim(0, 100)
    axis.set_xlabel("% of the time")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=4, frameon=False)
    return Plot(figure=figure, table=rows.drop(columns="samples"), spread=ONE_NUMBER)


def hotness(frame: pd.DataFrame) -> Plot:
    """Accesses per group of memory blocks and of windows, on a logarithmic colour scale."""
    from matplotlib.colors import LogNorm

    cells = pool(frame, "accesses", ["blocks", "window", "block"])
    if cells.empty:
        raise NoData("no record of metric accesses")
    kinds = list(dict.fromkeys(cells["blocks"]))
    figure, axes = new_panels(len(kinds), 12, title="BERT inference: accesses per memory block")
    cells["window"] = cells["window"].astype(int)
    cells["block"] = cells["block"].astype(int)
    for axis, kind in zip(axes, kinds, strict=True):
        grid = cells[cells["blocks"] == kind].pivot_table(
            index="block", columns="window", values="median"
        )
        top = max(float(grid.to_numpy().max()), 2.0)
        drawn = axis.imshow(
            grid.where(grid > 0), aspect="auto", origin="lower", cmap="viridis",
            norm=LogNorm(vmin=1, vmax=top), interpolation="nearest",
        )  # fmt: skip
        half = "every second MiB, as the authors print" if kind == "as-is" else "2 MiB blocks"
        axis.set_title(f"blocks: {half}")
        axis.set_xlabel("time: windows of a million accesses, grouped")
        axis.set_ylabel("memory blocks by address, grouped")
        axis.set_xticks([])
        axis.set_yticks([])
        figure.colorbar(drawn, ax=axis, label="accesses (log)")
    return Plot(figure=figure, table=cells.drop(columns="samples"), spread=ONE_NUMBER)


def memory(frame: pd.DataFrame) -> Plot:
    """What PyTorch had allocated at every percent of the tensor events, a line per GPU."""
    rows = pool(frame, "allocated", ["experiment", "parallelism", "device", "progress"])
    if rows.empty:
        raise NoData("no record of metric allocated")
    rows["progress"] = rows["progress"].astype(int)
    rows["run"] = [row["parallelism"] or "GPT-2 training" for row in rows.to_dict("records")]
    runs = list(dict.fromkeys(rows["run"]))
    figure, axes = new_panels(len(runs), 8, title="Allocated memory over tensor events", across=2)
    for axis, run in zip(axes, runs, strict=True):
        part = rows[rows["run"] == run]
        # The second line is dashed, so that the first is seen where both are the same.
        styles = [(PALETTE["blue"], "-"), (PALETTE["vermilion"], "--")]
        for device, (colour, dash) in zip(dict.fromkeys(part["device"]), styles, strict=False):
            line = part[part["device"] == device].sort_values("progress")
            name = f"GPU {device or '0'}"
            axis.plot(line["progress"], line["median"], dash, color=colour, label=name)
        axis.set_title(run)
        axis.set_xlabel("tensor events, %")
        axis.set_ylabel("MiB")
        axis.set_xlim(0, 100)
        axis.set_ylim(bottom=0)
        axis.yaxis.grid(True)
        axis.legend(frameon=False)
    return Plot(figure=figure, table=rows.drop(columns="samples"), spread="lines: one run")


def _log_bar(axis: Axes, place: int, row: dict[Any, Any]) -> None:
    axis.barh(place, row["median"], color=VARIANT_COLOURS[row["variant"]], height=0.74)
    axis.text(row["high"] * 1.15, place, f"{_factor(row['median'])}×", va="center", fontsize=7.5)


def _ordered(rows: pd.DataFrame, orders: dict[str, list[str]]) -> pd.DataFrame:
    """The rows sorted by columns, each in its given order; what an order lacks comes last."""
    keys = {column: in_order(rows[column], order) for column, order in orders.items()}
    places = pd.DataFrame(
        {name: [keys[name].index(value) for value in rows[name]] for name in orders},
        index=rows.index,
    )
    return rows.loc[places.sort_values(list(orders), kind="stable").index].reset_index(drop=True)


def _factor(value: float) -> str:
    """Three digits, never in powers of ten."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _stat(part: pd.DataFrame, name: str) -> str:
    return str(part["stat"].get(name, "footprint"))


def _name(model: str) -> str:
    return NAMES.get(model, model)


def _cut(name: str) -> str:
    """A kernel's name short enough for a label; the CSV holds it whole."""
    return name if len(name) <= 46 else name[:45] + "…"

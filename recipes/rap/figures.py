"""The figures of the RAP recipe: from the record table to matplotlib figures.

Throughput is samples per second of the slowest rank; a sample is one timed round. Figures of the
planner and of one iteration are in planning.py. The last two are of the authors' own programs (lane
upstream), whose logs give one number per run.
"""

from __future__ import annotations

from math import isnan, nan
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ae.figures.draw import INTERVAL_WORDS, PALETTE, NoData, Plot, new_panels
from ae.figures.summary import in_order, pool, pool_by
from ae.recipe.code import load_code

_draw, _planning = (load_code(Path(__file__).parent, name) for name in ("drawing", "planning"))
predictor, capacity = _planning.predictor, _planning.capacity
timeline, fusion = _planning.timeline, _planning.fusion
CELL, INK, NAMES, Row = _draw.CELL, _draw.INK, _draw.NAMES, _draw.Row

# What the abstracts say of RAP, on average over the figure's cells (docs/papers/rap.md, R1 to R3).
PAPER = {("fig9", "cpu"): 78.3, ("fig10", "sequential"): 1.99, ("figure10", "sequential"): 1.99,
         ("figure9", "cpu"): 78.3}  # fmt: skip
PAPER_SHARE = 1 - 0.0324  # of the throughput of training alone (R2)
ARTIFACT = ("sequential_timeslice", "stream_sync", "ideal_barrier")  # no part of a comparison
PARTS = {
    "graph": "CUDA graph", "fusion": "Fusion", "overlap": "Beside training",
    "schedule": "Gated by stages", "mapping": "Mapping", "all": "All together",
}  # fmt: skip
MARKERS = {
    "sequential": "s", "sequential_graph": "P", "sequential_fused": "X", "stream": "^",
    "stream_graph": "<", "rap": "o", "rap_graph": "D", "rap_plus": "v",
}  # fmt: skip
CELL_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
CELL_COLOURS = ("blue", "orange", "green", "purple", "sky", "vermilion", "grey", "black")
RATIO_TICKS = [0.05, 0.1, 0.2, 0.5, 1, 2, 5]
UPSTREAM_SPREAD = "bars: median over repeats; one number per run of the authors' programs"
POINTS = INTERVAL_WORDS.replace("bars", "points")


def fig9(frame: pd.DataFrame) -> Plot:
    """Figure 9: throughput over the CPU baseline of the same cell (without it, over the stream)."""
    there = set(_draw.records_of(frame, "fig9")["variant"])
    baseline = "stream" if "cpu" not in there and "stream" in there else "cpu"
    return _speedups(frame, "fig9", baseline, f"End to end: throughput over {NAMES[baseline]}")


def fig10(frame: pd.DataFrame) -> Plot:
    """Figure 10: throughput over Sequential of the same cell; the line is training alone."""
    return _speedups(
        frame, "fig10", "sequential", "What each part brings: throughput over Sequential"
    )


def heavy(frame: pd.DataFrame) -> Plot:
    """As Figure 10, with plans of ours that keep a current GPU busy."""
    return _speedups(frame, "heavy", "sequential", "Heavier plans: throughput over Sequential")


def end_to_end(frame: pd.DataFrame) -> Plot:
    """The authors' Figure 9: throughput over the CPU baseline of the same cell."""
    title = "The authors' programs: throughput over their CPU baseline"
    return _speedups(frame, "figure9", "cpu", title, spread=UPSTREAM_SPREAD)


def breakdown(frame: pd.DataFrame) -> Plot:
    """The authors' Figure 10: throughput over Sequential of the same cell."""
    title = "The authors' programs: throughput over their Sequential"
    return _speedups(frame, "figure10", "sequential", title, spread=UPSTREAM_SPREAD)


def share(frame: pd.DataFrame) -> Plot:
    """Share of the throughput of training alone: a panel per experiment and number of GPUs."""
    tables = []
    for experiment in ("fig9", "fig10", "heavy"):
        try:
            part = _draw.records_of(frame, experiment)
            table = _draw.over(pool(part, "throughput", [*CELL, "variant"]), "ideal")
        except NoData:
            continue
        table = table[~table["variant"].isin(["ideal", *ARTIFACT])]
        tables.append(table.assign(experiment=experiment).rename(columns={"speedup": "share"}))
    if not tables or all(table.empty for table in tables):
        raise NoData("no record of metric throughput of the variant ideal in fig9, fig10 or heavy")
    table = pd.concat(tables, ignore_index=True)
    names = in_order(table["variant"], list(NAMES))
    panels = sorted(
        set(zip(table["experiment"], table["gpus"], strict=True)),
        key=lambda panel: (len(panel[0]), panel[0], int(panel[1])),
    )
    figure, axes = new_panels(
        len(panels),
        len(names),
        title="Share of the throughput of training alone",
        across=3,
        row_inches=0.36,
    )
    cells = list(dict.fromkeys(zip(table["plan"], table["batch"], strict=True)))
    looks = {
        cell: (CELL_MARKERS[i % 8], PALETTE[CELL_COLOURS[i % 8]]) for i, cell in enumerate(cells)
    }
    for axis, (experiment, gpus) in zip(axes, panels, strict=True):
        here = table[(table["experiment"] == experiment) & (table["gpus"] == gpus)]
        groups = here.groupby(["plan", "batch"], sort=False)
        for at, (cell, group) in enumerate(groups):
            # The cells of a row stand below each other, so that none hides another.
            below = 0.8 * (at + 0.5) / len(groups) - 0.4
            mine = group.assign(place=[names.index(name) + below for name in group["variant"]])
            marker, colour = looks[cell]
            axis.plot(mine["share"], mine["place"], marker, color=colour, markersize=3.6)
            told = mine[mine["low"] < mine["high"]]
            axis.hlines(told["place"], told["low"], told["high"], color=colour, linewidth=0.9)
        axis.axvline(1.0, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        if "rap" in set(here["variant"]) and experiment != "heavy":
            _diamond(axis, PAPER_SHARE, names.index("rap"))
        axis.set_yticks(range(len(names)), labels=[NAMES.get(name, name) for name in names])
        axis.set_ylim(len(names) - 0.45, -0.55)
        first = min(0.9, int(20 * (here["low"].min() - 0.005)) / 20)  # no mark on the axis
        first = first if first >= 0.5 else 0.0
        axis.locator_params(axis="x", nbins=4, steps=[1, 2, 5, 10])
        axis.set_xlim(first, max(1.005, here["high"].max() + 0.005))
        axis.grid(True)
        axis.tick_params(axis="y", length=0)
        title = {"fig9": "Figure 9", "fig10": "Figure 10", "heavy": "Heavier plans"}[experiment]
        axis.set_title(f"{title}, {gpus} GPU{'' if gpus == '1' else 's'}")
        axis.set_xlabel("Share of ideal")
    handles = [
        Line2D([], [], color=colour, marker=marker, linestyle="", markersize=4.2,
               label=f"plan {plan}, batch {batch}")
        for (plan, batch), (marker, colour) in looks.items()
    ]  # fmt: skip
    if "rap" in names and any(experiment != "heavy" for experiment, _ in panels):
        handles.append(_diamond_key(f"paper's RAP, average: {PAPER_SHARE:.3f}"))
    _legend(figure, handles)
    return Plot(figure=figure, table=table, spread=POINTS)


def gain(frame: pd.DataFrame) -> Plot:
    """What each part of RAP brings by itself, on top of those before it."""
    rows: list[dict[str, Any]] = []
    reaches: dict[str, float] = {}  # by cell: the heavier plans' gains are of another size
    for experiment in ("fig10", "heavy"):
        try:
            part = _draw.records_of(frame, experiment)
        except NoData:
            continue
        if "part" not in part:
            continue
        found = pool_by(part, "gain", [*CELL, "part"]).values()
        reach = max((float(row["high"]) for row in found), default=1.0)
        for row in found:
            keys = {name: row[name] for name in (*CELL, "part")}
            kept = {name: row[name] for name in ("low", "high", "n", "evidence")}
            rows.append({"cell": _draw.cell_words(row), **keys, "gain": row["median"], **kept})
            reaches[rows[-1]["cell"]] = reach
    table = _draw.table_of(rows, "no record of metric gain in fig10 or heavy")
    cells = list(dict.fromkeys(table["cell"]))
    parts = in_order(table["part"], list(PARTS))
    figure, axes = new_panels(
        len(cells), len(parts), across=4, title="RAP's gain over Sequential, part by part",
        row_inches=0.3,
    )  # fmt: skip
    layout = figure.get_layout_engine()
    assert layout is not None
    layout.set(w_pad=0.14)  # type: ignore[call-arg]  # numbers keep clear of the next panel
    least = min(1.0, int(20 * table["low"].min()) / 20)
    for axis, cell in zip(axes, cells, strict=True):
        mine = {row["part"]: row for row in table[table["cell"] == cell].to_dict("records")}
        here = [mine.get(part) for part in parts]
        _draw.numbered_rows(
            axis, [PARTS.get(part, part) for part in parts], here, "gain", base=1.0,
            colours=[PALETTE["grey" if part == "all" else "blue"] for part in parts],
            texts=[_gain_words(part, row) for part, row in zip(parts, here, strict=True)],
            first=0.0 if reaches[cell] > 2 else least, reach=reaches[cell], room=0.3,
        )  # fmt: skip
        axis.axvline(1.0, color=INK, linewidth=0.8)
        axis.set_title(cell)
        axis.set_xlabel("With it over without it", loc="left")
    return Plot(figure=figure, table=table)


def ratio(frame: pd.DataFrame) -> Plot:
    """Throughput over ideal against the work of preprocessing over that of training."""
    part = _draw.records_of(frame, "ratio")
    keys = [*CELL, "ratio"]
    table = _draw.over(pool(part, "throughput", [*keys, "variant"]), "ideal", keys)
    table = table[table["variant"] != "ideal"].rename(columns={"speedup": "over_ideal"})
    measured = pool_by(part, "measured_ratio", keys)
    table["measured_ratio"] = [
        measured[key]["median"] if (key := tuple(row)) in measured else float(row[-1])
        for row in table[keys].to_numpy()
    ]
    cells = list(dict.fromkeys(table["cell"]))
    figure, axes = new_panels(
        len(cells), 11, title="Where sharing stops paying: throughput over ideal", across=3
    )
    for axis, cell in zip(axes, cells, strict=True):
        for variant in in_order(table["variant"], list(NAMES)):
            line = table[(table["cell"] == cell) & (table["variant"] == variant)]
            line = line.sort_values("measured_ratio")
            x, y = line["measured_ratio"], line["over_ideal"]
            dashes = (0, (5, 1.5)) if variant.endswith(("_fused", "_graph")) else "-"
            axis.plot(
                x, y, color=_draw.colour(variant), linewidth=1.2, markersize=4.5, linestyle=dashes,
                marker=MARKERS.get(variant, "x"), label=NAMES.get(variant, variant),
            )  # fmt: skip
            axis.vlines(x, line["low"], line["high"], color=INK, linewidth=0.9)
        axis.axhline(1.0, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        axis.set(xscale="log", title=cell.replace("\n", ", "))
        axis.set_xlabel("Unfused preprocessing over training, elapsed time of each by itself")
        axis.set_xticks(RATIO_TICKS)
        axis.set_xlim(table["measured_ratio"].min() / 1.2, table["measured_ratio"].max() * 1.2)
        axis.set_ylim(0, 1.1)
        axis.yaxis.grid(True)
        _draw.plain_log(axis, only="x")
    axes[0].set_ylabel("Throughput over ideal")
    _legend(figure, axes[0].get_legend_handles_labels()[0])
    table = table.reset_index(drop=True)
    return Plot(figure=figure, table=table, spread=POINTS, over="measured_ratio")


def _speedups(
    frame: pd.DataFrame, experiment: str, baseline: str, title: str, *,
    spread: str = INTERVAL_WORDS,
) -> Plot:  # fmt: skip
    """A panel per cell, a bar per variant; unless it is all there is to see, ideal is a line."""
    pooled = pool(_draw.records_of(frame, experiment), "throughput", [*CELL, "variant"])
    table = _draw.over(pooled, baseline)
    table["share_of_ideal"] = _shares(table)
    table["paper"] = [
        PAPER.get((experiment, baseline), nan) if name == "rap" else nan
        for name in table["variant"]
    ]
    cells = sorted(dict.fromkeys(table["cell"]), key=lambda cell: cell.split()[0].zfill(3))
    names = [name for name in in_order(table["variant"], list(NAMES)) if name != "ideal"]
    figure, axes = new_panels(len(cells), len(names), title=title, across=4)
    reach, paper = float(table["high"].max()), float(table["paper"].max())
    shown = paper < 3 * reach  # else the paper's value stands in the key alone
    for axis, cell in zip(axes, cells, strict=True):
        rows = {row["variant"]: row for row in table[table["cell"] == cell].to_dict("records")}
        here = [rows.get(name) for name in names]
        _draw.numbered_rows(
            axis, [NAMES.get(name, name) for name in names], here, "speedup", base=0.0, first=0.0,
            colours=[_draw.colour(name) for name in names], texts=[_words(row) for row in here],
            reach=max(reach, paper) if shown else reach,
            room=0.42 if "ideal" in rows else 0.26,
        )  # fmt: skip
        axis.axvline(1.0, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        if "ideal" in rows:
            axis.axvline(rows["ideal"]["speedup"], color=PALETTE["vermilion"], linewidth=1.0)
        if shown and "rap" in rows:
            _diamond(axis, paper, names.index("rap"))
        axis.set_title(cell)
        axis.set_xlabel(f"Over {NAMES[baseline]}", loc="left")
    keys = []
    if not table["share_of_ideal"].isna().all():
        label = "ideal: training alone (%: share of it)"
        keys.append(Line2D([], [], color=PALETTE["vermilion"], linewidth=1.0, label=label))
    if not isnan(paper):
        beyond = "" if shown else " (beyond the axis)"
        keys.append(_diamond_key(f"paper's RAP, average: {paper:g}×{beyond}"))
    _legend(figure, keys)
    return Plot(figure=figure, table=table, spread=spread)


def _shares(table: pd.DataFrame) -> list[float]:
    ideal = table[table["variant"] == "ideal"].set_index("cell")["speedup"]
    return [
        over / ideal[cell] if cell in ideal else nan
        for cell, over in zip(table["cell"], table["speedup"], strict=True)
    ]


def _gain_words(part: str, row: Row | None) -> str:
    if row is None:
        return "nothing to map" if part == "mapping" else ""
    return f"{row['gain']:.{3 if row['gain'] < 2 else 2}f}×"


def _words(row: Row | None) -> str:
    if row is None:
        return ""
    part = row["share_of_ideal"]
    share = f"{100 * part:5.1f}".replace(" ", "\u2007")  # as wide as a digit
    return f"{row['speedup']:.2f}×" + ("" if isnan(part) else f"  {share} %")


def _diamond(axis: Any, x: float, place: float) -> None:
    axis.plot(x, place, "D", markersize=5.5, markerfacecolor="white", markeredgecolor=INK,
              markeredgewidth=1.0, zorder=5)  # fmt: skip


def _diamond_key(label: str) -> Line2D:
    return Line2D([], [], marker="D", linestyle="", markersize=5.5, markerfacecolor="white",
                  markeredgecolor=INK, label=label)  # fmt: skip


def _legend(figure: Figure, handles: list[Any]) -> None:
    """One key for all panels, between them and the facts on the figure's face."""
    if not handles:
        return
    width, height = figure.get_size_inches()
    columns = min(len(handles), max(2, int(width / 2.1)))
    room = 0.19 * -(-len(handles) // columns)
    below = 0.5 / (height + room)
    figure.set_size_inches(width, height + room)
    layout = figure.get_layout_engine()
    assert layout is not None
    start = below + room / (height + room) + 0.01
    layout.set(rect=(0.0, start, 1.0, 1.0 - start))  # type: ignore[call-arg]
    figure.legend(
        handles=handles, loc="lower center", bbox_to_anchor=(0.5, below), fontsize=7.5,
        frameon=False, ncols=columns, borderpad=0.0, labelspacing=0.3,
    )  # fmt: skip

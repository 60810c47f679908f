"""Figures 11 to 15 of the PASTA paper: managed memory, hot blocks, allocated memory over time."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, isnan, log10, nan
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from ae.figures.draw import PALETTE, NoData, Plot, bars, new_panels
from ae.figures.summary import pool, pool_by
from ae.recipe.code import load_code

naming = load_code(Path(__file__).parent, "naming")

POLICIES = {"none": ("no prefetch", "grey"), "object": ("by object", "blue"),
            "tensor": ("by tensor", "green")}  # fmt: skip
PRESSURES = {"0": "memory suffices (Figure 11)", "3": "a third of it (Figure 12)"}
SWITCH = {"off": "driver prefetch off (the paper's)", "on": "driver prefetch on"}
RUNS = {
    "timeline": "GPT-2 training", "memory": "GPT-2 training", "dp": "data parallel",
    "tp": "tensor parallel", "pp": "pipeline parallel",
}  # fmt: skip
ON_CPU = "two_ranks"  # drawn only where nothing ran on two GPUs
CPU_WORDS = ", on the CPU"
PEAK_OF = ["experiment", "parallelism", "device", "size", "level"]
MEAN = "mean"
# The paper's averages on the A100, by pressure and policy: time over none. It prints gains of 37
# and 26 % and does not say whether of time (1 - T/T0) or of rate (T0/T - 1): both readings.
PAPER = {
    ("0", "object"): (1 - 0.37, 1 / 1.37),
    ("0", "tensor"): (1 - 0.26, 1 / 1.26),
    ("3", "object"): (2.91, 2.91),
}
PAPER_WORDS = "A100, driver prefetch off; both readings of a gain in %"
DIAMONDS: dict[str, Any] = {"marker": "D", "markersize": 5, "markerfacecolor": "none",
                            "color": "#222222", "linewidth": 0.9}  # fmt: skip


def uvm(frame: pd.DataFrame) -> Plot:
    """Figures 11 and 12: time with prefetching over time without, and what was prefetched."""
    keys = ["oversubscription", "driver_prefetch", "model", "policy"]
    times = pool_by(frame, "uvm_time", keys)
    asked = pool_by(frame, "prefetch_asked", keys)
    moved = pool_by(frame, "moved", [*keys, "direction"])
    rows = []
    for key, row in pool_by(frame, "normalized_time", keys).items():
        if row["policy"] == "none":
            continue
        rows.append(
            {
                **{name: row[name] for name in keys},
                "over_none": row["median"],
                "low": row["low"],
                "high": row["high"],
                "seconds": _of(times, key),
                "asked_mib": _of(asked, key),
                "in_mib": _of(moved, (*key, "in")),
                "out_mib": _of(moved, (*key, "out")),
                "n": row["n"],
                "evidence": row["evidence"],
            }
        )
    if not rows:
        raise NoData("no record of metric normalized_time with prefetching")
    table = pd.DataFrame(rows)
    table = pd.concat([table, _uvm_means(table)], ignore_index=True)
    orders = {
        "oversubscription": list(PRESSURES),
        "driver_prefetch": [],
        "model": [*naming.MODELS, MEAN],
        "policy": list(POLICIES),
    }
    table = naming.ordered(table, orders)
    told = [PAPER.get((r["oversubscription"], r["policy"]), (nan, nan)) if r["model"] == MEAN
            else (nan, nan) for r in table.to_dict("records")]  # fmt: skip
    table["paper_low"], table["paper_high"] = zip(*told, strict=True)
    both = zip(table["oversubscription"], table["driver_prefetch"], strict=True)
    panels = list(dict.fromkeys(both))
    table["row"] = [
        f"{naming.name_of(r['model'])}: {POLICIES.get(r['policy'], (r['policy'],))[0]}"
        for r in table.to_dict("records")
    ]
    names = list(
        dict.fromkeys(naming.ordered(table, {k: orders[k] for k in ("model", "policy")})["row"])
    )
    figure, axes = new_panels(
        len(panels), len(names), title="Managed memory: time over no prefetch"
    )
    reach = float(table[["over_none", "high", "paper_high"]].max().max())
    for axis, (pressure, driver) in zip(axes, panels, strict=True):
        part = table[(table["oversubscription"] == pressure) & (table["driver_prefetch"] == driver)]
        there = {row["row"]: row for row in part.to_dict("records")}
        here = [there.get(name) for name in names]
        ours, low, high = (
            [_number(row, key) for row in here] for key in ("over_none", "low", "high")
        )
        bars(
            axis, names, ours, low=low, high=high, reach=max(reach, 1.0), mark=1.0, text_room=1.2,
            beyond=[max(1.0, _number(row, "paper_high") + 0.04 * reach) for row in here],
            colours=[PALETTE[POLICIES.get(row["policy"], ("", "orange"))[1]] if row else "#8c8c8c"
                     for row in here],
            texts=[_uvm_words(row) for row in here],
        )  # fmt: skip
        for place, row in enumerate(here):
            ends = [_number(row, name) for name in ("paper_low", "paper_high")]
            if not isnan(ends[0]):
                axis.plot(ends, [place, place], **DIAMONDS)
        words = PRESSURES.get(pressure, f"memory over {pressure}")
        switch = SWITCH.get(driver, f"driver prefetch {driver}")
        axis.set_title(f"{words}\n{switch}", fontsize=9)
        axis.set_xlabel("time over no prefetch\n(MiB asked for; that came in)")
    handle = Line2D([], [], label=f"paper's average: {PAPER_WORDS}", **DIAMONDS)
    naming.legend_above(figure, [handle])
    table["n"] = table["n"].astype(int)
    models = sorted({int(count) for count in table["models"].dropna()})
    over = f"mean over {' to '.join(map(str, models))} models" if models else ""
    spread = "bars: median, whiskers: 95 % interval"
    return Plot(figure=figure, table=table, spread="; ".join(filter(None, [spread, over])))


def hotness(frame: pd.DataFrame) -> Plot:
    """Figure 13: accesses per group of memory blocks and of windows, logarithmic colours.

    Of several processes the first is drawn: the same accesses lie in other windows in each.
    """
    found = frame[frame["metric"].isin(["accesses", "hot_blocks", "hot_windows"])]
    frame = found[found["process"] == found["process"].iloc[0]] if len(found) else found
    cells = pool(frame, "accesses", ["blocks", "window", "block"])
    if cells.empty:
        raise NoData("no record of metric accesses")
    kinds = list(dict.fromkeys(cells["blocks"]))
    figure, axes = new_panels(len(kinds), 12, title="BERT inference: accesses per memory block")
    cells["window"] = cells["window"].astype(int)
    cells["block"] = cells["block"].astype(int)
    blocks = pool_by(frame, "hot_blocks", ["blocks"])
    windows = pool_by(frame, "hot_windows", ["blocks"])
    for axis, kind in zip(axes, kinds, strict=True):
        grid = cells[cells["blocks"] == kind].pivot_table(
            index="block", columns="window", values="median", aggfunc="sum", fill_value=0
        )
        found, all_of_them = grid.to_numpy(), float(grid.to_numpy().sum())
        least, most = float(found[found > 0].min()), float(found.max())
        high = len(grid) if (kind,) not in blocks else int(blocks[kind,]["median"])
        unit = 1e9 if all_of_them >= 1e9 else 1.0
        drawn = axis.imshow(
            grid.where(grid > 0), aspect="auto", origin="lower", cmap="viridis",
            norm=LogNorm(10.0 ** floor(log10(least)), max(most, 10.0 * least)),
            interpolation="nearest", extent=(0, all_of_them / unit, 0, high),
        )  # fmt: skip
        half = "as the authors print, every second MiB" if kind == "as-is" else "2 MiB each"
        words = f"blocks: {half}"
        if (kind,) in windows:
            across = float(windows[kind,]["median"])
            words += (
                f"\na cell: {high / len(grid):,.0f} blocks by {across / len(grid.columns):,.0f} "
                f"windows of {all_of_them / across / 1e6:,.2g} million accesses"
            )
        axis.set_title(words, fontsize=9)
        axis.set_xlabel("accesses so far" + (", billions" if unit > 1 else ""))
        axis.set_ylabel("blocks that are accessed, by address")
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        figure.colorbar(drawn, ax=axis, label="accesses in a cell (log; white: none)")
    return Plot(figure=figure, table=cells.drop(columns="samples"), spread=naming.ONE_NUMBER)


def memory(frame: pd.DataFrame) -> Plot:
    """Figures 14 and 15: what PyTorch had allocated at every percent of the tensor events."""
    keys = ["experiment", "parallelism", "device", "size", "level", "progress"]
    rows = pool(frame, "allocated", keys)
    rows = rows[rows["level"].isin(["", "tensor"])].reset_index(drop=True)
    if set(rows["experiment"]) & {"two_gpus", "parallel"}:
        rows = rows[rows["experiment"] != ON_CPU].reset_index(drop=True)
    if rows.empty:
        raise NoData("no record of metric allocated")
    rows["progress"] = rows["progress"].astype(float)
    rows = pd.concat([rows, _peaks(frame, rows)], ignore_index=True)
    orders = {name: sorted(set(rows[name])) for name in ("device", "progress")}
    rows = naming.ordered(rows, {"experiment": [], "size": [], "parallelism": list(RUNS), **orders})
    rows["run"] = [_run(row) for row in rows.to_dict("records")]
    runs = list(dict.fromkeys(rows["run"]))
    figure, axes = new_panels(
        len(runs), 8, title="Allocated memory over tensor events", across=min(len(runs), 2)
    )
    top = float(rows["median"].max())
    ticks = MaxNLocator(nbins=6).tick_values(0.0, 1.15 * top)  # with room for legends
    for axis, run in zip(axes, runs, strict=True):
        _lines(axis, rows[rows["run"] == run], cpu=run.endswith(CPU_WORDS))
        axis.set_title(run)
        axis.set_yticks(ticks)
        axis.set_ylim(0, ticks[-1])
    spread = naming.spread_words(rows, "lines: median of the runs")
    return Plot(figure=figure, table=rows.drop(columns="samples"), spread=spread)


def _peaks(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """The peaks as points of the lines, where their place is recorded: between two percents."""
    there = rows[PEAK_OF].drop_duplicates()
    peaks = pool(frame, "peak_allocated", PEAK_OF).merge(there, on=PEAK_OF)
    places = pool(frame, "peak_position", PEAK_OF)[[*PEAK_OF, "median"]]
    return peaks.merge(places.rename(columns={"median": "progress"}), on=PEAK_OF)


def _lines(axis: Axes, part: pd.DataFrame, *, cpu: bool) -> None:
    """One line a GPU; the second is dashed, so that the first is seen where both are the same."""
    styles = [(PALETTE["blue"], "-"), (PALETTE["vermilion"], "--")]
    devices = dict.fromkeys(part["device"])
    for device, (colour, dash) in zip(devices, styles, strict=False):
        line = part[part["device"] == device]
        peak = float(line["median"].max())
        where = f"{'process' if cpu else 'GPU'} {device.removeprefix('cpu') or '0'}"
        name = f"{where}: peak {peak:,.3g} MiB" if peak < 100 else f"{where}: peak {peak:,.0f} MiB"
        axis.plot(line["progress"], line["median"], dash, color=colour, label=name)
    axis.set_xlabel("tensor events, %")
    axis.set_ylabel("allocated, MiB")
    axis.set_xlim(0, 100)
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.yaxis.grid(True)
    axis.legend(fontsize=7.5, framealpha=1.0, edgecolor="none", borderpad=0.2)


def _run(row: naming.Row) -> str:
    name = RUNS.get(
        row["parallelism"] or row["experiment"], row["parallelism"] or row["experiment"]
    )
    size = f", {row['size']}" if row["size"] not in ("", "full") else ""
    cpu = row["experiment"] == ON_CPU or row["device"] == "cpu"
    return name + size + (CPU_WORDS if cpu else "")


def _uvm_means(table: pd.DataFrame) -> pd.DataFrame:
    """The arithmetic mean over models, as the paper's "Avg."; of one there is none."""
    keys = ["oversubscription", "driver_prefetch", "policy"]
    found = []
    for place, part in table.groupby(keys, sort=False):
        if len(part) < 2:
            continue
        found.append(
            {
                **dict(zip(keys, place, strict=True)),
                "model": MEAN,
                "over_none": float(part["over_none"].mean()),
                "low": float(part["over_none"].mean()),  # whiskers of no length
                "high": float(part["over_none"].mean()),
                "seconds": nan,
                **{name: float(part[name].mean()) for name in ("asked_mib", "in_mib", "out_mib")},
                "models": len(part),
                "n": int(part["n"].min()),
                "evidence": "+".join(sorted(set(part["evidence"]))),
            }
        )
    return pd.DataFrame(found)


def _of(rows: Mapping[tuple[str, ...], Any], key: tuple[str, ...]) -> float:
    return float(rows[key]["median"]) if key in rows else nan


def _uvm_words(row: naming.Row | None) -> str:
    if row is None:
        return "not measured"
    sizes = [f"{row[name]:,.0f}" for name in ("asked_mib", "in_mib") if not isnan(row[name])]
    return f"{row['over_none']:.2f}×" + (f" ({'; '.join(sizes)})" if sizes else "")


def _number(row: naming.Row | None, name: str) -> float:
    return nan if row is None else float(row[name])

"""Figures 11 to 15 of the PASTA paper: managed memory, hot blocks, allocated memory over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from ae.figures.draw import PALETTE, NoData, Plot, bars, new_panels
from ae.figures.summary import pool, pool_by
from ae.recipe.code import load_code

naming = load_code(Path(__file__).parent, "naming", fix="restore it")

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
    reach = float(table[["over_none", "high"]].max().max())
    for axis, (pressure, driver) in zip(axes, panels, strict=True):
        part = table[(table["oversubscription"] == pressure) & (table["driver_prefetch"] == driver)]
        there = {row["row"]: row for row in part.to_dict("records")}
        here = [there.get(name) for name in names]
        _row_bars(
            axis, names, here, "over_none", reach=max(reach, 1.0), mark=1.0, text_room=1.1,
            colours=[PALETTE[POLICIES.get(row["policy"], ("", "orange"))[1]] if row else "#8c8c8c"
                     for row in here],
            texts=[_uvm_words(row) for row in here],
        )  # fmt: skip
        words = PRESSURES.get(pressure, f"memory over {pressure}")
        switch = SWITCH.get(driver, f"driver prefetch {driver}")
        axis.set_title(f"{words}\n{switch}", fontsize=9)
        axis.set_xlabel("time over no prefetch (MiB that were asked for, and that came in)")
    table["n"] = table["n"].astype(int)
    return Plot(
        figure=figure, table=table, spread="bars: median over turns, whiskers: 95 % interval"
    )


def _row_bars(
    axis: Axes,
    names: Sequence[str],
    rows: Sequence[Mapping[Any, Any] | None],
    value: str,
    *,
    colours: Sequence[str],
    texts: Sequence[str],
    reach: float,
    text_room: float,
    mark: float,
) -> None:
    """`bars` of the column `value` of rows with `low` and `high`; None: it was not measured."""
    columns = {
        key: [float("nan") if row is None else float(row[key]) for row in rows]
        for key in (value, "low", "high")
    }
    texts = [text if row else "not measured" for text, row in zip(texts, rows, strict=True)]
    bars(
        axis, names, columns[value], low=columns["low"], high=columns["high"], colours=colours,
        texts=texts, reach=reach, text_room=text_room, mark=mark,
    )  # fmt: skip


def hotness(frame: pd.DataFrame) -> Plot:
    """Figure 13: accesses per group of memory blocks and of windows, logarithmic colours."""
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
            index="block", columns="window", values="median", aggfunc="sum", fill_value=0
        )
        top = max(float(grid.to_numpy().max()), 2.0)
        drawn = axis.imshow(
            grid.where(grid > 0), aspect="auto", origin="lower", cmap="viridis",
            norm=LogNorm(vmin=1, vmax=top), interpolation="nearest",
        )  # fmt: skip
        half = "as the authors print, every second MiB" if kind == "as-is" else "2 MiB each"
        axis.set_title(f"blocks: {half}")
        axis.set_xlabel("time: windows of accesses, grouped")
        axis.set_ylabel("memory blocks by address, grouped")
        axis.set_xticks([])
        axis.set_yticks([])
        figure.colorbar(drawn, ax=axis, label="accesses (log)")
    spread = naming.spread_words(cells, "median of the runs")
    return Plot(figure=figure, table=cells.drop(columns="samples"), spread=spread)


def memory(frame: pd.DataFrame) -> Plot:
    """Figures 14 and 15: what PyTorch had allocated at every percent of the tensor events."""
    keys = ["experiment", "parallelism", "device", "size", "level", "progress"]
    rows = pool(frame, "allocated", keys)
    rows = rows[rows["level"].isin(["", "tensor"])].reset_index(drop=True)
    if set(rows["experiment"]) & {"two_gpus", "parallel"}:
        rows = rows[rows["experiment"] != ON_CPU].reset_index(drop=True)
    if rows.empty:
        raise NoData("no record of metric allocated")
    rows["progress"] = rows["progress"].astype(int)
    rows["run"] = [_run(row) for row in rows.to_dict("records")]
    runs = list(dict.fromkeys(rows["run"]))
    figure, axes = new_panels(
        len(runs), 8, title="Allocated memory over tensor events", across=min(len(runs), 2)
    )
    peaks = pool_by(frame, "peak_allocated", PEAK_OF)
    for axis, run in zip(axes, runs, strict=True):
        _lines(axis, rows[rows["run"] == run], peaks, cpu=run.endswith(CPU_WORDS))
        axis.set_title(run)
    spread = naming.spread_words(rows, "lines: median of the runs")
    return Plot(figure=figure, table=rows.drop(columns="samples"), spread=spread)


def _lines(
    axis: Axes, part: pd.DataFrame, peaks: Mapping[tuple[str, ...], Any], *, cpu: bool
) -> None:
    """One line a GPU; the second is dashed, so that the first is seen where both are the same.

    A peak may lie between the percents that are drawn: the exact one is named where it is recorded.
    """
    styles = [(PALETTE["blue"], "-"), (PALETTE["vermilion"], "--")]
    devices = dict.fromkeys(part["device"])
    for device, (colour, dash) in zip(devices, styles, strict=False):
        line = part[part["device"] == device].sort_values("progress")
        exact = _of(peaks, tuple(line.iloc[0][name] for name in PEAK_OF))
        peak = float(line["median"].max()) if isnan(exact) else exact
        where = f"{'process' if cpu else 'GPU'} {device.removeprefix('cpu') or '0'}"
        name = f"{where}: peak {peak:,.3g} MiB" if peak < 100 else f"{where}: peak {peak:,.0f} MiB"
        axis.plot(line["progress"], line["median"], dash, color=colour, label=name)
    axis.set_xlabel("tensor events, %")
    axis.set_ylabel("MiB")
    axis.set_xlim(0, 100)
    axis.set_ylim(bottom=0)
    axis.yaxis.grid(True)
    axis.legend(frameon=False, fontsize=7.5)


def _run(row: naming.Row) -> str:
    name = RUNS.get(
        row["parallelism"] or row["experiment"], row["parallelism"] or row["experiment"]
    )
    size = f", {row['size']}" if row["size"] not in ("", "full") else ""
    cpu = row["experiment"] == ON_CPU or row["device"] == "cpu"
    return name + size + (CPU_WORDS if cpu else "")


def _uvm_means(table: pd.DataFrame) -> pd.DataFrame:
    """The arithmetic mean over models, as the paper's "Avg."."""
    keys = ["oversubscription", "driver_prefetch", "policy"]
    found = []
    for place, part in table.groupby(keys, sort=False):
        found.append(
            {
                **dict(zip(keys, place, strict=True)),
                "model": MEAN,
                "over_none": float(part["over_none"].mean()),
                "low": float(part["over_none"].mean()),  # whiskers of no length
                "high": float(part["over_none"].mean()),
                "seconds": nan,
                **{name: float(part[name].mean()) for name in ("asked_mib", "in_mib", "out_mib")},
                "n": int(part["n"].min()),
                "evidence": "+".join(sorted(set(part["evidence"]))),
            }
        )
    return pd.DataFrame(found)


def _of(rows: Mapping[tuple[str, ...], Any], key: tuple[str, ...]) -> float:
    return float(rows[key]["median"]) if key in rows else nan


def _uvm_words(row: naming.Row | None) -> str:
    if row is None:
        return ""
    sizes = [f"{row[name]:,.0f}" for name in ("asked_mib", "in_mib") if not isnan(row[name])]
    return f"{row['over_none']:.2f}×" + (f" ({', '.join(sizes)})" if sizes else "")

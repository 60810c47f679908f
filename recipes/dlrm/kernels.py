"""DLRM's figures of single kernels: share of the limit, sweep, cost of pinning, occupancy."""

from __future__ import annotations

from math import nan
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.patches import Rectangle

from ae.figures.draw import PALETTE, NoData, Plot, new_panels
from ae.figures.summary import in_order, join_evidence, pool, pool_by, ratio_interval
from ae.recipe.code import load_code

_p = load_code(Path(__file__).parent, "panels")

ARTIFACT = {"distance": 2, "warps_per_sm": 40}  # of RPF, as shipped (docs/papers/dlrm.md, D7, D9)
ARTIFACT_OCCUPANCY = {("sm_80", "optmt"): 62.5}  # docs/papers/dlrm.md, D7
GPUS = {
    "sm_80": "A100", "sm_86": "RTX 30", "sm_89": "L4, RTX 40", "sm_90": "H100, H200",
    "sm_100": "B200", "sm_120": "RTX 50",
}  # fmt: skip


def bandwidth(frame: pd.DataFrame) -> Plot:
    """Achieved over possible: the limit time of a dataset over the measured kernel time.

    The limit counts unique rows, indices and output once, at the rate of a copy kernel timed in
    the same run. Hot data stay in the caches, so a small share there is no fault of a kernel.
    """
    times = pool(
        _p.of_experiment(frame, "embedding"), "kernel_time",
        ["dataset", "variant", "launch", "l2_mode"],
    )  # fmt: skip
    limits = pool_by(frame, "limit_time", ["dataset"])
    if times.empty or not limits:
        raise NoData("no record of metric kernel_time, or of limit_time (the copy-measured limit)")
    modes, rows, titles = _p.several_modes(times), [], {}
    for row in times.to_dict("records"):
        limit = limits.get((row["dataset"],))
        if limit is None:
            continue
        shortest = _p.number(limit["median"], limit["low"], limit["high"])
        titles[row["dataset"]] = f"{_p.DATASETS.get(row['dataset'])} (limit {shortest} µs)"
        share = [100 * value for value in ratio_interval(limit["samples"], row["samples"])[:3]]
        together = row["launch"] == "all_tables"
        rows.append(
            {
                "dataset": row["dataset"],
                "row": _p.name_of(row, modes) + (", one launch" if together else ""),
                "share_of_limit_percent": share[0],
                "low": share[1],
                "high": share[2],
                "kernel_time_us": row["median"],
                "limit_time_us": limit["median"],
                "n": row["n"],
                "evidence": join_evidence(row["evidence"], limit["evidence"]),
                "variant": row["variant"],
                "text": f"{_p.number(*share)} %",
            }
        )
    table = _p.table_of(rows)
    figure, _ = _p.panel_bars(
        table, "share_of_limit_percent", axis="% of the limit", reach=100.0,
        title="Share of the limit that kernels reach (one launch: all tables in one)",
        titles=titles,
    )  # fmt: skip
    return Plot(figure=figure, table=table.drop(columns="text"))


def sweep(frame: pd.DataFrame) -> Plot:
    """Kernel time of RPF over prefetch distance and resident warps per SM, a panel per dataset."""
    times = pool(
        _p.of_experiment(frame, "sweep"), "kernel_time",
        ["dataset", "variant", "distance", "warps_per_sm"],
    )  # fmt: skip
    stock = times[times["variant"] == "stock21"].set_index("dataset")["median"]
    cells = times[(times["distance"] != "") & (times["warps_per_sm"] != "")]
    if cells.empty:
        raise NoData("no kernel_time with labels distance and warps_per_sm")
    cells = cells.astype({"distance": int, "warps_per_sm": int})
    fastest = cells.groupby("dataset")["median"].transform("min")
    cells = cells.assign(times_the_fastest=cells["median"] / fastest)
    panels = in_order(cells["dataset"], list(_p.DATASETS))
    distances, warps = sorted(set(cells["distance"])), sorted(set(cells["warps_per_sm"]))
    figure, axes = new_panels(
        len(panels), len(warps), title="RPF: prefetch distance against resident warps",
        across=_p.ACROSS, row_inches=0.27,
    )  # fmt: skip
    most = float(cells["times_the_fastest"].max())
    for axis, dataset in zip(axes, panels, strict=True):
        part = cells[cells["dataset"] == dataset]
        grid = part.pivot(index="warps_per_sm", columns="distance", values="times_the_fastest")
        image = axis.imshow(
            grid.reindex(index=warps, columns=distances).to_numpy(), cmap="cividis", vmin=1.0,
            vmax=most, aspect="auto", origin="lower",
        )  # fmt: skip
        axis.set_xticks(range(len(distances)), labels=list(map(str, distances)))
        axis.set_yticks(range(len(warps)), labels=list(map(str, warps)))
        beside = f" (PyTorch 2.1: {stock[dataset]:.0f} µs)" if dataset in stock else ""
        axis.set_title(_p.DATASETS.get(dataset, dataset) + beside)
        axis.set_xlabel("prefetch distance, rows")
        for cell in part.to_dict("records"):
            place = distances.index(cell["distance"]), warps.index(cell["warps_per_sm"])
            bright = (cell["times_the_fastest"] - 1) > 0.55 * (most - 1)
            axis.text(
                *place, f"{cell['median']:.0f}", ha="center", va="center", fontsize=6.5,
                color="#111111" if bright else "#ffffff",
            )  # fmt: skip
            artifact = all(cell[key] == value for key, value in ARTIFACT.items())
            for wanted, line in ((cell["times_the_fastest"] == 1, "-"), (artifact, ":")):
                if wanted:
                    corner = place[0] - 0.45, place[1] - 0.45
                    axis.add_patch(Rectangle(corner, 0.9, 0.9, fill=False, lw=1.8, ls=line,
                                             edgecolor=PALETTE["vermilion"]))  # fmt: skip
    for axis in axes[:: _p.ACROSS]:
        axis.set_ylabel("warps per SM")
    figure.colorbar(image, ax=axes, label="times the fastest", shrink=0.8, aspect=30)
    table = cells.rename(columns={"median": "kernel_time_us"}).drop(columns=["samples", "unit"])
    return Plot(
        figure=figure, table=table.reset_index(drop=True),
        spread="cell: median µs; framed: fastest; dotted: the artifact's setting",
    )  # fmt: skip


def pin(frame: pd.DataFrame) -> Plot:
    """L2 pinning with its cost left out and counted in, per mode, beside unpinned kernels."""
    costs, keys = _p.of_experiment(frame, "pin_cost"), ["dataset", "variant", "l2_mode"]
    counted = pool_by(costs, "pin_and_kernel_time", keys)
    if not counted:
        raise NoData("no record of metric pin_and_kernel_time")
    rows: list[dict[str, Any]] = []
    for row in pool(costs, "kernel_time", keys).to_dict("records"):
        both = counted.get(tuple(row[key] for key in keys))
        shown = row if both is None else both
        text = _p.number(row["median"], row["low"], row["high"])
        if both is not None:
            text += f" → {_p.number(both['median'], both['low'], both['high'])}"
        rows.append(
            {
                "dataset": row["dataset"],
                "row": _p.name_of(row, modes=True),
                "kernel_time_us": row["median"],
                "pin_and_kernel_time_us": nan if both is None else both["median"],
                "shown_us": shown["median"],
                **{key: shown[key] for key in ("low", "high", "n", "evidence")},
                "variant": row["variant"],
                "l2_mode": row["l2_mode"],
                "pin": "counted" if both is not None else "left out",
                "text": text,
            }
        )
    table = _p.table_of(rows)
    figure, places = _p.panel_bars(
        table, "shown_us", title="L2 pinning: the kernel alone → pin and kernel", text_room=0.5,
        axis="µs a table (dark orange: pinning)",
    )  # fmt: skip
    for axis, cells in places:
        for place, cell in enumerate(cells):
            if cell and cell["pin"] == "counted":
                alone = {**cell, "pin": "left out"}
                axis.barh(place, cell["kernel_time_us"], height=0.74, color=_p.colour_of(alone))
    return Plot(figure=figure, table=table.drop(columns=["text", "shown_us"]))


def occupancy(frame: pd.DataFrame) -> Plot:
    """Theoretical occupancy, registers and spills of every kernel, a panel per architecture."""
    static, keys = _p.of_experiment(frame, "static"), ["arch", "variant"]
    shares = pool(static, "occupancy", keys).sort_values(
        "arch", key=lambda column: column.str.extract(r"(\d+)", expand=False).astype(int)
    )
    if shares.empty:
        raise NoData("no record of metric occupancy")
    registers, spills = (
        {key: row["median"] for key, row in pool_by(static, metric, keys).items()}
        for metric in ("registers", "spill_bytes")
    )
    rows: list[dict[str, Any]] = []
    for row in shares.to_dict("records"):
        key = (row["arch"], row["variant"])
        regs, spill = registers.get(key), spills.get(key)
        text = f"{row['median']:.3g} %" + (f", {regs:g}" if regs is not None else "")
        rows.append(
            {
                "arch": row["arch"],
                "row": _p.name_of(row),
                "occupancy_percent": row["median"],
                **{name: row[name] for name in ("low", "high", "n", "evidence", "variant")},
                "registers": regs,
                "spill_bytes": spill,
                "paper": ARTIFACT_OCCUPANCY.get(key, nan),
                "text": text + (f" +{spill:g} B" if spill else ""),
            }
        )
    table = _p.table_of(rows)
    figure, _ = _p.panel_bars(
        table, "occupancy_percent", panel="arch", reach=100.0, text_room=0.75,
        title="Theoretical occupancy (registers a thread, bytes spilled)", axis="occupancy, %",
        titles={arch: f"{arch} ({gpus})" for arch, gpus in GPUS.items()}, missing="no such code",
    )  # fmt: skip
    return Plot(
        figure=figure,
        table=table.drop(columns="text"),
        spread="one compiled kernel a bar; diamond: the artifact's README",
    )

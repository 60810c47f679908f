"""The figures of the DLRM recipe: from the record table to matplotlib figures.

Times are microseconds for one table and one batch, medians over the samples of the records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isnan
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ae.figures.draw import PALETTE, NoData, Plot, bars, new_panels
from ae.figures.summary import in_order, join_evidence, pool, ratio_interval

DATASETS = ["one_item", "high_hot", "med_hot", "low_hot", "random"]
VARIANTS = [
    "stock21", "base", "optmt", "rpf", "smpf", "lmpf", "l1dpf", "l2p", "rpf_l2p",
    "stock", "fbgemm", "best",
]  # fmt: skip
NAMES = {
    "stock21": "PyTorch 2.1 (stock)", "stock": "PyTorch installed (stock)", "base": "Base",
    "optmt": "OptMT", "rpf": "RPF", "smpf": "SMPF", "lmpf": "LMPF", "l1dpf": "L1DPF", "l2p": "L2P",
    "rpf_l2p": "RPF+L2P+OptMT", "fbgemm": "FBGEMM", "best": "Best (ours)",
}  # fmt: skip
MODES = {"setaside": "set-aside", "setaside_reset": "set-aside, reset"}
Row = Mapping[Any, Any]  # one row of a record table
KEYS = ["dataset", "variant", "launch", "l2_mode"]


def speedup(frame: pd.DataFrame) -> Plot:
    """Embedding speed-up of every variant over Base, one table a launch, a panel per dataset.

    This is the paper's main figure (its abstract: up to 53 % by OptMT, up to 103 % combined), with
    the stock operators, FBGEMM and our best kernel beside the paper's variants.
    """
    times = _times(frame, "embedding", launch="one_table")
    rows = _over_baseline(times, "base", _row_name)
    rows["text"] = [f"{value:.2f}×" for value in rows["speedup"]]
    figure = _panel_bars(
        rows, panel="dataset", value="speedup", title="Embedding stage: speed-up over Base",
        axis="speed-up over Base", mark=1.0,
    )  # fmt: skip
    return Plot(figure=figure, table=rows.drop(columns="text"))


def bandwidth(frame: pd.DataFrame) -> Plot:
    """Achieved over possible: the limit time of a dataset over the measured kernel time.

    The limit counts unique rows, indices and output once, at the rate of a copy kernel timed in
    the same run. Hot data stay in the caches, so a small share there is no fault of a kernel.
    """
    times = _times(frame, "embedding")
    limits = pool(frame, "limit_time", ["dataset"]).set_index("dataset")
    if limits.empty:
        raise NoData("no record of metric limit_time (the copy-measured limit)")
    rows = []
    for row in times.to_dict("records"):
        if row["dataset"] not in limits.index:
            continue
        limit = limits.loc[row["dataset"]]
        share = ratio_interval(limit["samples"], row["samples"])
        suffix = ", all tables in one launch" if row["launch"] == "all_tables" else ""
        rows.append(
            {
                "dataset": row["dataset"],
                "row": _row_name(row) + suffix,
                "share_of_limit_percent": 100 * share.value,
                "low": 100 * share.low,
                "high": 100 * share.high,
                "kernel_time_us": row["median"],
                "limit_time_us": limit["median"],
                "n": row["n"],
                "evidence": join_evidence(row["evidence"], limit["evidence"]),
                "variant": row["variant"],
                "text": f"{100 * share.value:.0f} %",
            }
        )
    table = _table(rows)
    figure = _panel_bars(
        table, panel="dataset", value="share_of_limit_percent",
        title="Achieved over possible: share of the copy-measured limit",
        axis="% of the limit", mark=100.0, labels=_limit_labels(table),
    )  # fmt: skip
    return Plot(figure=figure, table=table.drop(columns="text"))


def endtoend(frame: pd.DataFrame) -> Plot:
    """Full DLRM inference over Base in the same mode, with the embedding stage's share of it."""
    times = pool(frame, "endtoend_time", ["dataset", "variant", "mode", "l2_mode"])
    if times.empty:
        raise NoData("no record of metric endtoend_time")
    shares = {
        (row["dataset"], row["variant"], row["mode"], row["l2_mode"]): row["median"]
        for row in pool(
            frame, "embedding_share", ["dataset", "variant", "mode", "l2_mode"]
        ).to_dict("records")
    }
    rows = _over_baseline(
        times, "base", lambda row: f"{_row_name(row)}, {row['mode']}", same=("dataset", "mode")
    )
    keys = list(zip(rows["dataset"], rows["variant"], rows["mode"], rows["l2_mode"], strict=True))
    rows["embedding_share_percent"] = [_share(shares, key) for key in keys]
    rows["text"] = [
        f"{value:.2f}×" + (f" ({share:.0f} %)" if not isnan(share) else "")
        for value, share in zip(rows["speedup"], rows["embedding_share_percent"], strict=True)
    ]
    figure = _panel_bars(
        rows, panel="dataset", value="speedup", axis="speed-up over Base, same mode", mark=1.0,
        text_room=0.6,
        title="Full DLRM inference: speed-up over Base (share of time in the embedding stage)",
    )  # fmt: skip
    return Plot(figure=figure, table=rows.drop(columns="text"))


def sweep(frame: pd.DataFrame) -> Plot:
    """Kernel time of RPF over prefetch distance and resident warps per SM, a panel per dataset."""
    sweeps = _of_experiment(frame, "sweep")
    cells = pool(sweeps, "kernel_time", ["dataset", "variant", "distance", "warps_per_sm"])
    cells = cells[(cells["distance"] != "") & (cells["warps_per_sm"] != "")]
    if cells.empty:
        raise NoData("no kernel_time with labels distance and warps_per_sm")
    cells = cells.assign(
        distance=cells["distance"].astype(int), warps_per_sm=cells["warps_per_sm"].astype(int)
    )
    variants = in_order(cells["variant"], VARIANTS)
    panels = [
        (variant, dataset)
        for variant in variants
        for dataset in in_order(cells[cells["variant"] == variant]["dataset"], DATASETS)
    ]
    distances = sorted(set(cells["distance"]))
    warps = sorted(set(cells["warps_per_sm"]))
    figure, axes = new_panels(
        len(panels), len(warps), title="Prefetch distance against resident warps: kernel time, µs",
        row_inches=0.42,
    )  # fmt: skip
    for axis, (variant, dataset) in zip(axes, panels, strict=True):
        part = cells[(cells["variant"] == variant) & (cells["dataset"] == dataset)]
        _heat(axis, part, distances, warps)
        axis.set_title(f"{NAMES.get(variant, variant)}, {dataset}")
        axis.set_xlabel("prefetch distance, rows")
    for axis in axes[:: min(len(axes), 5)]:
        axis.set_ylabel("warps per SM")
    table = cells.rename(columns={"median": "kernel_time_us"}).drop(columns=["samples", "unit"])
    return Plot(
        figure=figure, table=table.reset_index(drop=True),
        spread="cell: median and half of its 95 % interval; framed: fastest; darker: faster",
    )  # fmt: skip


def pin(frame: pd.DataFrame) -> Plot:
    """L2 pinning with its cost left out and counted in, per mode, beside the unpinned kernel."""
    costs = _of_experiment(frame, "pin_cost")
    keys = ["dataset", "variant", "l2_mode"]
    both = pool(costs, "pin_and_kernel_time", keys)
    if both.empty:
        raise NoData("no record of metric pin_and_kernel_time")
    counted = {tuple(row[key] for key in keys): row for row in both.to_dict("records")}
    rows = []
    for row in pool(costs, "kernel_time", keys).to_dict("records"):
        name = _row_name(row)
        rows.append(_pin_row(row, f"{name}: kernel", "kernel"))
        total = counted.get(tuple(row[key] for key in keys))
        if total is not None:
            rows.append(_pin_row(total, f"{name}: pin + kernel", "pin+kernel"))
    table = _table(rows)
    table["text"] = [f"{value:.1f}" for value in table["time_us"]]
    figure = _panel_bars(
        table, panel="dataset", value="time_us", title="L2 pinning: kernel alone, and pin + kernel",
        axis="µs a table",
    )  # fmt: skip
    return Plot(figure=figure, table=table.drop(columns="text"))


def occupancy(frame: pd.DataFrame) -> Plot:
    """Theoretical occupancy, registers and spills of every kernel, a panel per architecture."""
    static = _of_experiment(frame, "static")
    keys = ["arch", "variant"]
    shares = pool(static, "occupancy", keys).sort_values(
        "arch", key=lambda column: column.str.extract(r"(\d+)", expand=False).astype(int)
    )
    if shares.empty:
        raise NoData("no record of metric occupancy")
    registers = _by_key(pool(static, "registers", keys), keys)
    spills = _by_key(pool(static, "spill_bytes", keys), keys)
    rows = []
    for row in shares.to_dict("records"):
        key = (row["arch"], row["variant"])
        regs, spill = registers.get(key), spills.get(key)
        text = f"{row['median']:.3g} %"
        if regs is not None:
            text += f", {regs:g} regs"
        if spill:
            text += f" +{spill:g} B"
        rows.append(
            {
                "arch": row["arch"],
                "row": NAMES.get(row["variant"], row["variant"]),
                "occupancy_percent": row["median"],
                "low": row["low"],
                "high": row["high"],
                "registers": regs,
                "spill_bytes": spill,
                "n": row["n"],
                "evidence": row["evidence"],
                "variant": row["variant"],
                "text": text,
            }
        )
    table = _table(rows)
    figure = _panel_bars(
        table, panel="arch", value="occupancy_percent", reach=100.0, text_room=0.75,
        across=3, title="Theoretical occupancy of the compiled kernels (registers, bytes spilled)",
        axis="occupancy, %",
    )  # fmt: skip
    return Plot(
        figure=figure,
        table=table.drop(columns="text"),
        spread="one compiled kernel a bar, no spread",
    )


def upstream(frame: pd.DataFrame) -> Plot:
    """Speed-up of the authors' designs over their own baseline, a panel per dataset.

    One process a design, so drift between processes is in it. Rows name the cap on registers.
    """
    if frame.empty or "experiment" not in frame or "cap" not in frame:
        raise NoData("no record of the authors' own code (lane upstream)")
    part = frame[frame["experiment"].astype(str).str.startswith("upstream")]
    times = pool(part, "kernel_time", ["dataset", "variant", "cap", "trace", "hot_list"])
    if times.empty:
        raise NoData("no record of metric kernel_time of the authors' own code (lane upstream)")
    rows = _over_baseline(times, "base", _upstream_name)
    rows["text"] = [f"{value:.2f}×" for value in rows["speedup"]]
    figure = _panel_bars(
        rows, panel="dataset", value="speedup", axis="speed-up over their baseline", mark=1.0,
        title="The authors' own code on PyTorch 2.1.0: speed-up over their baseline",
        labels=_trace_labels(times),
    )  # fmt: skip
    return Plot(figure=figure, table=rows.drop(columns="text"))


def _times(frame: pd.DataFrame, experiment: str, launch: str = "") -> pd.DataFrame:
    times = pool(_of_experiment(frame, experiment), "kernel_time", KEYS)
    if launch and not times.empty:
        times = times[times["launch"].isin([launch, ""])]
    if times.empty:
        raise NoData(f"no record of metric kernel_time of experiment {experiment}")
    return times


def _of_experiment(frame: pd.DataFrame, experiment: str) -> pd.DataFrame:
    if frame.empty or "experiment" not in frame:
        raise NoData(f"no record of experiment {experiment}")
    part = frame[frame["experiment"] == experiment]
    if part.empty:
        raise NoData(f"no record of experiment {experiment}")
    return part


def _over_baseline(
    times: pd.DataFrame,
    baseline: str,
    name: Callable[[Row], str],
    same: tuple[str, ...] = ("dataset",),
) -> pd.DataFrame:
    """Speed-up of each row over the baseline's row that agrees in the columns `same`."""
    bases = {
        tuple(row[key] for key in same): row
        for row in times[times["variant"] == baseline].to_dict("records")
    }
    if not bases:
        raise NoData(f"the baseline {baseline} was not measured")
    rows = []
    for row in times.to_dict("records"):
        base = bases.get(tuple(row[key] for key in same))
        if base is None:
            continue
        ratio = ratio_interval(base["samples"], row["samples"])
        rows.append(
            {
                **{key: row[key] for key in times.columns if key in (*same, "variant", "l2_mode")},
                "row": name(row),
                "speedup": ratio.value,
                "low": ratio.low,
                "high": ratio.high,
                "time_us": row["median"],
                "baseline_time_us": base["median"],
                "n": row["n"],
                "evidence": join_evidence(row["evidence"], base["evidence"]),
            }
        )
    return _table(rows)


def _panel_bars(
    table: pd.DataFrame,
    *,
    panel: str,
    value: str,
    title: str,
    axis: str,
    mark: float | None = None,
    reach: float | None = None,
    text_room: float = 0.34,
    across: int = 5,
    labels: dict[str, str] | None = None,
) -> Figure:
    """One panel per value of `panel`, one bar per `row`; rows missing in a panel say so."""
    panels = in_order(table[panel], DATASETS)
    order = _row_order(table)
    top = reach if reach is not None else max(float(table["high"].max()), mark or 0.0)
    figure, axes = new_panels(len(panels), len(order), title=title, across=across)
    for place, name in zip(axes, panels, strict=True):
        part = {row["row"]: row for row in table[table[panel] == name].to_dict("records")}
        cells = [part.get(row) for row in order]
        bars(
            place,
            order,
            [float("nan") if cell is None else float(cell[value]) for cell in cells],
            low=[0.0 if cell is None else float(cell["low"]) for cell in cells],
            high=[0.0 if cell is None else float(cell["high"]) for cell in cells],
            colours=[PALETTE["grey"] if cell is None else _colour(cell) for cell in cells],
            texts=["not measured" if cell is None else str(cell["text"]) for cell in cells],
            reach=top,
            text_room=text_room,
            mark=mark,
        )
        place.set_title((labels or {}).get(name, name))
        place.set_xlabel(axis)
    return figure


def _heat(axis: Axes, part: pd.DataFrame, distances: list[int], warps: list[int]) -> None:
    grid = part.pivot(index="warps_per_sm", columns="distance", values="median").reindex(
        index=warps, columns=distances
    )
    low, high = float(part["median"].min()), float(part["median"].max())
    axis.imshow(grid.to_numpy(), cmap="cividis", vmin=low, vmax=high, aspect="auto", origin="lower")
    axis.set_xticks(range(len(distances)), labels=[str(d) for d in distances])
    axis.set_yticks(range(len(warps)), labels=[str(w) for w in warps])
    for cell in part.to_dict("records"):
        x, y = distances.index(cell["distance"]), warps.index(cell["warps_per_sm"])
        bright = high > low and (cell["median"] - low) / (high - low) > 0.55
        half = (cell["high"] - cell["low"]) / 2
        axis.text(
            x,
            y,
            f"{cell['median']:.1f}\n±{half:.1f}",
            ha="center",
            va="center",
            fontsize=6.5,
            color="#111111" if bright else "#ffffff",
        )
        if cell["median"] == low:
            corner = (x - 0.47, y - 0.47)
            axis.add_patch(
                Rectangle(corner, 0.94, 0.94, fill=False, edgecolor=PALETTE["vermilion"], lw=2)
            )


def _pin_row(row: Row, name: str, counted: str) -> dict[str, Any]:
    return {
        "dataset": row["dataset"],
        "row": name,
        "counted": counted,
        "time_us": row["median"],
        "low": row["low"],
        "high": row["high"],
        "n": row["n"],
        "evidence": row["evidence"],
        "variant": row["variant"],
        "l2_mode": row["l2_mode"],
    }


def _row_name(row: Row) -> str:
    name = NAMES.get(str(row["variant"]), str(row["variant"]))
    if "emulated" in str(row.get("evidence")):
        name += " (emulated)"
    mode = str(row.get("l2_mode") or "")
    return f"{name} [{MODES.get(mode, mode)}]" if mode else name


def _upstream_name(row: Row) -> str:
    plain = {
        **NAMES,
        "base": "Baseline",
        "optmt": "OptMT",
        "rpf_l2p": "RPF+L2P",
        "lmpf": "LMPF+L2P",
    }
    name = plain.get(str(row["variant"]), str(row["variant"]))
    if row["variant"] != "base":
        name += ", no cap" if row["cap"] == "none" else f", cap {row['cap']}"
    return name + (" [nothing pinned on low_hot]" if row["hot_list"] == "as_is" else "")


def _trace_labels(times: pd.DataFrame) -> dict[str, str]:
    sources = times.drop_duplicates("dataset").set_index("dataset")["trace"]
    return {str(name): f"{name}\n(trace: {source})" for name, source in sources.items()}


def _row_order(table: pd.DataFrame) -> list[str]:
    variants = in_order(table["variant"], VARIANTS)
    ranked = sorted(
        dict.fromkeys(zip(table["row"], table["variant"], strict=True)),
        key=lambda pair: variants.index(pair[1]),
    )
    return [row for row, _ in ranked]


def _colour(row: Row) -> str:
    if row.get("counted") == "pin+kernel":
        return PALETTE["vermilion"]
    families = {"stock21": "purple", "stock": "purple", "base": "grey", "rpf_l2p": "blue",
                "fbgemm": "orange", "best": "green"}  # fmt: skip
    return PALETTE[families.get(str(row["variant"]), "sky")]


def _limit_labels(table: pd.DataFrame) -> dict[str, str]:
    limits = table.drop_duplicates("dataset").set_index("dataset")["limit_time_us"]
    return {str(name): f"{name}\n(limit {value:.1f} µs)" for name, value in limits.items()}


def _share(shares: Mapping[Any, float], key: tuple[str, ...]) -> float:
    return shares.get(key, float("nan"))


def _by_key(table: pd.DataFrame, keys: list[str]) -> dict[tuple[str, ...], float]:
    return {tuple(row[key] for key in keys): row["median"] for row in table.to_dict("records")}


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    if not rows:
        raise NoData("no records that fit together (a baseline or a limit is missing)")
    return pd.DataFrame(rows)

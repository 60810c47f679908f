"""The figures of the RAP recipe: from the record table to matplotlib figures.

Throughput is samples per second of the slowest rank; a sample is one timed round. The last two
figures are of the authors' own programs (lane upstream), whose logs give one number per run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan, nan
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from ae.figures.draw import INTERVAL_WORDS, PALETTE, NoData, Plot, new_panels, row_bars
from ae.figures.summary import in_order, join_evidence, pool, pool_by, ratio_interval, rows_of

NAMES = {
    "cpu": "CPU", "sequential_timeslice": "Sequential (artifact)", "sequential": "Sequential",
    "sequential_fused": "Sequential (fused)", "stream_sync": "CUDA stream (artifact)",
    "stream": "CUDA stream", "stream_priority": "CUDA stream (priority)", "mps": "MPS",
    "rap_no_mapping": "RAP w/o mapping", "rap_no_fusion": "RAP w/o fusion", "rap": "RAP",
    "rap_mps": "RAP (MPS)", "rap_plus": "RAP+", "rap_green": "RAP+ (green context)",
    "ideal_barrier": "Ideal (artifact)", "ideal": "Ideal",
}  # fmt: skip
COLOURS = {
    "mps": "orange", "stream": "sky", "stream_priority": "sky", "rap_no_mapping": "purple",
    "rap_no_fusion": "purple", "rap": "blue", "rap_mps": "blue", "rap_plus": "green",
    "rap_green": "green", "ideal": "black",
}  # fmt: skip
# Lines of variants that share a colour; bars have their names beside them.
DASHES: dict[str, Any] = {"sequential_fused": (0, (5, 1.5))}
MARKERS = {
    "sequential": "s",
    "sequential_fused": "X",
    "stream": "^",
    "mps": "D",
    "rap": "o",
    "rap_plus": "v",
}
RATIO_TICKS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10]
STAGES = ["emb_fwd", "mlp_fwd", "mlp_bwd", "emb_bwd", "grad_comm"]
LANES = {"train": "blue", "preprocess": "orange", "copy": "grey", "comm": "purple"}
SOLVERS = {
    "unfused": "unfused", "asap": "as soon as possible", "highs": "HiGHS", "gurobi": "Gurobi",
}  # fmt: skip
PROVING = ("highs", "gurobi")
CELL = ["gpus", "plan", "batch"]
UPSTREAM_SPREAD = "bars: median over repeats; one number per run of the authors' programs"

Row = Mapping[Any, Any]  # one row of a record table


def fig9(frame: pd.DataFrame) -> Plot:
    """Figure 9: throughput over the CPU baseline of the same cell (without it, over the stream)."""
    there = set(_of(frame, "fig9")["variant"])
    baseline = "stream" if "cpu" not in there and "stream" in there else "cpu"
    return _speedups(frame, "fig9", baseline, f"End to end: throughput over {NAMES[baseline]}")


def fig10(frame: pd.DataFrame) -> Plot:
    """Figure 10: throughput over Sequential of the same cell; the line is training alone."""
    title = "What each part brings, over Sequential (line: ideal)"
    return _speedups(frame, "fig10", "sequential", title, ideal=True)


def heavy(frame: pd.DataFrame) -> Plot:
    """As Figure 10, with plans of ours that load a current GPU."""
    return _speedups(
        frame, "heavy", "sequential", "Heavier plans, over Sequential (line: ideal)", ideal=True
    )


def end_to_end(frame: pd.DataFrame) -> Plot:
    """The authors' Figure 9: throughput over the CPU baseline of the same cell."""
    title = "The authors' programs: throughput over their CPU baseline"
    return _speedups(frame, "figure9", "cpu", title, spread=UPSTREAM_SPREAD)


def breakdown(frame: pd.DataFrame) -> Plot:
    """The authors' Figure 10: throughput over Sequential of the same cell."""
    title = "The authors' programs, over Sequential (line: ideal)"
    return _speedups(frame, "figure10", "sequential", title, ideal=True, spread=UPSTREAM_SPREAD)


def predictor(frame: pd.DataFrame) -> Plot:
    """Predicted against measured latency of every kernel, a panel per operator family."""
    keys = ["family", "op", "rows", "width", "fused", "split"]
    part = _of(frame, "predictor")
    told = pool_by(part, "prediction", keys)
    table = pool(part, "latency", keys).rename(columns={"median": "measured_us"})
    table["predicted_us"] = [
        told[key]["median"] if (key := tuple(row)) in told else nan
        for row in table[keys].to_numpy()
    ]
    table["evidence"] = [
        join_evidence(word, told[key]["evidence"]) if (key := tuple(row)) in told else word
        for word, row in zip(table["evidence"], table[keys].to_numpy(), strict=True)
    ]
    table = table[table["predicted_us"].notna()].drop(columns=["samples", "unit", "low", "high"])
    if table.empty:
        raise NoData("no kernel with a predicted and a measured latency")
    table["error_percent"] = 100 * (table["predicted_us"] / table["measured_us"] - 1)
    families = list(dict.fromkeys(table["family"]))
    figure, axes = new_panels(
        len(families), 9, title="Latency predictor: predicted against measured", across=3
    )
    both = table[["measured_us", "predicted_us"]].to_numpy()
    ends = [both.min() / 1.3, both.max() * 1.3]
    for axis, family in zip(axes, families, strict=True):
        axis.fill_between(ends, [0.9 * x for x in ends], [1.1 * x for x in ends],
                          color="#dddddd", linewidth=0)  # fmt: skip
        for split, colour in (("train", "sky"), ("test", "vermilion")):
            points = table[(table["family"] == family) & (table["split"] == split)]
            if points.empty:
                continue
            share = 100 * (points["error_percent"].abs() <= 10).mean()
            axis.scatter(
                points["measured_us"], points["predicted_us"], s=9, linewidth=0,
                color=PALETTE[colour], alpha=0.8,
                label=f"{split}: {share:.0f} % of {len(points)} within 10 %",
            )  # fmt: skip
        axis.set(xscale="log", yscale="log", xlim=ends, xlabel="measured, µs", title=family)
        axis.set_ylim(*ends)
        axis.legend(fontsize=7, frameon=False, loc="upper left", handletextpad=0.1)
        _plain_log(axis)
    for axis in axes[::3]:
        axis.set_ylabel("predicted, µs")
    spread = "a point: one kernel, median of its launches; band: within 10 %"
    return Plot(figure=figure, table=table.reset_index(drop=True), spread=spread)


def capacity(frame: pd.DataFrame) -> Plot:
    """Time of each training stage and the preprocessing that it takes up for free."""
    part, keys = _of(frame, "capacity"), [*CELL, "stage"]
    free, rows = pool_by(part, "capacity", keys), []
    for key, time in pool_by(part, "stage_time", keys).items():
        for word, row in (("time", time), ("capacity", free.get(key))):
            if row is not None:
                rows.append(
                    {
                        "cell": _cell(row),
                        **{name: row[name] for name in keys},
                        "what": word,
                        "value_us": row["median"],
                        "low": row["low"],
                        "high": row["high"],
                        "share_of_stage": row["median"] / time["median"],
                        "n": row["n"],
                        "evidence": row["evidence"],
                    }
                )
    table = _table(rows, "no record of metric stage_time")
    cells = list(dict.fromkeys(table["cell"]))
    lines = [(s, w) for s in in_order(table["stage"], STAGES) for w in ("time", "capacity")]
    figure, axes = new_panels(
        len(cells), len(lines), across=4,
        title="Training stages: time, and capacity for preprocessing",
    )  # fmt: skip
    for axis, cell in zip(axes, cells, strict=True):
        found = table[table["cell"] == cell].to_dict("records")
        there = {(row["stage"], row["what"]): row for row in found}
        here = [there.get(line) for line in lines]
        row_bars(
            axis, [f"{stage}: {word}" for stage, word in lines], here, "value_us",
            colours=[PALETTE["blue" if word == "time" else "orange"] for _, word in lines],
            texts=[_stage_words(row) for row in here], reach=max(row["high"] for row in found),
            text_room=0.6,
        )  # fmt: skip
        axis.set_title(cell)
        axis.set_xlabel("µs (share of the stage's time)")
    spread = INTERVAL_WORDS if table["n"].max() > 1 else "one measurement a bar, no spread"
    return Plot(figure=figure, table=table, spread=spread)


def ratio(frame: pd.DataFrame) -> Plot:
    """Throughput over ideal against the work of preprocessing over that of training."""
    part = _of(frame, "ratio")
    keys = [*CELL, "ratio"]
    table = _over(pool(part, "throughput", [*keys, "variant"]), "ideal", keys)
    table = table[table["variant"] != "ideal"].rename(columns={"speedup": "over_ideal"})
    measured = pool_by(part, "measured_ratio", keys)
    table["measured_ratio"] = [
        measured[key]["median"] if (key := tuple(row)) in measured else float(row[-1])
        for row in table[keys].to_numpy()
    ]
    cells = list(dict.fromkeys(table["cell"]))
    figure, axes = new_panels(
        len(cells), 9, title="Where sharing stops paying: throughput over ideal", across=3
    )
    for axis, cell in zip(axes, cells, strict=True):
        for variant in in_order(table["variant"], list(NAMES)):
            line = table[(table["cell"] == cell) & (table["variant"] == variant)]
            line = line.sort_values("measured_ratio")
            axis.errorbar(
                line["measured_ratio"], line["over_ideal"], color=_colour(variant), capsize=1.8,
                yerr=[line["over_ideal"] - line["low"], line["high"] - line["over_ideal"]],
                linewidth=1.2, markersize=4, marker=MARKERS.get(variant, "x"),
                linestyle=DASHES.get(variant, "-"),
                label=NAMES.get(variant, variant),
            )  # fmt: skip
        axis.axhline(1.0, color=PALETTE["black"], linewidth=0.8, linestyle=(0, (4, 3)))
        axis.set(xscale="log", title=cell, xlabel="preprocessing / training time alone")
        axis.set_xticks(RATIO_TICKS)
        axis.set_xlim(table["measured_ratio"].min() / 1.2, table["measured_ratio"].max() * 1.2)
        axis.set_ylim(0, 1.1)
        axis.yaxis.grid(True)
        _plain_log(axis, only="x")
    axes[0].set_ylabel("throughput over ideal")
    axes[0].legend(fontsize=7.5, frameon=False, loc="lower left")
    return Plot(
        figure=figure,
        table=table.reset_index(drop=True),
        spread="whiskers: bootstrap 95 % interval",
    )


def timeline(frame: pd.DataFrame) -> Plot:
    """One iteration on the most GPUs measured: a row per lane, a panel per variant and cell."""
    found = [row for row in rows_of(_of(frame, "timeline")) if row["metric"] == "span"]
    if not found:
        raise NoData("no record of metric span")
    most = max((str(row.get("gpus") or "1") for row in found), key=int)
    rows = [
        {
            **{key: str(row.get(key) or "") for key in [*CELL, "variant", "lane", "name", "index"]},
            "cell": _cell(row),
            "start_us": float(row["samples"][0]),
            "end_us": float(row["samples"][1]),
            "n": 1,
            "evidence": row["evidence"],
        }
        for row in found
        if str(row.get("gpus") or "1") == most and len(row["samples"]) >= 2
    ]
    table = _table(rows, "no span with a start and an end")
    cells = list(dict.fromkeys(table["cell"]))
    variants = in_order(table["variant"], list(NAMES))
    lanes = in_order(table["lane"], list(LANES))
    height = 1.6 + len(variants) * (0.5 + 0.24 * len(lanes))
    figure = Figure(figsize=(2.0 + 4.6 * len(cells), height), layout="constrained")
    layout = figure.get_layout_engine()
    assert layout is not None
    layout.set(rect=(0.0, 0.55 / height, 1.0, 1.0 - 0.55 / height))  # type: ignore[call-arg]
    figure.suptitle("One iteration: what runs beside what", fontsize=11.5, fontweight="bold")
    grid = figure.subplots(len(variants), len(cells), squeeze=False, sharex="col", sharey=True)
    for column, cell in enumerate(cells):
        reach = float(table[table["cell"] == cell]["end_us"].max())
        for line, variant in enumerate(variants):
            axis = grid[line][column]
            part = table[(table["cell"] == cell) & (table["variant"] == variant)]
            _lanes(axis, part, lanes, reach)
            where = "" if line else f"   ({', '.join(cell.splitlines())})"
            axis.set_title(NAMES.get(variant, variant) + where, loc="left", fontsize=9)
        grid[-1][column].set_xlabel("µs from the start of the iteration")
    return Plot(figure=figure, table=table, spread="one iteration, no spread")


def fusion(frame: pd.DataFrame) -> Plot:
    """Launches of a batch per graph: unfused, as soon as possible, and by the integer programme."""
    part, keys = _of(frame, "fusion"), ["graph", "solver"]
    columns = {"solve_time": "solve_time_s", "objective": "objective",
               "upper_bound": "upper_bound", "gap": "gap_percent"}  # fmt: skip
    beside = {metric: pool_by(part, metric, keys) for metric in columns}
    rows = []
    for key, row in pool_by(part, "launches", keys).items():
        found = {metric: by_key[key] for metric, by_key in beside.items() if key in by_key}
        rows.append(
            {
                "graph": row["graph"],
                "solver": row["solver"],
                "launches": row["median"],
                "low": row["low"],
                "high": row["high"],
                **{
                    column: found[metric]["median"] if metric in found else nan
                    for metric, column in columns.items()
                },
                "n": row["n"],
                "evidence": join_evidence(
                    row["evidence"], *(one["evidence"] for one in found.values())
                ),
            }
        )
    table = _table(rows, "no record of metric launches")
    graphs = list(dict.fromkeys(table["graph"]))
    solvers = in_order(table["solver"], list(SOLVERS))
    figure, axes = new_panels(
        len(graphs), len(solvers), across=3,
        title="Horizontal fusion: launches a batch (time to solve, proved gap)",
    )  # fmt: skip
    for axis, graph in zip(axes, graphs, strict=True):
        there = {row["solver"]: row for row in table[table["graph"] == graph].to_dict("records")}
        here = [there.get(solver) for solver in solvers]
        row_bars(
            axis, [SOLVERS.get(solver, solver) for solver in solvers], here, "launches",
            colours=[PALETTE["blue" if solver in PROVING else "grey"] for solver in solvers],
            texts=[_fusion_words(row) for row in here],
            reach=max(row["high"] for row in there.values()), text_room=0.9,
        )  # fmt: skip
        axis.set_title(graph)
        axis.set_xlabel("launches")
    return Plot(figure=figure, table=table, spread="one solution a bar, no spread")


def _of(frame: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """The records of an experiment; `figure9` is all of those that begin so."""
    if frame.empty or "experiment" not in frame:
        raise NoData(f"no record of experiment {experiment}")
    names = frame["experiment"].astype(str)
    part = frame[
        names.str.startswith("figure9") if experiment == "figure9" else names == experiment
    ]
    if part.empty:
        raise NoData(f"no cell with records of experiment {experiment}")
    return part


def _over(found: pd.DataFrame, baseline: str, keys: Sequence[str] = CELL) -> pd.DataFrame:
    """Every row's throughput over that of the baseline which agrees in `keys`."""
    every = found.to_dict("records")
    bases = {tuple(row[k] for k in keys): row for row in every if row["variant"] == baseline}
    rows = []
    for row in every:
        base = bases.get(tuple(row[key] for key in keys))
        if base is None:
            continue
        over = ratio_interval(row["samples"], base["samples"])
        rows.append(
            {
                "cell": _cell(row),
                **{key: row[key] for key in keys},
                "variant": row["variant"],
                "speedup": over.value,
                "low": over.low,
                "high": over.high,
                "samples_per_s": row["median"],
                "n": row["n"],
                "evidence": join_evidence(row["evidence"], base["evidence"]),
            }
        )
    return _table(rows, f"no cell with throughput of {baseline} and of another variant")


def _speedups(
    frame: pd.DataFrame, experiment: str, baseline: str, title: str, *, ideal: bool = False,
    spread: str = INTERVAL_WORDS,
) -> Plot:  # fmt: skip
    """A panel per cell, a bar per variant; with `ideal`, that variant is a line."""
    table = _over(pool(_of(frame, experiment), "throughput", [*CELL, "variant"]), baseline)
    cells = list(dict.fromkeys(table["cell"]))
    names = in_order(table["variant"], list(NAMES))
    names = [name for name in names if name != "ideal" or not ideal]
    figure, axes = new_panels(len(cells), len(names), title=title, across=4)
    reach = float(table["high"].max())
    for axis, cell in zip(axes, cells, strict=True):
        rows = {row["variant"]: row for row in table[table["cell"] == cell].to_dict("records")}
        best = float(rows["ideal"]["speedup"]) if ideal and "ideal" in rows else nan
        here = [rows.get(name) for name in names]
        row_bars(
            axis, [NAMES.get(name, name) for name in names], here, "speedup",
            colours=[_colour(name) for name in names],
            texts=[_speedup_words(row, best) for row in here],
            reach=reach, text_room=0.65 if ideal else 0.34, mark=1.0,
        )  # fmt: skip
        if not isnan(best):
            axis.axvline(best, color=PALETTE["vermilion"], linewidth=1.0)
        axis.set_title(cell)
        axis.set_xlabel("speed-up")
    return Plot(figure=figure, table=table, spread=spread)


def _lanes(axis: Axes, part: pd.DataFrame, lanes: Sequence[str], reach: float) -> None:
    for place, lane in enumerate(lanes):
        spans = part[part["lane"] == lane]
        widths = spans["end_us"] - spans["start_us"]
        axis.broken_barh(
            list(zip(spans["start_us"], widths, strict=True)), (place - 0.38, 0.76),
            color=PALETTE[LANES.get(lane, "green")], linewidth=0.3,  # the shortest are seen too
        )  # fmt: skip
        for row in spans.to_dict("records"):
            width = row["end_us"] - row["start_us"]
            if width > 0.013 * reach * (len(row["name"]) + 1):
                middle = (row["start_us"] + row["end_us"]) / 2
                axis.text(middle, place, row["name"], ha="center", va="center_baseline",
                          fontsize=6.5, color="white")  # fmt: skip
    axis.set_yticks(range(len(lanes)), labels=list(lanes))
    axis.set_ylim(len(lanes) - 0.45, -0.55)
    axis.set_xlim(0, reach * 1.01)
    axis.tick_params(axis="y", length=0)
    axis.xaxis.grid(True)


def _fusion_words(row: Row | None) -> str:
    words = []
    if row and not isnan(row["solve_time_s"]):
        seconds = row["solve_time_s"]
        words.append(f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms")
    if row and not isnan(row["gap_percent"]) and row["solver"] in PROVING:
        words.append(f"gap {row['gap_percent']:.3g} %")
    return (f"{row['launches']:.0f}" if row else "") + (f" ({', '.join(words)})" if words else "")


def _stage_words(row: Row | None) -> str:
    share = f" ({100 * row['share_of_stage']:.0f} %)" if row and row["what"] == "capacity" else ""
    return f"{row['value_us']:,.0f}{share}" if row else ""


def _speedup_words(row: Row | None, ideal: float) -> str:
    share = "" if row is None or isnan(ideal) else f" ({100 * row['speedup'] / ideal:.0f} %)"
    return f"{row['speedup']:.2f}×{share}" if row else ""


def _cell(row: Row) -> str:
    gpus = row.get("gpus") or "?"
    words = f"{gpus} GPU{'' if gpus == '1' else 's'}, plan {row.get('plan')}"
    return f"{words}\nbatch {row.get('batch')}"


def _colour(variant: str) -> str:
    return PALETTE[COLOURS.get(variant, "grey")]


def _plain_log(axis: Axes, only: str = "both") -> None:
    """Ticks of a logarithmic axis as plain numbers."""
    for name, one in (("x", axis.xaxis), ("y", axis.yaxis)):
        if only in (name, "both"):
            one.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            one.set_minor_formatter(NullFormatter())


def _table(rows: list[dict[str, Any]], why: str) -> pd.DataFrame:
    if not rows:
        raise NoData(why)
    return pd.DataFrame(rows)

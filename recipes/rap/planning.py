"""RAP's figures of its planner and of one iteration: predictor, capacity, timeline, fusion."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ae.figures.draw import INTERVAL_WORDS, PALETTE, NoData, Plot, new_panels
from ae.figures.summary import in_order, join_evidence, pool, pool_by, rows_of
from ae.recipe.code import load_code

_draw = load_code(Path(__file__).parent, "drawing")
CELL, NAMES, Row = _draw.CELL, _draw.NAMES, _draw.Row

FAMILIES = {
    "1d": "Elementwise", "bucketize": "Bucketize", "first_x": "FirstX", "ngram": "NGram",
    "one_hot": "OneHot",
}  # fmt: skip
STAGES = {
    "emb_fwd": "Embedding forward", "mlp_fwd": "MLP forward", "mlp_bwd": "MLP backward",
    "emb_bwd": "Embedding backward", "grad_comm": "Gradient exchange",
}  # fmt: skip
WORDS = {"time": "takes", "capacity": "hides"}
LANES = {
    "train": ("Training", "blue"), "preprocess": ("Preprocessing", "orange"),
    "copy": ("Copies", "grey"), "comm": ("Communication", "purple"),
}  # fmt: skip
SOLVERS = {
    "unfused": "Unfused", "asap": "As soon as possible", "highs": "HiGHS", "gurobi": "Gurobi",
}  # fmt: skip
PROVING = ("highs", "gurobi")


def predictor(frame: pd.DataFrame) -> Plot:
    """Predicted against measured latency of every kernel, a panel per operator family."""
    keys = ["family", "op", "rows", "width", "fused", "split"]
    part = _draw.records_of(frame, "predictor")
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
    off = 100 * (table["predicted_us"] / table["measured_us"] - 1)
    table.insert(table.columns.get_loc("predicted_us"), "error_percent", off)
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
            hits = (points["error_percent"].abs() <= 10).sum()
            axis.scatter(
                points["measured_us"], points["predicted_us"], s=9, linewidth=0,
                color=PALETTE[colour], alpha=0.8,
                label=f"{split}: {hits} of {len(points)} within 10 %",
            )  # fmt: skip
        axis.set(
            xscale="log",
            yscale="log",
            xlim=ends,
            xlabel="Measured, µs",
            title=FAMILIES.get(family, family),
        )
        axis.set_ylim(*ends)
        axis.legend(fontsize=7, frameon=False, loc="upper left", handletextpad=0.1)
        _draw.plain_log(axis)
    for axis in axes[::3]:
        axis.set_ylabel("Predicted, µs")
    spread = "a point: one kernel, median of its launches; band: within 10 %"
    table = table.reset_index(drop=True)
    return Plot(figure=figure, table=table, spread=spread, over="measured_us")


def capacity(frame: pd.DataFrame) -> Plot:
    """Time of each training stage and the preprocessing that it takes up for free."""
    part, keys = _draw.records_of(frame, "capacity"), [*CELL, "stage"]
    free, rows = pool_by(part, "capacity", keys), []
    for key, time in pool_by(part, "stage_time", keys).items():
        for word, row in (("time", time), ("capacity", free.get(key))):
            if row is not None:
                rows.append(
                    {
                        "cell": _draw.cell_words(row),
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
    table = _draw.table_of(rows, "no record of metric stage_time")
    cells = list(dict.fromkeys(table["cell"]))
    lines = [(s, w) for s in in_order(table["stage"], STAGES) for w in ("time", "capacity")]
    figure, axes = new_panels(
        len(cells), len(lines), across=4,
        title="What each training stage takes, and the preprocessing that it hides",
    )  # fmt: skip
    for axis, cell in zip(axes, cells, strict=True):
        found = table[table["cell"] == cell].to_dict("records")
        there = {(row["stage"], row["what"]): row for row in found}
        here = [there.get(line) for line in lines]
        _draw.numbered_rows(
            axis, [f"{STAGES.get(stage, stage)} {WORDS[word]}" for stage, word in lines], here,
            "value_us", texts=[_stage_words(row) for row in here], first=0.0, base=0.0,
            colours=[PALETTE["blue" if word == "time" else "orange"] for _, word in lines],
            reach=float(table["high"].max()), room=0.3,
        )  # fmt: skip
        axis.set_title(cell)
        axis.set_xlabel("µs (share of the stage's time)", loc="left")
    spread = INTERVAL_WORDS if table["n"].max() > 1 else "one measurement a bar, no spread"
    return Plot(figure=figure, table=table, spread=spread)


def timeline(frame: pd.DataFrame) -> Plot:
    """One iteration on the most GPUs measured: a row per lane, a panel per variant and cell."""
    found = [row for row in rows_of(_draw.records_of(frame, "timeline")) if row["metric"] == "span"]
    if not found:
        raise NoData("no record of metric span")
    most = max((str(row.get("gpus") or "1") for row in found), key=int)
    first: dict[tuple[str, ...], str] = {}  # of several processes this one is drawn
    rows = [
        {
            **{key: str(row.get(key) or "") for key in [*CELL, "variant", "lane", "name"]},
            "cell": _draw.cell_words(row),
            "start_us": float(row["samples"][0]),
            "end_us": float(row["samples"][1]),
            "n": 1,
            "evidence": row["evidence"],
        }
        for row in found
        if str(row.get("gpus") or "1") == most
        and len(row["samples"]) >= 2
        and row["process"]
        == first.setdefault(tuple(str(row.get(key)) for key in [*CELL, "variant"]), row["process"])
    ]
    table = _as_drawn(_draw.table_of(rows, "no span with a start and an end"))
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
    plotted = table.drop(columns="cell")  # the same as its gpus, plan and batch, in words
    return Plot(figure=figure, table=plotted, spread="one iteration, no spread")


def fusion(frame: pd.DataFrame) -> Plot:
    """Launches of a batch per graph: unfused, as soon as possible, and by the integer programme."""
    part, keys = _draw.records_of(frame, "fusion"), ["graph", "solver"]
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
    table = _draw.table_of(rows, "no record of metric launches")
    graphs = list(dict.fromkeys(table["graph"]))
    solvers = in_order(table["solver"], list(SOLVERS))
    figure, axes = new_panels(
        len(graphs), len(solvers), across=3,
        title="Horizontal fusion: launches a batch (time to solve, proved gap)",
    )  # fmt: skip
    for axis, graph in zip(axes, graphs, strict=True):
        there = {row["solver"]: row for row in table[table["graph"] == graph].to_dict("records")}
        here = [there.get(solver) for solver in solvers]
        _draw.numbered_rows(
            axis, [SOLVERS.get(solver, solver) for solver in solvers], here, "launches",
            colours=[PALETTE["blue" if solver in PROVING else "grey"] for solver in solvers],
            texts=[_fusion_words(row) for row in here], first=0.0, base=0.0,
            reach=max(row["high"] for row in there.values()), room=0.54, most_ticks=3,
        )  # fmt: skip
        axis.set_title(_graph_words(graph))
        axis.set_xlabel("Launches", loc="left")
    return Plot(figure=figure, table=table, spread="one solution a bar, no spread")


def _as_drawn(table: pd.DataFrame) -> pd.DataFrame:
    """Spans as they are seen: one where the gap between two is a quarter of a pixel or less, and
    without a name that has no room."""
    reach = table.groupby("cell")["end_us"].transform("max")
    room = (table["end_us"] - table["start_us"]) / reach
    names = table["name"].where(room > 0.013 * (table["name"].str.len() + 1), "")
    table = table.assign(name=names, gap=reach / 2000).sort_values("start_us", kind="stable")
    drawn: list[Row] = []
    for _, spans in table.groupby([*CELL, "variant", "lane"], sort=False):
        last: Row = {}
        for row in spans.to_dict("records"):
            one = last and not last["name"] and not row["name"]
            if one and row["start_us"] - last["end_us"] <= row["gap"]:
                last["end_us"] = max(last["end_us"], row["end_us"])
            else:
                drawn.append(last := row)
    return pd.DataFrame(drawn).drop(columns="gap")


def _lanes(axis: Axes, part: pd.DataFrame, lanes: Sequence[str], reach: float) -> None:
    for place, lane in enumerate(lanes):
        spans = part[part["lane"] == lane]
        widths = spans["end_us"] - spans["start_us"]
        axis.broken_barh(
            list(zip(spans["start_us"], widths, strict=True)), (place - 0.38, 0.76),
            color=PALETTE[LANES.get(lane, (lane, "green"))[1]],
            linewidth=0.3,  # the shortest are seen too
        )  # fmt: skip
        for row in spans[spans["name"] != ""].to_dict("records"):
            middle = (row["start_us"] + row["end_us"]) / 2
            axis.text(middle, place, row["name"], ha="center", va="center_baseline",
                      fontsize=6.5, color="white")  # fmt: skip
    axis.set_yticks(range(len(lanes)), labels=[LANES.get(lane, (lane,))[0] for lane in lanes])
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
        words.append(f"gap {row['gap_percent']:.2g} %")
    return (f"{row['launches']:.0f}" if row else "") + (f" ({', '.join(words)})" if words else "")


def _graph_words(graph: str) -> str:
    name, _, size = graph.partition("_")
    count, _, length = size.partition("x")
    return f"{count} random chains of {length}" if length else name.replace("plan", "Plan ")


def _stage_words(row: Row | None) -> str:
    share = f" ({100 * row['share_of_stage']:.0f} %)" if row and row["what"] == "capacity" else ""
    return f"{row['value_us']:,.0f}{share}" if row else ""

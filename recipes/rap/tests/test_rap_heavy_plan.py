"""Where RAP's schedule stops paying, worked out with what an H200 was measured to take.

Latencies and capacities are the reference results' own, so no GPU is needed: long lists, ngram(4),
boxcox.
"""

import json
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
ROOT = Path(__file__).parents[3]
from rap_training.plan.graph import Column, Node, Plan, SparseOutput  # noqa: E402
from rap_training.planner.cost import StageCapacity  # noqa: E402
from rap_training.planner.latency import LatencyModel, Measurement, Shape  # noqa: E402
from rap_training.planner.shortfall import Batch, why_below  # noqa: E402
from rap_training.sharing import rap  # noqa: E402
from rap_training.work import Work  # noqa: E402

POINTS = ROOT / "results/reference/h200/rap/points"
DENSE, SPARSE, BATCH = 13, 26, 4096


def records(point, metric):
    lines = (POINTS / point / "records.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["metric"] == metric]


@pytest.fixture(scope="module")
def costs():
    def shape(of):
        return Shape(of["op"], int(of["rows"]), int(of["width"]), int(of["fused"]))

    measured = [
        Measurement(shape(row["labels"]), row["samples"][0])
        for row in records("predictor", "latency")
    ]
    us, capacity = (
        {row["labels"]["stage"]: row["samples"][0] for row in records("capacity-1-0-4096", metric)}
        for metric in ("stage_time", "capacity")
    )
    stages = tuple(StageCapacity(stage, us[stage], capacity[stage]) for stage in us)
    return rap.Costs(
        latency=LatencyModel(measured, seed=1), stages=(stages,), exchange_us=0.0,
        bytes_per_us=float("inf"),
    )  # fmt: skip


def work_of(width):
    """Lists of `width` ids in every sparse column."""
    columns = [Column(name=f"d{i}", kind="dense") for i in range(DENSE)]
    columns += [
        Column(name=f"s{i}", kind="sparse", width=width, ragged=True, ids=100_000)
        for i in range(SPARSE)
    ]
    steps = {
        "d": (("fill_null", {"value": 1}), ("clamp", {"lo": 0.25, "hi": 64.0}),
              ("boxcox", {"lam": 0.5})),
        "s": (("fill_null", {"value": 0}), ("ngram", {"n": 4}),
              ("sigrid_hash", {"salt": 0, "modulus": 65_536}), ("first_x", {"x": 20})),
    }  # fmt: skip
    nodes, last = [], {}
    for column in columns:
        last[column.name] = column.name
        for op, parameters in steps[column.name[0]]:
            name = f"{column.name}.{op}"
            nodes.append(Node(name=name, op=op, input=last[column.name], parameters=parameters))
            last[column.name] = name
    plan = Plan(
        name="lists", columns=tuple(columns), nodes=tuple(nodes),
        dense=tuple(last[f"d{i}"] for i in range(DENSE)),
        sparse=tuple(SparseOutput(node=last[f"s{i}"], rows=65_536) for i in range(SPARSE)),
        over_arch=(1024, 1),
    )  # fmt: skip
    home = (0,) * SPARSE
    return Work(plan=plan, rank=0, world=1, batch=BATCH, home=home, mapping=home)


def test_short_lists_are_hidden_by_the_schedule(costs):
    plan = rap.plan_rank(work_of(20), costs, solver="asap")
    assert plan.schedule.overflow_us == 0.0


def test_long_lists_exceed_what_training_hides_and_gates_hold_the_rest_back(costs):
    """Half of training alone: every operator writes what the next one reads, and no schedule makes
    that less; and what no stage hides waits for the last one that hides something, which is
    short, though nothing else would keep the GPU busy before. That is why RAP is tried without
    gates too."""
    stages = costs.stages[0]
    training = sum(stage.us for stage in stages)
    hidden = sum(stage.capacity_us for stage in stages)
    plan = rap.plan_rank(work_of(520), costs, solver="asap")
    work = sum(costs.latency.predict(rap.shape_of(launch)) for launch in plan.fused)
    overflow = plan.schedule.overflow_us
    assert work > hidden + training
    assert training / (training + overflow) == pytest.approx(0.5, abs=0.05)
    last = [stage for stage in stages if stage.capacity_us][-1]
    assert sum(part.us for part in plan.schedule.of(last.name)) > 0.9 * overflow > 25 * last.us
    batch = Batch(busy_us=work, kernels=len(plan.fused), longest="sigrid_hash", longest_us=1.0)
    reason = why_below(training + overflow, training, batch, stages)
    assert f"keeps the GPU busy for {work:.1f} us, and training hides {hidden:.1f}" in reason

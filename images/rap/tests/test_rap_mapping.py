"""The search for RAP's mapping: what it predicts, and that it takes no fusion's time."""

from __future__ import annotations

from typing import Any

import pytest
from rap_plans import every_operator
from rap_training.plan.builtin import builtin
from rap_training.plan.graph import Plan
from rap_training.planner.cost import StageCapacity
from rap_training.planner.latency import Shape
from rap_training.sharing import rap
from rap_training.work import DATA_PARALLEL, Work, data_parallel

MIXED = (0, 1, DATA_PARALLEL)


class ByOperators:
    """5 us a launch, and a time for every operator that it fuses."""

    def predict(self, shape: Shape) -> float:
        return 5.0 + len(shape.op) * shape.fused


def work_of(plan: Plan, home: tuple[int, ...], mapping: tuple[int, ...], rank: int = 0) -> Work:
    return Work(plan=plan, rank=rank, world=2, batch=64, home=home, mapping=mapping)


def costs(capacity_us: float = 1e9, *, exchange_us: float = 10.0) -> rap.Costs:
    stages = (StageCapacity("emb_fwd", 100.0, capacity_us), StageCapacity("mlp_fwd", 50.0, 0.0))
    latency: Any = ByOperators()
    return rap.Costs(
        latency=latency, stages=(stages, stages), exchange_us=exchange_us, bytes_per_us=1e5
    )


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("plan", [builtin(0, scale=0.001), builtin(2), every_operator()])
def test_its_kernels_are_those_of_a_plan_that_fits_one_stage(plan: Plan, rank: int) -> None:
    tables = range(len(plan.sparse))
    home = tuple(table % 2 for table in tables)
    for mapping in (home, data_parallel(len(home)), tuple(MIXED[table % 3] for table in tables)):
        work, there = work_of(plan, home, mapping, rank), costs()
        planned = rap.plan_rank(work, there, solver="asap")
        wanted = sum(placed.us for placed in planned.schedule.placed)
        us = rap.fused_us(work_of(plan, home, home), there.latency.predict)(mapping, rank)
        assert us == pytest.approx(wanted)


def test_it_solves_no_fusion_and_moves_work_where_that_saves_more_than_the_exchange(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(rap, "fused")
    plan = builtin(2)
    home = (0,) * len(plan.sparse)
    work, fast = work_of(plan, home, home), costs()

    us = rap.fused_us(work, fast.latency.predict)

    def busiest(mapping: tuple[int, ...]) -> float:
        return max(us(mapping, rank) for rank in (0, 1))

    found, words = rap.search_mapping(work, fast)
    assert (found, words) == rap.search_mapping(work, costs(0.0))  # what stages hide plays no part
    saved = busiest(home) - busiest(found)
    assert saved > 0.2 * busiest(home)
    away = sum(there != 0 for there in found)
    own = busiest(data_parallel(len(home)))
    assert words.startswith(f"{away} of {len(home)} tables' ids are not made where")
    for us in (
        f": {busiest(found):.1f} and 1",
        f"against {busiest(home):.1f} and 0.0",
        f" {own:.1f}",
    ):
        assert us in words
    stays, words = rap.search_mapping(work, costs(exchange_us=2 * saved))
    assert stays == home
    assert words.startswith("0 of ")

"""RAP's plan for one machine: mapping, fused launches and the stages they run beside.

Puts the planner's parts together (docs/papers/rap.md, 3.2 to 3.6): predicted latencies and measured
capacities go in, a mapping of features to GPUs and a schedule per rank come out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np

from rap_training.launches import Launch, fused, launches_of
from rap_training.planner import mapping as mapping_search
from rap_training.planner.cost import StageCapacity
from rap_training.planner.fusion import Fusion
from rap_training.planner.latency import LatencyModel, Shape
from rap_training.planner.schedule import Schedule, schedule
from rap_training.work import DATA_PARALLEL, Work, data_parallel, locality


@dataclass(frozen=True, kw_only=True)
class RapPlan:
    """What one rank runs, in order, and beside which stage; `stages` index `launches`."""

    work: Work
    launches: tuple[Launch, ...]  # as scheduled: some are parts of fused ones
    fused: tuple[Launch, ...]
    stages: Mapping[str, tuple[int, ...]]
    fusion: Fusion
    schedule: Schedule


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What was measured: latencies, the stages of every rank, and the links between GPUs."""

    latency: LatencyModel
    stages: tuple[tuple[StageCapacity, ...], ...]  # by rank
    exchange_us: float  # of an empty exchange
    bytes_per_us: float


def shape_of(launch: Launch) -> Shape:
    """The shape that the latency model knows a launch by: mean width over its members."""
    members = launch.members
    return _shape(launch.kind, members[0].rows, sum(m.gives.width for m in members), len(members))


def _shape(kind: str, rows: int, width: float, fused: int) -> Shape:
    return Shape(
        op=kind.partition(":")[0], rows=rows, width=max(1, round(width / fused)), fused=fused
    )


def plan_rank(
    work: Work, costs: Costs, *, solver: str = "highs", time_limit_s: float = 30.0,
    fuse_operators: bool = True,
) -> RapPlan:  # fmt: skip
    """Fuse and schedule the work of one rank."""
    launches, fusion = fused(
        work, solver=solver if fuse_operators else "asap", time_limit_s=time_limit_s
    )
    by_kind: dict[str, Launch] = {}
    for launch in launches:
        by_kind.setdefault(launch.kind, launch)
    groups = fusion.groups
    if not fuse_operators:
        groups = tuple(replace(g, members=(m,)) for g in groups for m in g.members)
        launches = launches_of(work, [group.members for group in groups])

    def us_of(kind: str, count: int) -> float:
        shape = shape_of(by_kind[kind])
        return costs.latency.predict(replace(shape, fused=count))

    found = schedule(groups, costs.stages[work.rank], us_of)
    stages: dict[str, list[int]] = defaultdict(list)
    for at, placed in enumerate(found.placed):
        stages[placed.stage].append(at)
    return RapPlan(
        work=work,
        launches=launches_of(work, [placed.members for placed in found.placed]),
        fused=launches,
        stages={stage: tuple(which) for stage, which in stages.items()},
        fusion=fusion,
        schedule=found,
    )


def fused_us(
    work: Work, predict: Callable[[Shape], float]
) -> Callable[[Sequence[int], int], float]:
    """Predicted us of a rank's kernels under a mapping, each of all operators of a kind that can
    run next: a function of mapping and rank."""
    tables = range(len(work.home))
    own, whole = data_parallel(len(tables)), (work.rank,) * len(tables)
    found = {
        each.key: each
        for mapping in (own, whole)
        for each in replace(work, mapping=mapping).instances
    }
    at = {key: number for number, key in enumerate(found)}
    level: dict[str, int] = {}
    kernels: dict[tuple[str, int], int] = {}  # kind and level, by number
    for key, each in found.items():
        level[key] = level.get(each.input, -1) + 1
        kernels.setdefault((each.kind, level[key]), len(kernels))
    of = np.array([kernels[each.kind, level[key]] for key, each in found.items()])
    widths = np.array([float(each.gives.width) for each in found.values()])
    rows = {each.kind: each.rows for each in found.values()}
    always = np.array([each.batch == "dense" for each in found.values()])
    needs = {batch: np.zeros((len(tables), len(found)), bool) for batch in ("local", "global")}
    for batch, table in product(needs, tables):
        chain = work.plan.chain(work.plan.sparse[table].node)
        needs[batch][table, [at[f"{node.name}@{batch}"] for node in chain]] = True

    def us(mapping: Sequence[int], rank: int) -> float:
        made = np.array(mapping)
        there = always | needs["local"][made == DATA_PARALLEL].any(0)
        there |= needs["global"][made == rank].any(0)
        counts = np.bincount(of[there], minlength=len(kernels))
        width = np.bincount(of[there], widths[there], len(kernels))
        return sum(
            predict(_shape(kind, rows[kind], float(width[number]), int(counts[number])))
            for (kind, _), number in kernels.items()
            if counts[number]
        )

    return us


def search_mapping(work: Work, costs: Costs) -> tuple[tuple[int, ...], str]:
    """Which rank computes each table's ids for all ranks' rows, or every rank its own; and what
    that costs by prediction, in words.

    Kernels and exchange count in full, whatever the stages hide: hidden work is not free. Within
    the search kernels are fused as soon as possible and not split: the integer programme and the
    schedule are made once, for the mapping found.
    """
    names = [str(table) for table in range(len(work.home))]
    us = fused_us(work, cache(costs.latency.predict))  # most kernels are those of other mappings

    def made(assignment: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(assignment[name] for name in names)

    def time_of(assignment: Mapping[str, int]) -> Sequence[float]:
        return [us(made(assignment), rank) for rank in range(work.world)]

    def communication_us(assignment: Mapping[str, int]) -> float:
        there = replace(work, mapping=made(assignment))
        if not there.exchanges:
            return 0.0
        pairs = ((one, other) for one in range(work.world) for other in range(work.world))
        most = max(there.bytes_to(one, other) for one, other in pairs)
        return costs.exchange_us + most * (work.world - 1) / costs.bytes_per_us

    def words(gpu_of: Sequence[int]) -> str:
        assignment = dict(zip(names, gpu_of, strict=True))
        return f"{max(time_of(assignment)):.1f} and {communication_us(assignment):.1f} us"

    home = dict(zip(names, work.home, strict=True))
    found = mapping_search.search(names, home, work.world, time_of, communication_us)
    gpu_of = made(found.gpu_of)
    away = sum(gpu != home for gpu, home in zip(gpu_of, work.home, strict=True))
    return gpu_of, (
        f"{away} of {len(names)} tables' ids are not made where the table lies: "
        f"{words(gpu_of)} predicted of the busiest GPU's kernels and of the exchange, against "
        f"{words(locality(work.home))} where tables lie and {words(data_parallel(len(names)))} "
        "with own rows"
    )

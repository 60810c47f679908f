"""RAP's plan for one machine: mapping, fused launches and the stages they run beside.

Puts the planner's parts together (docs/papers/rap.md, 3.2 to 3.6): predicted latencies and measured
capacities go in, a mapping of features to GPUs and a schedule per rank come out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from rap_training.launches import Launch, fused, launches_of
from rap_training.planner import mapping as mapping_search
from rap_training.planner.cost import StageCapacity
from rap_training.planner.fusion import Fusion
from rap_training.planner.latency import LatencyModel, Shape
from rap_training.planner.schedule import Schedule, schedule
from rap_training.work import Instance, Work, locality


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
    width = sum(member.gives.width for member in members) / len(members)
    return Shape(
        op=launch.kind.split(":")[0],
        rows=members[0].rows,
        width=max(1, round(width)),
        fused=len(members),
    )


def plan_rank(
    work: Work, costs: Costs, *, solver: str = "highs", time_limit_s: float = 30.0,
    fuse_operators: bool = True,
) -> RapPlan:  # fmt: skip
    """Fuse and schedule the work of one rank."""
    launches, fusion = fused(
        work, solver=solver if fuse_operators else "asap", time_limit_s=time_limit_s
    )
    groups = fusion.groups
    if not fuse_operators:
        groups = tuple(replace(g, members=(m,)) for g in groups for m in g.members)
    by_kind: dict[str, Launch] = {}
    for launch in launches:
        by_kind.setdefault(launch.kind, launch)

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


def fused_us(work: Work, predict: Callable[[Shape], float]) -> float:
    """Predicted us of a rank's kernels, each of all operators of a kind that can run next."""
    level: dict[str, int] = {}
    kernels: dict[tuple[str, int], list[Instance]] = defaultdict(list)
    for instance in work.instances:
        level[instance.key] = level.get(instance.input, -1) + 1
        kernels[instance.kind, level[instance.key]].append(instance)
    return sum(predict(shape_of(Launch(members=tuple(found)))) for found in kernels.values())


def search_mapping(work: Work, costs: Costs) -> tuple[int, ...]:
    """Which rank computes each table's ids for all ranks' rows, or every rank its own.

    Kernels and exchange count in full, whatever the stages hide: hidden work is not free. Within
    the search kernels are fused as soon as possible and not split: the integer programme and the
    schedule are made once, for the mapping found.
    """
    if work.world == 1:
        return locality(work.home)
    names = [str(table) for table in range(len(work.home))]
    predict = cache(costs.latency.predict)  # most of a mapping's kernels are those of another

    def with_mapping(assignment: Mapping[str, int], rank: int) -> Work:
        return replace(work, rank=rank, mapping=tuple(assignment[name] for name in names))

    def time_of(assignment: Mapping[str, int]) -> Sequence[float]:
        ranks = range(work.world)
        return [fused_us(with_mapping(assignment, rank), predict) for rank in ranks]

    def communication_us(assignment: Mapping[str, int]) -> float:
        there = with_mapping(assignment, 0)
        if not there.exchanges:
            return 0.0
        pairs = ((one, other) for one in range(work.world) for other in range(work.world))
        most = max(there.bytes_to(one, other) for one, other in pairs)
        return costs.exchange_us + most * (work.world - 1) / costs.bytes_per_us

    found = mapping_search.search(
        names, dict(zip(names, work.home, strict=True)), work.world, time_of, communication_us,
        rounds=20,
    )  # fmt: skip
    return tuple(found.gpu_of[name] for name in names)

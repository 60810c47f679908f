"""Which fused kernel runs beside which training stage, on one GPU (docs/papers/rap.md, 3.5)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rap_training.planner.cost import StageCapacity, exposed
from rap_training.planner.fusion import Group
from rap_training.planner.sharding import largest_prefix

__all__ = ["Kernel", "Placed", "Schedule", "schedule"]

_SLACK = 1e-9  # us; capacities are sums of floats


@dataclass(frozen=True)
class Kernel:
    """A fused kernel and its predicted stand-alone time in us."""

    group: Group
    us: float


@dataclass(frozen=True)
class Placed:
    """A kernel, or with `split` a part of one, beside a stage; `us` is its predicted time."""

    stage: str
    kind: str
    members: tuple[str, ...]
    us: float
    split: bool


@dataclass(frozen=True)
class Schedule:
    """Kernels in launch order, stage after stage; `overflow_us` is the time that fits nowhere."""

    placed: tuple[Placed, ...]
    overflow_us: float

    def of(self, stage: str) -> tuple[Placed, ...]:
        """The kernels beside `stage`, in launch order."""
        return tuple(kernel for kernel in self.placed if kernel.stage == stage)


def schedule(
    groups: Sequence[Group],
    stages: Sequence[StageCapacity],
    us_of: Callable[[str, int], float],
) -> Schedule:
    """Place `groups`, which come level by level, beside `stages`, which come in execution order.

    `us_of(kind, count)` predicts the us of a kernel that fuses `count` operators of `kind`.
    Stages are selected by falling intensity until their capacity covers the predicted total, then
    filled in execution order; a kernel that does not fit is split at the largest prefix that does,
    its rest goes on to the next selected stage. Splitting costs launches, so where the selection
    then falls short, the next stage is selected too. What fits nowhere goes to the last selected
    stage. Launch order is the order of `groups`, so an input always precedes what reads it.
    Raises ValueError without stages or for groups whose levels fall.
    """
    if not stages:
        raise ValueError("there is no stage to run beside; fix: give at least one")
    levels = [group.level for group in groups]
    if levels != sorted(levels):
        raise ValueError("the groups' levels fall; fix: sort the groups by level")
    kernels = [Kernel(group, us_of(group.kind, len(group.members))) for group in groups]
    total = sum(kernel.us for kernel in kernels)
    ranked = sorted(range(len(stages)), key=lambda index: (-stages[index].intensity, index))
    usable = [index for index in ranked if stages[index].capacity_us > 0]
    best: Schedule | None = None
    for count in range(_enough(stages, usable, total), len(usable) + 1):
        chosen = [stages[index] for index in sorted(usable[:count])] or [stages[-1]]
        found = _fill(kernels, chosen, us_of)
        if best is None or found.overflow_us < best.overflow_us:
            best = found
        if found.overflow_us <= _SLACK:
            break
    assert best is not None
    return best


def _enough(stages: Sequence[StageCapacity], usable: Sequence[int], total: float) -> int:
    covered = 0.0
    for count, index in enumerate(usable, start=1):
        covered += stages[index].capacity_us
        if covered >= total - _SLACK:
            return count
    return len(usable)


def _fill(
    kernels: Sequence[Kernel],
    stages: Sequence[StageCapacity],
    us_of: Callable[[str, int], float],
) -> Schedule:
    placed: list[Placed] = []
    at, room = 0, stages[0].capacity_us
    for kernel in kernels:
        kind, rest, us = kernel.group.kind, kernel.group.members, kernel.us
        split = False
        while rest:
            last = at == len(stages) - 1
            fits = us <= room + _SLACK
            taken = len(rest) if fits or last else _prefix(us_of, kind, len(rest), room)
            if taken:
                split = split or taken < len(rest)
                part_us = us if taken == len(rest) else us_of(kind, taken)
                placed.append(Placed(stages[at].name, kind, rest[:taken], part_us, split))
                room -= part_us
                rest = rest[taken:]
                us = us_of(kind, len(rest)) if rest else 0.0
            if rest:
                at += 1
                room = stages[at].capacity_us
    load: dict[str, float] = defaultdict(float)
    for part in placed:
        load[part.stage] += part.us
    overflow = exposed(load, stages)
    return Schedule(tuple(placed), overflow if overflow > _SLACK else 0.0)


def _prefix(us_of: Callable[[str, int], float], kind: str, count: int, room: float) -> int:
    # The whole kernel was tried already; its rest must not be empty.
    return largest_prefix(lambda k: us_of(kind, k), count - 1, room + _SLACK)

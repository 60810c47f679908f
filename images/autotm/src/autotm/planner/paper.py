"""The paper's formulations with what surrounds them: addresses, retries, the search for a ratio.

They know no addresses. Where the packing ends too high, the limits of the kernels that use what
lies there, and of their neighbours, are lowered and all is solved again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from autotm.check import check
from autotm.graph import Graph, Machine, Plan
from autotm.planner.formulations import Placement, TwoTiers, fixed_bytes
from autotm.planner.model import NoPlan
from autotm.planner.overlapped import Overlapped
from autotm.planner.packing import pack
from autotm.planner.realise import Decisions, realise

Formulation = Literal["synchronous", "asynchronous"]
LEAST, NEAR = 0.9, 5  # of a limit, what a retry leaves; kernels before and after a user
RETRIES, TOLERANCE, REFINEMENTS = 20, 0.05, 7
KERNELS = 5  # retries on a GPU that lower single kernels' limits, before those of all are


@dataclass(frozen=True)
class Allocated:
    """A placement on a host; bytes of the two pools; seconds of each solve; limit that was asked.

    fits: the pool in fast memory is within the limit.
    """

    placement: Placement
    fast: int
    slow: int
    solves: tuple[float, ...]
    room: int
    refinements: int = 0

    @property
    def fits(self) -> bool:
        return self.fast <= self.room

    @property
    def ratio(self) -> float:
        """Slow to fast memory, as allocated."""
        return self.slow / self.fast if self.fast else float("inf")


def lowered(graph: Graph, rooms: Sequence[int], high: Collection[int], over: float) -> list[int]:
    """Limits after a retry: `high` are the tensors that end too high, `over` the share they do."""
    factor = max(LEAST, 1.0 - over / 2)
    users = {n for t in high for n in (graph.producer[t], *graph.uses[t]) if n is not None}
    near = {n for user in users for n in range(user - NEAR, user + NEAR + 1)}
    return [int(room * factor) if n in near else room for n, room in enumerate(rooms)]


def plan(
    graph: Graph, machine: Machine, formulation: Formulation, *, seconds: float = 3600.0,
    gap: float = 0.01, window: int = 15,
) -> Plan:  # fmt: skip
    """A plan for a GPU, replayed; synchronous, its seconds are the programme's. Raises NoPlan.

    seconds: of one solve; no retry begins after four times as many. Where lowering the limits of
    single kernels ends in addresses that do not fit, or in no solution, those of all are lowered by
    1 % at a time, which the paper does not do.
    """
    began = time.perf_counter()
    room, problem = machine.capacity - fixed_bytes(graph, machine), NoPlan("no retry is left")
    if room < 0:
        raise NoPlan("parameters, inputs and outputs alone are over the capacity")
    rooms, bound, less = [room] * len(graph.ops), 0.0, 0
    for turn in range(RETRIES):
        try:
            chosen = _decided(graph, machine, rooms, formulation, seconds, gap, window)
            bound = bound or chosen.bound
            found = realise(graph, machine, chosen, formulation, until=began + 4 * seconds)
        except NoPlan as error:
            problem = error if error.high or not turn else problem
            late = time.perf_counter() - began > 4 * seconds
            if late or (not error.high and (less or not turn)):
                break
            if error.high and turn < KERNELS and not less:
                rooms = lowered(graph, rooms, error.high, error.over / room)
            else:
                less += machine.capacity // 100
                rooms = [room - less] * len(graph.ops)
            continue
        ran = check(graph, machine, found)
        waits = formulation == "synchronous"  # for every copy, which the replay does not
        return replace(
            found, seconds=chosen.seconds if waits else ran.seconds, bound=bound,
            gap=1.0 - bound / chosen.seconds if chosen.seconds else 0.0,
            solve_seconds=time.perf_counter() - began,
            notes={
                **found.notes, "programme": chosen.seconds, "replayed": ran.seconds,
                "retries": float(turn),
            },
        )  # fmt: skip
    raise problem


def _decided(
    graph: Graph, machine: Machine, rooms: Sequence[int], formulation: Formulation,
    seconds: float, gap: float, window: int,
) -> Decisions:  # fmt: skip
    if formulation == "synchronous":
        return TwoTiers(graph, machine, rooms, static=False).solve(seconds, gap).decisions(graph)
    return Overlapped(graph, machine, rooms, window=window).solve(seconds, gap)[0]


def allocated(
    graph: Graph, machine: Machine, room: int, *, static: bool, seconds: float = 3600.0,
    gap: float = 0.01, retries: int = RETRIES,
) -> Allocated:  # fmt: skip
    """A placement on a host with `room` bytes of fast memory, and its two pools. Raises NoPlan.

    retries: 0 takes what the first solve gives, whether it fits or not.
    """
    rooms, solves = [room] * len(graph.ops), []
    best: Allocated | None = None
    for _ in range(retries + 1):
        try:
            placement = TwoTiers(graph, machine, rooms, static=static).solve(seconds, gap)
        except NoPlan:
            if best is None:
                raise
            break
        solves.append(placement.solve_seconds)
        fast, slow = placement.lies(graph, machine)
        until = time.perf_counter() + seconds
        addresses, height = pack([box for _, box in fast], room, until)
        _, below = pack([box for _, box in slow], sum(box[2] for _, box in slow))
        found = Allocated(placement, height, below, tuple(solves), room)
        best = found if best is None or height < best.fast else replace(best, solves=tuple(solves))
        if best.fits or not room:
            break
        high = {t for (t, box), at in zip(fast, addresses, strict=True) if at + box[2] > room}
        rooms = lowered(graph, rooms, high, height / room - 1.0)
    assert best is not None
    return best


def at_ratio(
    graph: Graph, machine: Machine, pool: int, ratio: float, *, static: bool,
    seconds: float = 3600.0, gap: float = 0.01,
) -> Allocated:  # fmt: skip
    """The placement whose pools come closest to `ratio`, slow to fast, of `pool` bytes in all.

    Another ratio is asked for while the allocated one is further off than 5 %, in halved steps, at
    most seven times; `refinements` says how often, whichever came closest. Raises NoPlan.
    """
    asked, step = ratio, ratio / 2
    best: Allocated | None = None
    for turn in range(REFINEMENTS + 1):
        room = int(pool / (asked + 1))
        found = allocated(graph, machine, room, static=static, seconds=seconds, gap=gap)
        if best is None or abs(found.ratio - ratio) < abs(best.ratio - ratio):
            best = found
        best = replace(best, refinements=turn)
        if abs(best.ratio / ratio - 1) <= TOLERANCE:
            break
        asked += step if found.ratio < ratio else -step
        step /= 2
    assert best is not None
    return best

"""Our planner: a programme with a bound, made into a plan with addresses, and replayed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from autotm.check import check
from autotm.graph import Graph, Machine, Plan
from autotm.planner import paper
from autotm.planner.model import INFINITY, Aim, NoPlan, TooSlow
from autotm.planner.points import Limits, least_bytes
from autotm.planner.programme import Programme
from autotm.planner.realise import Decisions, realise

SMALL = 60  # ops: all that can be decided is
GAPS = (8, 4, 2, 1)  # ops between two uses, of those that are not worth a copy
FEW = 300  # ops: whole tensors are much of the memory
WHOLE = 0.08  # of the capacity: what counts as a whole there
FINE = 0.05  # the same where copies have an order
LATE = 1.2  # times the programme's seconds, that a plan with such an order takes at most
ORDER = 5.0  # s to find one
LESS = (0.0, 0.02)  # of the capacity
PACKING = 0.1  # of a solve's seconds: for addresses
EXACT = 45.0  # s of branch and bound over wholes
SOLVE = 20.0  # s of each of the paper's
SHORTER = (0.0, 0.01, 0.02, 0.04, 0.07, 0.11, 0.16, 0.22)  # of the capacity, when solved again
MORE = 1.25  # times what addresses took too much, at least
CLOSE = 0.005  # of the capacity
BEST = Aim()


def plan(
    graph: Graph, machine: Machine, limits: Limits | None = None, *, seconds: float = 60.0,
    gap: float = 0.01, aim: Aim = BEST,
) -> Plan:  # fmt: skip
    """Our plan, replayed: its seconds are the replay's, its bound the programme's. Raises NoPlan.

    Whole tensors and addresses take more than the programme counts: where they do not fit, or wait
    for each other, it is solved again for less; where there was no plan, with `seconds` once more,
    and then with nothing made again, which is easier to place. In a small graph a tensor is much of
    the memory; there large ones are then counted as a whole, and copies get an order. There, and
    where nothing was found, the paper's plans, which are plans of this model too, are tried as
    well, for some seconds more. aim: the search ends with a plan that is enough; NoPlan where none
    is fast enough.
    """
    began = time.perf_counter()
    needs, op = least_bytes(graph, machine, Limits(depth=0))
    if needs > machine.capacity:
        raise NoPlan(f"{graph.ops[op].name} (op {op}) needs {needs} bytes, whatever is moved")
    until, known = began + seconds, limits or limits_for(graph, machine)
    found, chosen, bound, problem = _planned(graph, machine, known, seconds, gap, aim)
    if found is None and known.offload and known.depth:
        moving = replace(known, depth=0)
        found, chosen, _, _ = _planned(graph, machine, moving, seconds, gap, aim)
    few = len(graph.ops) <= FEW and known.offload
    if few and bound and not _done(found, bound, gap, aim):
        found, bound = _whole(graph, machine, known, until, gap, found, chosen, bound, aim)
    bound = bound or graph.seconds
    if found is None:
        until = max(until, time.perf_counter() + SOLVE)
    if few or (found is None and known.offload):
        found = _theirs(graph, machine, until, gap, found, bound, aim)
    if found is None:
        raise problem
    if found.seconds > aim.most:
        raise NoPlan(f"a plan takes {found.seconds / aim.most:.3f} times what it may")
    spent = time.perf_counter() - began
    return replace(found, bound=bound, gap=_gap(found, bound), solve_seconds=spent)


def bound(graph: Graph, machine: Machine, seconds: float = 60.0) -> float:
    """Seconds that no plan of the programme takes less than, which is soon known. Raises NoPlan."""
    return Programme(graph, machine, limits_for(graph, machine)).bound(seconds)


def outside(
    graph: Graph, machine: Machine, limits: Limits | None = None, *, seconds: float = 60.0,
    gap: float = 0.01,
) -> Plan:  # fmt: skip
    """The same programme with addresses outside of it, as the paper has them. Raises NoPlan.

    Copies have the time that the link takes, whatever lies beside them; where the stays do not
    pack, limits of single kernels are lowered and all is solved again.
    """
    began, bound = time.perf_counter(), 0.0
    known = limits or limits_for(graph, machine)
    rooms, problem = [machine.capacity] * len(graph.ops), NoPlan("no plan was found in time")
    for turn in range(paper.RETRIES):
        left = seconds - (time.perf_counter() - began)
        if turn and left < 1:
            break
        try:
            chosen = Programme(graph, machine, known, rooms).solve(left, gap)
            bound = bound or chosen.bound
            found = realise(graph, machine, chosen, "ours, addresses outside", 1, began + seconds)
        except NoPlan as error:
            problem = error
            if not error.high:
                break
            over = error.over / machine.capacity
            rooms = paper.lowered(graph, rooms, error.high, over)
            continue
        ran = check(graph, machine, found)
        notes = {**found.notes, "programme": chosen.seconds, "retries": float(turn)}
        spent = time.perf_counter() - began
        return replace(
            found, seconds=ran.seconds, bound=bound, solve_seconds=spent, notes=notes,
            gap=max(1.0 - bound / ran.seconds, 0.0),
        )  # fmt: skip
    raise problem


def _gap(found: Plan | None, bound: float) -> float:
    if found is None:
        return INFINITY
    return max(1.0 - bound / found.seconds, 0.0) if found.seconds else 0.0


def _done(found: Plan | None, bound: float, gap: float, aim: Aim) -> bool:
    """Whether nothing better is asked for, or can be had."""
    enough = found is not None and found.seconds <= aim.enough
    return enough or bound > aim.most or _gap(found, bound) <= gap


def _whole(
    graph: Graph, machine: Machine, limits: Limits, until: float, gap: float,
    found: Plan | None, decided: Decisions | None, bound: float, aim: Aim,
) -> tuple[Plan | None, float]:  # fmt: skip
    """A better plan and a higher bound, where large tensors are wholes while they are copied."""
    seconds, known = until - time.perf_counter(), [decided] if decided is not None else []
    large = replace(limits, whole=WHOLE * machine.capacity)
    programme = Programme(graph, machine, large, aim=aim)
    starts = [programme.near(each, seconds / 4, gap / 4) for each in known]
    try:
        chosen = programme.exact(max(min(seconds, EXACT), 1.0), gap / 4, *starts)
    except NoPlan:
        pass
    else:
        bound, known = max(bound, chosen.bound), [chosen, *known]
    for turn, each in enumerate(_ordered(graph, machine, limits, known, gap, until)):
        if bound > aim.most:
            break
        try:
            plan = realise(graph, machine, each, "ours", 1, until)
        except NoPlan:
            continue
        ran = check(graph, machine, plan)
        if found is None or ran.seconds < found.seconds:
            notes = {**plan.notes, "programme": each.seconds, "turn": float(turn)}
            found = replace(plan, seconds=ran.seconds, notes=notes)
        if _done(found, bound, gap, aim):
            break
    return found, bound


def _theirs(
    graph: Graph, machine: Machine, until: float, gap: float, found: Plan | None, bound: float,
    aim: Aim,
) -> Plan | None:  # fmt: skip
    """The best of what was found and of the paper's plans."""
    for other in ("synchronous", "asynchronous"):
        left = until - time.perf_counter()
        if left < 1 or _done(found, bound, gap, aim):
            break
        try:  # which may take four times its seconds
            theirs = paper.plan(
                graph, machine, other, seconds=min(SOLVE, left / 4), gap=gap, window=5
            )
        except NoPlan:
            continue
        replayed = theirs.notes["replayed"]
        if found is None or replayed < found.seconds:
            found = replace(theirs, formulation="ours", seconds=replayed)
    return found


def _ordered(
    graph: Graph, machine: Machine, limits: Limits, known: Sequence[Decisions], gap: float,
    until: float,
) -> Iterator[Decisions]:  # fmt: skip
    """The known decisions, then the same with one copy after the other, for less and less memory.

    What stays, leaves and is made again is as it was; windows and order of copies are decided anew.
    """
    yield from known
    limits = replace(limits, whole=FINE * machine.capacity)
    for share, chosen in product(LESS, known):
        left = until - time.perf_counter()
        if left < 1:
            return
        less = replace(machine, capacity=int((1 - share) * machine.capacity))
        late = LATE * chosen.seconds - graph.seconds
        programme = Programme(graph, less, limits, most=max(late, 0.0))
        ordered = programme.near(chosen, min(left, ORDER), gap / 4)
        if ordered is not None:
            yield programme.read(ordered)


def _planned(
    graph: Graph, machine: Machine, limits: Limits, seconds: float, gap: float, aim: Aim
) -> tuple[Plan | None, Decisions | None, float, NoPlan]:
    """The best plan of the programme, its bound, and what was in the way where there is none.

    After a first one that is enough by the programme but not by the replay, all others are made as
    good as they can be. Where addresses take more than there is, as much more is left out; what is
    then enough is halved towards what was not.
    """
    began, bound, problem = time.perf_counter(), 0.0, NoPlan("no plan was found in time")
    best: Plan | None = None
    decided: Decisions | None = None
    share, low, high = 0.0, 0.0, INFINITY  # of the capacity, left out; too little; enough
    for turn, least in enumerate(SHORTER):
        share = (low + high) / 2 if 0 < high < INFINITY else max(share, least)
        left = seconds - (time.perf_counter() - began)
        if turn == 1 and best is None:
            left = max(left, seconds)  # the first one misses often by little
        if turn and (left < 1 or _done(best, bound, gap, aim) or 0 < high < low + CLOSE):
            break
        until, room = time.perf_counter() + left, int(machine.capacity * (1 - share))
        try:
            close = gap if best is None else gap / 2
            programme = Programme(
                graph, replace(machine, capacity=room), limits,
                aim=replace(aim, enough=0.0 if turn else aim.enough),
            )  # fmt: skip
            rest = (1 - PACKING) * (until - time.perf_counter())
            chosen = programme.solve(max(rest, 1.0), close)
        except NoPlan as error:
            if isinstance(error, TooSlow) and not turn:
                raise
            problem = problem if turn else error
            if not turn or best is not None:
                break
            high = share
            continue
        bound = bound or chosen.bound
        try:
            found = realise(graph, machine, chosen, "ours", until=until)
        except NoPlan as error:
            problem = problem if turn else error
            low = share
            share += max(MORE * error.over / machine.capacity, CLOSE)
            continue
        high = min(high, share)
        ran = check(graph, machine, found)
        if best is None or ran.seconds < best.seconds:
            notes = {**found.notes, "programme": chosen.seconds, "turn": float(turn)}
            best, decided = replace(found, seconds=ran.seconds, notes=notes), chosen
    return best, decided, bound, problem


def limits_for(graph: Graph, machine: Machine) -> Limits:
    """All of a small graph; of a large one tensors that the memory feels, gaps worth a copy.

    Where these leave an op too little memory, shorter gaps and smaller tensors.
    """
    if len(graph.ops) <= SMALL:
        return Limits(depth=8, reach=len(graph.ops))
    for gap in GAPS:
        limits = Limits(least_bytes=machine.capacity // 5000, least_ops=gap)
        if least_bytes(graph, machine, limits)[0] <= machine.capacity:
            return limits
    return Limits()

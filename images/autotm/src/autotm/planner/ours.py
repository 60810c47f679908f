"""Our planner: a programme with a bound, made into a plan with addresses, and replayed."""

from __future__ import annotations

import time
from dataclasses import replace

from autotm.check import check
from autotm.graph import STAYS, Graph, Machine, Plan, aligned
from autotm.planner import paper
from autotm.planner.model import INFINITY, NoPlan
from autotm.planner.points import Limits
from autotm.planner.programme import Programme
from autotm.planner.realise import realise

SMALL = 60  # ops: all that can be decided is
FEW = 300  # ops: whole tensors are much of the memory
WHOLE = 0.08  # of the capacity: what counts as a whole there
PACKING = 0.1  # of a solve's seconds: for addresses
TURNS = 2  # solved again for less memory where addresses do not fit
SOLVE = 20.0  # s of each
SHORTER = (0.0, 0.01, 0.02, 0.04, 0.07, 0.11, 0.16, 0.22)  # of the capacity, when solved again


def plan(
    graph: Graph, machine: Machine, limits: Limits | None = None, *, seconds: float = 60.0,
    gap: float = 0.01,
) -> Plan:  # fmt: skip
    """Our plan, replayed: its seconds are the replay's, its bound the programme's. Raises NoPlan.

    Whole tensors and addresses take more than the programme counts: where they do not fit, or wait
    for each other, it is solved again for less; where there was no plan, with `seconds` once more.
    In a small graph a tensor is much of the memory; there large ones are then counted as a whole,
    and the paper's plans, which are plans of this model too, are tried as well.
    """
    began = time.perf_counter()
    least, op = least_bytes(graph, machine)
    if least > machine.capacity:
        raise NoPlan(f"{graph.ops[op].name} (op {op}) needs {least} bytes, whatever is moved")
    known = limits or limits_for(graph)
    found, bound, problem = _planned(graph, machine, known, seconds, gap)
    if len(graph.ops) <= FEW and known.offload and bound and _gap(found, bound) > gap:
        left = seconds - (time.perf_counter() - began)
        found, bound = _whole(graph, machine, known, left, gap, found, bound)
    if found is None:
        raise problem
    spent = time.perf_counter() - began
    return replace(found, bound=bound, gap=_gap(found, bound), solve_seconds=spent)


def outside(
    graph: Graph, machine: Machine, limits: Limits | None = None, *, seconds: float = 60.0,
    gap: float = 0.01,
) -> Plan:  # fmt: skip
    """The same programme with addresses outside of it, as the paper has them. Raises NoPlan.

    Copies have the time that the link takes, whatever lies beside them; where the stays do not
    pack, limits of single kernels are lowered and all is solved again.
    """
    began, bound = time.perf_counter(), 0.0
    rooms, problem = [machine.capacity] * len(graph.ops), NoPlan("no plan was found in time")
    for turn in range(paper.RETRIES):
        left = seconds - (time.perf_counter() - began)
        if turn and left < 1:
            break
        try:
            chosen = Programme(graph, machine, limits or limits_for(graph), rooms).solve(left, gap)
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


def least_bytes(graph: Graph, machine: Machine) -> tuple[int, int]:
    """What the most demanding op needs by itself beside what never moves, and which op it is."""
    size = [aligned(each.bytes, machine.align) for each in graph.tensors]
    always = {each.id for each in graph.tensors if each.kind in STAYS}
    base = sum(size[tensor] for tensor in always)
    needs = [
        base + sum(size[tensor] for tensor in op.operands if tensor not in always)
        for op in graph.ops
    ]
    most = max(range(len(needs)), key=needs.__getitem__)
    return needs[most], most


def _gap(found: Plan | None, bound: float) -> float:
    if found is None:
        return INFINITY
    return max(1.0 - bound / found.seconds, 0.0) if found.seconds else 0.0


def _whole(
    graph: Graph, machine: Machine, limits: Limits, seconds: float, gap: float,
    found: Plan | None, bound: float,
) -> tuple[Plan | None, float]:  # fmt: skip
    """A better plan and a higher bound, where large tensors are wholes while they are copied."""
    began, room = time.perf_counter(), machine.capacity
    limits = replace(limits, whole=WHOLE * machine.capacity)
    for turn in range(TURNS):
        left = min(seconds - (time.perf_counter() - began), SOLVE)
        if left < 1 or _gap(found, bound) <= gap:
            break
        try:
            chosen = Programme(graph, replace(machine, capacity=room), limits).solve(
                left, gap / 2, rounded=False
            )
        except NoPlan:
            break
        bound = bound if turn else max(bound, chosen.bound)
        try:
            plan = realise(graph, machine, chosen, "ours", 1, began + seconds)
        except NoPlan as error:
            room -= max(error.over, machine.capacity // 200)
            continue
        ran = check(graph, machine, plan)
        if found is None or ran.seconds < found.seconds:
            notes = {**plan.notes, "programme": chosen.seconds, "turn": float(turn)}
            found = replace(plan, seconds=ran.seconds, notes=notes)
        break
    for other in ("synchronous", "asynchronous"):
        left = seconds - (time.perf_counter() - began)
        if left < 1 or _gap(found, bound) <= gap:
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
    return found, bound


def _planned(
    graph: Graph, machine: Machine, limits: Limits, seconds: float, gap: float
) -> tuple[Plan | None, float, NoPlan]:
    """The best plan of the programme, its bound, and what was in the way where there is none."""
    began, bound, problem = time.perf_counter(), 0.0, NoPlan("no plan was found in time")
    best: Plan | None = None
    for turn, share in enumerate(SHORTER):
        left = seconds - (time.perf_counter() - began)
        if turn == 1 and best is None:
            left = max(left, seconds)  # the first one misses often by little
        if turn and (left < 1 or _gap(best, bound) <= max(gap, 0.0)):
            break
        until, room = time.perf_counter() + left, int(machine.capacity * (1 - share))
        try:
            close = gap if best is None else gap / 2
            programme = Programme(graph, replace(machine, capacity=room), limits)
            rest = (1 - PACKING) * (until - time.perf_counter())
            chosen = programme.solve(max(rest, 1.0), close)
            bound = bound or chosen.bound
            found = realise(graph, machine, chosen, "ours", until=until)
        except NoPlan as error:
            problem = problem if turn else error
            if not bound:
                break
            continue
        ran = check(graph, machine, found)
        if best is None or ran.seconds < best.seconds:
            notes = {**found.notes, "programme": chosen.seconds, "turn": float(turn)}
            best = replace(found, seconds=ran.seconds, notes=notes)
    return best, bound, problem


def limits_for(graph: Graph) -> Limits:
    """All of a small graph; of a large one tensors and gaps that are worth a copy."""
    if len(graph.ops) <= SMALL:
        return Limits(depth=8, reach=len(graph.ops))
    return Limits(least_bytes=graph.peak_bytes // 5000, least_ops=8)

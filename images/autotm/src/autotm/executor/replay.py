"""Whether a plan is right: every operand where it is read, no bytes taken twice.

A plan is followed step by step on its own words (graph.py). What passes runs: a session that
compiles a checked plan can only be wrong by a fault of its own.
"""

from __future__ import annotations

from autotm.executor.errors import PlanError
from autotm.graph import STAYS, Graph, Plan, Stay


def check(graph: Graph, plan: Plan, capacity: int | None = None) -> int:
    """The bytes of arena that a plan takes. Raises PlanError for the first thing wrong.

    Tensors without bytes need no place.
    """
    held = {tensor.id for tensor in graph.tensors if tensor.bytes}
    stays = [stay for stay in plan.stays if stay.tensor in held]
    for stay in stays:
        _check_stay(graph, plan, stay)
    _check_copies(stays)
    peak = _check_overlap(graph, stays)
    if capacity is not None and peak > capacity:
        raise PlanError(f"the plan takes {peak} bytes of an arena of {capacity}")
    _check_steps(graph, plan, held)
    return peak


def _check_stay(graph: Graph, plan: Plan, stay: Stay) -> None:
    last = len(plan.steps) - 1
    if not 0 <= stay.begin <= stay.end <= last or stay.address < 0:
        raise PlanError(f"a stay is malformed: {stay}")
    if not stay.begin <= stay.ready <= stay.end:
        raise PlanError(f"a stay is ready outside of itself: {stay}")
    if stay.saved is not None and not stay.begin <= stay.saved <= stay.end:
        raise PlanError(f"a stay is saved outside of itself: {stay}")
    if stay.source == "start" and (stay.begin or graph.tensors[stay.tensor].kind not in STAYS):
        raise PlanError(f"only parameters and inputs are there at the start: {stay}")
    if stay.source == "op" and stay.tensor not in graph.ops[plan.steps[stay.begin]].outputs:
        raise PlanError(f"the step does not write this tensor: {stay}")


def _check_copies(stays: list[Stay]) -> None:
    saved: dict[int, int] = {}
    for stay in sorted(stays, key=lambda each: each.begin):
        if stay.source == "host" and saved.get(stay.tensor, stay.begin) >= stay.begin:
            raise PlanError(f"a tensor comes back before it has left: {stay}")
        if stay.saved is not None:
            if stay.tensor in saved or stay.source == "host":
                raise PlanError(f"a tensor is saved twice: {stay}")
            saved[stay.tensor] = stay.saved


def _check_overlap(graph: Graph, stays: list[Stay]) -> int:
    """No two stays of a step share bytes; gives the highest end."""
    live: list[Stay] = []
    peak = 0
    for stay in sorted(stays, key=lambda each: each.begin):
        live = [other for other in live if other.end >= stay.begin]
        end = stay.address + graph.tensors[stay.tensor].bytes
        for other in live:
            if other.address < end and stay.address < (
                other.address + graph.tensors[other.tensor].bytes
            ):
                raise PlanError(f"two stays share bytes: {other} and {stay}")
        live.append(stay)
        peak = max(peak, end)
    return peak


def _check_steps(graph: Graph, plan: Plan, held: set[int]) -> None:
    seen: set[int] = set()
    written = {(stay.tensor, stay.begin) for stay in plan.stays if stay.source == "op"}
    for number, op in enumerate(plan.steps):
        node = graph.ops[op]
        if op in seen and not node.recomputable:
            raise PlanError(f"step {number}: {node.name} may not run twice")
        for tensor in node.inputs:
            if tensor not in held:
                producer = graph.producer[tensor]
                if producer is not None and producer not in seen:
                    raise PlanError(f"step {number} ({node.name}) reads {tensor} too early")
                continue
            try:
                stay = plan.read_at(tensor, number)
            except KeyError as error:
                raise PlanError(f"step {number} ({node.name}): {error.args[0]}") from error
            if stay.source == "op" and stay.begin == number:
                raise PlanError(f"step {number} ({node.name}) reads what it writes: {tensor}")
        for tensor in node.outputs:
            if tensor in held and (tensor, number) not in written:
                raise PlanError(f"step {number} ({node.name}) has no place for tensor {tensor}")
        seen.add(op)
    if seen != set(range(len(graph.ops))):
        raise PlanError(f"ops {sorted(set(range(len(graph.ops))) - seen)} never run")

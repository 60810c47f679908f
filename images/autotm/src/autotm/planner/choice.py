"""Seconds of several graphs, each on a machine, by which to choose the fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from autotm.graph import Graph, Machine, Plan
from autotm.planner.model import INFINITY, Aim, NoPlan
from autotm.planner.ours import FEW, bound, plan

CHOICE = 10.0  # s of a solve that is for a choice alone
QUICK = partial(plan, seconds=CHOICE)


def planned_seconds(
    problems: Sequence[tuple[Graph, Machine] | None], planner: Callable[..., Plan] = QUICK
) -> list[float]:
    """Seconds of each; infinity where there is no plan, and for None.

    By the programme's bound, which is soon known. In graphs of few operators a tensor is much of
    the memory, and that bound is weak, as it frees them byte by byte. There a plan is made of each,
    from the lowest bound on, until that is above what a plan takes; what is left has infinity.
    planner: is called with `aim`.
    """
    bounds = [_bound(*each) if each is not None else INFINITY for each in problems]
    found = [INFINITY for _ in problems]
    for number in sorted(range(len(bounds)), key=bounds.__getitem__):
        each, best = problems[number], min(found)
        if each is None or bounds[number] >= best or len(each[0].ops) > FEW:
            break
        with suppress(NoPlan):
            found[number] = planner(*each, aim=Aim(most=best)).seconds
    return bounds if min(found, default=INFINITY) == INFINITY else found


def _bound(graph: Graph, machine: Machine) -> float:
    try:
        return bound(graph, machine)
    except NoPlan:
        return INFINITY

"""Which of several graphs is the fastest: by bounds, and by plans where these are weak."""

from __future__ import annotations

import math

from autotm.graph import Graph, Machine, Op, Plan, Tensor
from autotm.planner import choice
from autotm.planner.apart import apart
from autotm.planner.choice import planned_seconds
from autotm.planner.ours import bound


def beside(seconds: float, workspace: int) -> Graph:
    """A tensor of 6,144 bytes that takes 10 s to make and waits for an operator with workspace."""
    sizes = 6144, 512, workspace, 512
    ops = (
        Op(0, "make", (), (0,), 10.0),
        Op(1, "beside", (), (1, 2), seconds, recomputable=False),
        Op(2, "read", (0, 1), (3,), 1.0),
    )
    return Graph(tuple(Tensor(n, each, "activation") for n, each in enumerate(sizes)), ops)


def test_where_tensors_are_large_the_choice_is_by_plans() -> None:
    """1 KiB too much: the bound has a sixth of the tensor made again, a plan all of it."""
    large, small = beside(1.0, 4096), beside(4.0, 1024)
    machine = Machine(6144 + 512 + 3072, 1.0, 1.0)
    assert bound(large, machine) < bound(small, machine)
    asked: list[Graph] = []

    def planner(graph: Graph, machine: Machine, **options: object) -> Plan:
        asked.append(graph)
        return choice.QUICK(graph, machine, **options)

    found = planned_seconds([(small, machine), None, (large, machine)], planner)
    assert found == [15.0, math.inf, 22.0]
    assert asked == [large, small]
    problems = [(small, machine), None, (large, machine)]
    assert apart(60.0, planned_seconds, problems) == found

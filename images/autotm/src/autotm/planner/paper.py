"""Plans of the paper's formulations on a machine whose kernels read fast memory alone."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Literal

from autotm.check import check
from autotm.graph import Graph, Machine, Plan
from autotm.planner.formulations import TwoTiers, fixed_bytes
from autotm.planner.model import NoPlan
from autotm.planner.overlapped import Overlapped
from autotm.planner.realise import realise

Formulation = Literal["synchronous", "asynchronous"]


def plan(
    graph: Graph, machine: Machine, formulation: Formulation, *, seconds: float = 3600.0,
    gap: float = 0.01, window: int = 15, retries: int = 20,
) -> Plan:  # fmt: skip
    """A plan, replayed; synchronous, its seconds are the programme's. Raises NoPlan.

    The formulations know no addresses: while the packing is over the capacity, the limit is
    lowered by as much and solved again, as the paper does (it lowers single kernels' limits).
    """
    began = time.perf_counter()
    room, problem = machine.capacity - fixed_bytes(graph, machine), NoPlan("no retry is left")
    for turn in range(retries):
        if room < 0:
            raise NoPlan("parameters, inputs and outputs alone are over the capacity")
        if formulation == "synchronous":
            placed = TwoTiers(graph, machine, room, static=False).solve(seconds, gap)
            chosen = placed.decisions(graph)
        else:
            chosen, _, _ = Overlapped(graph, machine, room, window=window).solve(seconds, gap)
        try:
            found = realise(graph, machine, chosen, formulation)
        except NoPlan as error:
            problem = error
            room -= machine.capacity // 100
            continue
        ran = check(graph, machine, found)
        waits = formulation == "synchronous"  # for every copy, which the replay does not
        return replace(
            found, seconds=chosen.seconds if waits else ran.seconds, bound=chosen.bound,
            gap=1.0 - chosen.bound / chosen.seconds if chosen.seconds else 0.0,
            solve_seconds=time.perf_counter() - began,
            notes={
                **found.notes, "programme": chosen.seconds, "replayed": ran.seconds,
                "retries": float(turn),
            },
        )  # fmt: skip
    raise problem

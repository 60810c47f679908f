"""A budget: its bytes, the least that can be met, what it leaves to the arena; its plan."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

from autotm.executor.calls import BLOCK, Capture
from autotm.executor.errors import BudgetError
from autotm.executor.profiling import Link
from autotm.graph import Graph, Machine, Plan, aligned
from autotm.planner.model import NoPlan
from autotm.report import enough, size

HALVINGS = 6
Planner = Callable[[Graph, Machine], Plan]
_UNITS = {
    "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40,
}  # fmt: skip


def bytes_of(budget: str | float) -> int:
    """ "12GiB", "10.2 GB" or a number of bytes, in bytes. Raises ValueError."""
    if isinstance(budget, (int, float)) and math.isfinite(budget):
        return int(budget)
    found = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]i?)?b?\s*", str(budget).lower())
    try:
        assert found is not None
        return round(float(found[1]) * _UNITS[found[2] or ""])
    except (AssertionError, ValueError):
        raise ValueError(f"{budget!r} is no size: write it as 12GiB or 10.2GB") from None


def least(found: Capture, graph: Graph, outside: int) -> int:
    """Bytes below which no plan can be: all that stays outside, and the largest operator."""
    sizes = [aligned(tensor.bytes, BLOCK) for tensor in graph.tensors]
    largest = max((sum(sizes[each] for each in op.operands) for op in graph.ops), default=0)
    return found.resident_bytes + outside + largest


def meets(found: Capture, graph: Graph, cap: int, outside: int) -> None:
    """Raises BudgetError where a budget of `cap` bytes is below the least."""
    lowest, work = least(found, graph, outside), f" {size(outside)} of workspace," * bool(outside)
    if cap < lowest:
        raise BudgetError(
            f"a budget of {size(cap)} cannot be met: the step needs at least {enough(lowest)} "
            f"({size(found.resident_bytes)} of parameters, inputs and gradients,{work} the rest "
            "for its largest operator); raise it or take a smaller batch",
            lowest,
        )


def remaining(found: Capture, graph: Graph, cap: int, outside: int, rates: Link) -> Machine:
    """The machine with the arena that `cap` bytes leave. Raises BudgetError."""
    meets(found, graph, cap, outside)
    capacity = (cap - found.resident_bytes - outside) // BLOCK * BLOCK
    return Machine(capacity, rates.to_host, rates.from_host, rates.duplex, align=BLOCK)


def planned(graph: Graph, machine: Machine, planner: Planner, cap: int) -> Plan:
    """The plan; or a BudgetError with the least arena, halved down to, that has one."""
    try:
        return planner(graph, machine)
    except NoPlan as error:
        low, high = machine.capacity, aligned(2 * graph.peak_bytes, BLOCK)
        for _ in range(HALVINGS):
            middle = (low + high) // 2 // BLOCK * BLOCK
            try:
                high = planner(graph, replace(machine, capacity=middle)).peak_bytes
            except NoPlan:
                low = middle
        lowest = cap - machine.capacity + high
        raise BudgetError(
            f"a budget of {size(cap)} cannot be met: the least for which a plan was found is "
            f"{enough(lowest)}; raise it or take a smaller batch",
            lowest,
        ) from error

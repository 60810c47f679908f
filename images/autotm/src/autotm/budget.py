"""A budget: its bytes, the least that can be met, and what it leaves to the arena."""

from __future__ import annotations

import math
import re

from autotm.executor.calls import BLOCK, Capture
from autotm.executor.errors import BudgetError
from autotm.executor.profiling import Link
from autotm.graph import Graph, Machine, aligned
from autotm.report import enough, size

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

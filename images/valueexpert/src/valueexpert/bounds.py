"""The gain that findings promise from the program as it is: fewer bytes, moved as fast as now."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from accel_trace.values.findings import Finding, narrowed
from accel_trace.values.recorded import Replay
from accel_trace.values.shadow import ALLOC, KERNEL

KERNELS, MEMORY = "kernel", "memory"


def moved(found: Replay) -> dict[str, int]:
    """Bytes that kernels access, and bytes of copies and fills."""
    operations = [e.written for e in found.shadow.effects if e.kind not in (ALLOC, KERNEL)]
    return {KERNELS: sum(found.moved.values()), MEMORY: sum(operations)}


def spared(
    found: Replay, findings: Sequence[Finding], fixed: Collection[tuple[str, str]]
) -> dict[str, int]:
    """Bytes that go when the findings `fixed` (pattern and object) are dealt with.

    Of several patterns of what one kernel reads (or writes) of one object the largest counts. A
    narrower type makes the copies of its object smaller, too.
    """
    kernels: dict[tuple[str, str], int] = {}
    copies: dict[tuple[str, str], int] = {}
    ratios: dict[str, float] = {}
    for view in found.views:
        for pattern in view.patterns:
            if pattern.name == "heavy_type" and (pattern.name, view.thing.context) in fixed:
                ratio = float(pattern.numbers["ratio"])
                name = view.thing.context
                ratios[name] = min(ratio, ratios.get(name, ratio))
    for one in findings:
        if (one.name, one.thing) not in fixed:
            continue
        in_kernel = one.context.partition(", ")[0] in found.moved
        place = f"{one.context}, write" if one.name == "redundant_write" else one.context
        stakes = kernels if in_kernel else copies
        key = (place, one.thing)
        stakes[key] = max(stakes.get(key, 0), one.at_stake)
    for effect in found.shadow.effects:
        narrower = ratios.get(effect.thing.context)
        if narrower and effect.kind not in (ALLOC, KERNEL):
            key = (effect.context, effect.thing.context)
            copies[key] = copies.get(key, 0) + narrowed(narrower, effect.written)
    return {KERNELS: sum(kernels.values()), MEMORY: sum(copies.values())}


def foretold(spent: Mapping[str, float], shares: Mapping[str, float]) -> float | None:
    """Times faster if these shares of the parts' times go; None where nothing is left."""
    left = sum(time * (1 - shares.get(part, 0.0)) for part, time in spent.items())
    return sum(spent.values()) / left if left > 0 else None


def gain(of: int, stake: int) -> float | None:
    """So many times faster if these bytes go and no others; None where nothing is left."""
    return of / (of - stake) if 0 <= stake < of else None

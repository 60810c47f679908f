"""Managed memory: pages come to the device when a kernel touches them. Simulated, as in Figure 12.

cudaMallocManaged's own policy is not published. Here a page that is not there faults, the oldest
ones make room, and a page that was written goes back over the link; the kernel waits for all of it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from autotm.graph import Graph
from autotm.sim.baselines import addresses
from autotm.sim.tiers import Gpu

BLOCK = 2 << 20  # bytes: what the driver moves at once, and what one fault brings


@dataclass(frozen=True)
class Paged:
    """An iteration: seconds, bytes that came to the device and that went back."""

    seconds: float
    came: int
    went: int


def managed(graph: Graph, gpu: Gpu, capacity: int, fault: float, warm: int = 1) -> Paged:
    """An iteration with every tensor in managed memory and `capacity` bytes of the device.

    fault: seconds to serve one (a block), beside its bytes. warm: iterations before the one that
    counts.
    """
    where, room = addresses(graph), capacity // BLOCK
    there: OrderedDict[int, bool] = OrderedDict()  # page -> written since it came, oldest first
    found = Paged(0.0, 0, 0)
    for _ in range(warm + 1):
        seconds, came, went = 0.0, 0, 0
        for op in graph.ops:
            brought = evicted = 0
            for place, tensor in enumerate(op.operands):
                written = place >= len(op.inputs)
                low, high = where[tensor], where[tensor] + graph.tensors[tensor].bytes
                for page in range(low // BLOCK, -(-high // BLOCK)):
                    dirty = there.pop(page, None)
                    if dirty is None:
                        brought += 1
                        if len(there) >= room:
                            evicted += there.popitem(last=False)[1]
                    there[page] = written or bool(dirty)
            came, went = came + brought * BLOCK, went + evicted * BLOCK
            seconds += op.seconds + brought * fault + (brought + evicted) * BLOCK / gpu.link
        found = Paged(seconds, came, went)
    return found

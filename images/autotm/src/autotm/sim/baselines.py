"""What the paper compares with: first touch, and DRAM as a hardware cache of slow memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np

from autotm.graph import Graph, aligned
from autotm.planner.packing import pack
from autotm.sim.tiers import PAGE, Host

FREE = ("activation", "gradient")


class Pool:
    """A first-fit allocator of `size` bytes."""

    def __init__(self, size: int) -> None:
        self._holes = [(0, size)] if size else []  # (address, bytes), by address

    def take(self, size: int) -> int | None:
        """An address of `size` bytes, or None where no hole is large enough."""
        for place, (address, room) in enumerate(self._holes):
            if room >= size:
                self._holes[place : place + 1] = (
                    [(address + size, room - size)] if room > size else []
                )
                return address
        return None

    def give(self, address: int, size: int) -> None:
        """Free what `take` returned; neighbouring holes become one."""
        insort(self._holes, (address, size))
        place = bisect_left(self._holes, (address, size))
        for at in (place, place - 1):
            if 0 <= at < len(self._holes) - 1:
                (low, room), (high, more) = self._holes[at], self._holes[at + 1]
                if low + room == high:
                    self._holes[at : at + 2] = [(low, room + more)]


def first_touch(graph: Graph, room: int) -> float:
    """Seconds of an iteration where each new tensor lies in DRAM if it fits, else in slow memory.

    For its whole life, without any copy; parameters, inputs and outputs are in DRAM beside it.
    """
    pool, where = Pool(room), dict[int, int]()
    dying: dict[int, list[int]] = {}
    for each in graph.tensors:
        if each.kind in FREE:
            dying.setdefault(graph.life(each.id)[1], []).append(each.id)
    seconds = 0.0
    for op in graph.ops:
        for tensor in op.outputs:
            each = graph.tensors[tensor]
            if each.kind in FREE:
                address = pool.take(aligned(each.bytes, PAGE))
                if address is not None:
                    where[tensor] = address
        mask = 0
        for bit, tensor in enumerate(op.operands):
            if graph.tensors[tensor].kind in FREE and tensor not in where:
                mask |= 1 << bit
        seconds += op.placed[mask]
        for tensor in dying.get(op.index, ()):
            if tensor in where:
                pool.give(where.pop(tensor), aligned(graph.tensors[tensor].bytes, PAGE))
    return seconds


@dataclass(frozen=True)
class CacheRun:
    """An iteration with DRAM as a cache: seconds, bytes read from and written to slow memory."""

    seconds: float
    read: int
    written: int


def cached(
    graph: Graph, host: Host, size: int, *, miss_read: float = 20e9, miss_write: float = 8e9,
    block: int = 1 << 20, warm: int = 1,
) -> CacheRun:  # fmt: skip
    """An iteration over a direct-mapped, write-allocate cache of `size` bytes, in blocks.

    Tensors have packed addresses; every touched block that is not there is read, and a changed
    one that it replaces is written. miss_read, miss_write: bytes/s of these; warm: iterations
    before the one that counts.
    """
    where = addresses(graph)
    lines = size // block
    tags = np.full(lines, -1, dtype=np.int64)
    dirty = np.zeros(lines, dtype=bool)
    run = CacheRun(0.0, 0, 0)
    for _ in range(warm + 1):
        seconds, reads, writes = 0.0, 0, 0
        for op in graph.ops:
            missed = evicted = 0
            for place, tensor in enumerate(op.operands):
                length = graph.tensors[tensor].bytes
                if not length:
                    continue
                low, high = where[tensor] // block, (where[tensor] + length - 1) // block
                for begin in range(low, high + 1, lines):
                    blocks = np.arange(begin, min(begin + lines, high + 1))
                    slots = blocks % lines
                    miss = tags[slots] != blocks
                    missed += int(miss.sum())
                    evicted += int((dirty[slots] & miss & (tags[slots] >= 0)).sum())
                    dirty[slots] &= ~miss
                    tags[slots] = blocks
                    if place >= len(op.inputs):
                        dirty[slots] = True
            reads, writes = reads + missed * block, writes + evicted * block
            slow = missed * block / miss_read + evicted * block / miss_write
            seconds += max(op.placed[0] - host.launch, slow) + host.launch
        run = CacheRun(seconds, reads, writes)
    return run


def addresses(graph: Graph) -> list[int]:
    """Where each tensor lies, everything kept and packed: what has no plan works on these."""
    last = len(graph.ops) - 1
    boxes = []
    for each in graph.tensors:
        begin, end = graph.life(each.id)
        boxes.append((begin, last if each.kind == "output" else end, aligned(each.bytes, PAGE)))
    return pack(boxes, sum(size for _, _, size in boxes))[0]

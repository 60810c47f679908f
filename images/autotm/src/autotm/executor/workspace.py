"""How much workspace operators get, and where: with more some are faster, and less is left.

cuDNN has several algorithms for a convolution. PyTorch takes the first, in cuDNN's order, whose
workspace can be had, and keeps to it in that thread until it cannot be had again. So an operator
that runs under a limit once does with less from then on, in the plain step, too; and with the
algorithm that comes next in the order, which may even be faster.

Where an operator needs much, that is memory of the arena while it runs, and of others' tensors
before and after. So it must fit beside the operator's own tensors alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import torch

from autotm.executor.arena import arena_graph
from autotm.executor.calls import BLOCK, Capture
from autotm.executor.kernels import apart
from autotm.executor.memory import given_bytes, regions_on
from autotm.executor.profiling import INFINITE, Cache, Measured, in_backward, profile
from autotm.graph import Tensor, aligned

LEAST = 1 << 26  # bytes of an operator's memory; less is not looked for
FASTER = 0.98  # of the seconds with another limit, else that one is kept
LOWER = 0.9  # of what the largest operator needs, from one way to limit workspace to the next
SHARE = 0.01  # of an iteration's peak: who needs less has its workspace outside the arena


Limits = Sequence[int | None]


@dataclass(frozen=True)
class Width:
    """A limit on the workspace of each call of a capture, in bytes or None; times under them."""

    limits: Limits
    times: Sequence[Measured]

    @property
    def limited(self) -> bool:
        return any(limit is not None for limit in self.limits)

    def apply(self, capture: Capture, cache: Cache) -> None:
        """Bring this thread, and autograd's, to it."""
        if self.limited:
            again = partial(profile, capture, cache, known=self.times, limits=self.limits)
            again()
            in_backward(capture.device, again)


def placed(capture: Capture, times: Sequence[Measured]) -> Capture:
    """The capture with the memory in which an operator runs as a tensor, where it needs much.

    It is there while the operator runs; where that hands a tensor on, until this has been read.
    """
    graph = capture.graph
    least = max(LEAST, SHARE * graph.peak_bytes)
    tensors, ops, rooms = list(graph.tensors), list(graph.ops), {}
    for op, each in zip(graph.ops, times, strict=True):
        if each.room > least:
            room = rooms[op.index] = len(tensors)
            tensors.append(Tensor(room, each.room, "activation", f"workspace of {op.name}"))
            now = ops[op.index]
            ops[op.index] = replace(now, outputs=(*now.outputs, room))
            if any(graph.tensors[each].kind == "handed" for each in op.outputs):
                reader = ops[op.index + 1]
                ops[op.index + 1] = replace(reader, inputs=(*reader.inputs, room))
    found = replace(graph, tensors=tuple(tensors), ops=tuple(ops))
    return replace(capture, graph=found, rooms=rooms)


def widths(capture: Capture, times: Sequence[Measured], cache: Cache) -> list[Width]:
    """Ways to limit workspace, from the widest on: the largest operator with its tensors needs less
    in each.

    In each of them every call has the limit with which it is fastest. They are tried in a thread
    that ends with it: halves of halves of the largest workspace. On a CPU workspace is not known,
    and there is one way.
    """
    free = [None for _ in times]
    if not regions_on(capture.device):
        return [Width(free, times)]
    sizes = [
        given_bytes(call) + each.outside for call, each in zip(capture.calls, times, strict=True)
    ]
    roomy = [INFINITE if size > LEAST else None for size in sizes]
    found = [Width(free, profile(capture, cache, known=times, limits=roomy))]
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_tried, capture, cache, found).result()
    return chosen(capture, found)


def _tried(capture: Capture, cache: Cache, found: list[Width]) -> None:
    """Add narrower ways to the first. What cannot do with one limit is not tried with a lower one.

    It is the workspace that is limited; beside it a call may have its results.
    """
    results = [given_bytes(call) for call in capture.calls]
    limit = max(each.outside for each in found[0].times) // 2
    fixed: set[int] = set()
    with torch.cuda.device(capture.device), apart():
        while limit >= LEAST:
            last = found[-1]
            large = {n for n, t in enumerate(last.times) if t.room and t.outside > limit} - fixed
            now = [limit if n in large else None for n in range(len(last.times))]
            times = profile(capture, cache, known=last.times, limits=now)
            fixed |= {n for n in large if times[n].outside > limit + results[n]}
            limits = [limit if n in large else old for n, old in enumerate(last.limits)]
            found.append(Width(limits, times))
            limit //= 2


def chosen(capture: Capture, tried: Sequence[Width]) -> list[Width]:
    """For one size after the other: each call with the limit that makes it fastest, of those with
    which it fits into that size, or else needs the least.

    Where a call hands a tensor on, all of its memory is there until the next one has read that.
    """
    graph = arena_graph(capture.graph)
    own = [sum(aligned(graph.tensors[t].bytes, BLOCK) for t in op.operands) for op in graph.ops]
    hands = [any(capture.graph.tensors[t].kind == "handed" for t in op.outputs) for op in graph.ops]
    rooms = [[max(each.times[n].room, each.times[n].outside) for each in tried]
             for n in range(len(own))]  # fmt: skip

    def needs(n: int, before: int) -> list[int]:
        """With each limit; before: bytes of the memory that the call before left."""
        then = own[n + 1] + min(rooms[n + 1]) if hands[n] else 0
        return [max(own[n] + before, then) + room for room in rooms[n]]

    least = [min(room) if hand else 0 for room, hand in zip(rooms, hands, strict=True)]
    every = [needs(n, before) for n, before in enumerate([0, *least[:-1]])]

    def within(most: float) -> Width:
        picked, before = [], 0
        for n, room in enumerate(rooms):
            sizes = needs(n, before)
            fit = [k for k, size in enumerate(sizes) if size <= most] or [sizes.index(min(sizes))]
            best = fit[0]
            for k in fit:
                if tried[k].times[n].seconds < FASTER * tried[best].times[n].seconds:
                    best = k
            picked.append(tried[best])
            before = room[best] if hands[n] else 0
        return Width([w.limits[n] for n, w in enumerate(picked)],
                     [w.times[n] for n, w in enumerate(picked)])  # fmt: skip

    found = [within(float("inf"))]
    most, floor = max(map(max, every)), max(map(min, every))
    for size in sorted({size for sizes in every for size in sizes}, reverse=True):
        if floor <= size <= LOWER * most or size == floor < most:
            most, width = size, within(size)
            if width != found[-1]:
                found.append(width)
    return found

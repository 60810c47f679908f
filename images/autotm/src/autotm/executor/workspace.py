"""How much workspace operators get: with more some are faster, and less is left to tensors.

cuDNN has several algorithms for a convolution. PyTorch takes the first, in cuDNN's order, whose
workspace can be had, and keeps to it in that thread until it cannot be had again. So an operator
that runs under a limit once does with less from then on, in the plain step, too; and with the
algorithm that comes next in the order, which may even be faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch

from autotm.executor.calls import Capture
from autotm.executor.kernels import apart
from autotm.executor.profiling import Cache, Measured, given, in_backward, profile

LEAST = 1 << 26  # bytes; less is not looked for
FASTER = 0.98  # of the seconds with another limit, else that one is kept


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


def widths(capture: Capture, times: Sequence[Measured], cache: Cache) -> list[Width]:
    """Ways to limit workspace, from the widest on: halves of halves of the largest one.

    In each of them every call has that limit or a lower one, with which it is fastest. They are
    tried in a thread that ends with it. On a CPU workspace is not known, and there is one way.
    """
    found = [Width([None for _ in times], times)]
    if capture.device.type != "cuda":
        return found
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_tried, capture, cache, found).result()
    for number in range(len(found) - 2, -1, -1):
        found[number] = _fastest(found[number], found[number + 1])
    return found


def _tried(capture: Capture, cache: Cache, found: list[Width]) -> None:
    """Add narrower ways to the first. What cannot do with one limit is not tried with a lower one.

    It is the workspace that is limited; beside it a call may have its results.
    """
    results = [given(call) for call in capture.calls]
    limit = max(each.outside for each in found[0].times) // 2
    fixed: set[int] = set()
    with torch.cuda.device(capture.device), apart():
        while limit >= LEAST:
            last = found[-1]
            large = {n for n, each in enumerate(last.times) if each.outside > limit} - fixed
            now = [limit if n in large else None for n in range(len(last.times))]
            times = profile(capture, cache, known=last.times, limits=now)
            fixed |= {n for n in large if times[n].outside > limit + results[n]}
            limits = [limit if n in large else old for n, old in enumerate(last.limits)]
            found.append(Width(limits, times))
            limit //= 2


def _fastest(wide: Width, narrow: Width) -> Width:
    """The wide one, with the narrow one's limits where these make a call faster."""
    better = [
        less.seconds < FASTER * more.seconds
        for more, less in zip(wide.times, narrow.times, strict=True)
    ]
    of = [narrow if each else wide for each in better]
    return Width([w.limits[n] for n, w in enumerate(of)], [w.times[n] for n, w in enumerate(of)])

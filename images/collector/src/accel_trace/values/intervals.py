"""Byte ranges as sorted, disjoint intervals; those that touch are one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Intervals:
    """Starts and ends (not included), in bytes."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def bytes(self) -> int:
        """Bytes that lie in one of them."""
        return int((self.ends - self.starts).sum())

    def pairs(self) -> list[tuple[int, int]]:
        """The same as plain numbers."""
        return [(int(a), int(b)) for a, b in zip(self.starts, self.ends, strict=True)]


def merge(starts: NDArray[np.integer], sizes: NDArray[np.integer]) -> Intervals:
    """The intervals that ranges of `sizes` bytes at `starts` cover; empty ranges are none."""
    kept = np.asarray(sizes) > 0
    begin = np.asarray(starts)[kept].astype(np.int64)
    end = begin + np.asarray(sizes)[kept].astype(np.int64)
    if not len(begin):
        return Intervals(begin, end)
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    breaks = begin[1:] > end[:-1]
    return Intervals(begin[np.append(True, breaks)], end[np.append(breaks, True)])


def copy_plan(
    intervals: Intervals, latency_s: float, bytes_per_s: float
) -> tuple[str, Sequence[tuple[int, int]]]:
    """The cheaper way to fetch them: each by itself, or all that lies from first to last.

    A copy costs its latency and its bytes. Whole objects are never cheaper than the span.
    """
    if not len(intervals):
        return "segments", []
    span = [(int(intervals.starts[0]), int(intervals.ends[-1]))]
    apart = len(intervals) * latency_s + intervals.bytes / bytes_per_s
    together = latency_s + (span[0][1] - span[0][0]) / bytes_per_s
    return ("segments", intervals.pairs()) if apart < together else ("span", span)

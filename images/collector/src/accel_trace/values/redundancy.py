"""Temporal and spatial redundancy per instruction (GVProf), over the accesses of one kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from accel_trace.values.accesses import Accesses


@dataclass(frozen=True)
class Temporal:
    """A thread met the same value at the same address again: pairs of instructions and counts."""

    accesses: int  # of this kind (reads or writes)
    pairs: Mapping[tuple[int, int], int] = field(default_factory=dict)  # (previous pc, pc) -> count

    @property
    def redundant(self) -> int:
        """Accesses that repeated the one before."""
        return sum(self.pairs.values())

    @property
    def rate(self) -> float:
        """Redundant over all accesses of the kind."""
        return self.redundant / self.accesses if self.accesses else 0.0


@dataclass(frozen=True)
class Spatial:
    """How many accesses of an instruction moved its most frequent value, whatever thread it was."""

    accesses: int
    most: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)  # pc -> value, n, of

    @property
    def rate(self) -> float:
        """Accesses of every instruction's most frequent value over all accesses of the kind."""
        return sum(n for _, n, _ in self.most.values()) / self.accesses if self.accesses else 0.0


def temporal(accesses: Accesses) -> Temporal:
    """Of accesses of one kind, in each thread's order. State dies with the launch."""
    keys = (accesses.address, accesses.thread, accesses.block, accesses.launch)
    order = np.lexsort((np.arange(len(accesses)), *keys))
    same = np.ones(max(len(order) - 1, 0), bool)
    for column in (*keys, accesses.low, accesses.high, accesses.size):
        same &= column[order][1:] == column[order][:-1]
    pcs = accesses.pc[order]
    return Temporal(len(accesses), _pair_counts(pcs[:-1][same], pcs[1:][same]))


def _pair_counts(
    before: NDArray[np.uint32], after: NDArray[np.uint32]
) -> dict[tuple[int, int], int]:
    if not len(before):
        return {}
    both, counts = np.unique(np.stack([before, after]), axis=1, return_counts=True)
    return {(int(a), int(b)): int(n) for a, b, n in zip(*both, counts, strict=True)}


def spatial(accesses: Accesses) -> Spatial:
    """Of accesses of one kind, of one element each; an instruction mostly has one object."""
    if not len(accesses):
        return Spatial(0)
    rows = np.stack([accesses.pc.astype(np.uint64), accesses.low])
    pairs, counts = np.unique(rows, axis=1, return_counts=True)
    totals: dict[int, int] = {}
    most: dict[int, tuple[int, int]] = {}
    for pc, value, count in zip(*pairs, counts, strict=True):
        site, n = int(pc), int(count)
        totals[site] = totals.get(site, 0) + n
        if n > most.get(site, (0, 0))[1]:
            most[site] = (int(value), n)
    return Spatial(len(accesses), {pc: (*most[pc], totals[pc]) for pc in most})

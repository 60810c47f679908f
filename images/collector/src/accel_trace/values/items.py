"""Accesses to one object by one kernel, as items: an element that was accessed and its values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accel_trace.values.accesses import Accesses
from accel_trace.values.elements import Bits, Element, coarsen


@dataclass(frozen=True, eq=False)
class Items:
    """Distinct (element, value) pairs in order of element, and how often each was accessed.

    `offset` is in elements from the object's start; `first` marks the first pair of each element,
    `unique` the pairs of elements that showed one value only.
    """

    element: Element
    offset: NDArray[np.int64]
    value: Bits
    count: NDArray[np.int64]

    @property
    def first(self) -> NDArray[np.bool_]:
        """True at the first pair of each element."""
        return np.diff(self.offset, prepend=-1) != 0

    @property
    def unique(self) -> NDArray[np.bool_]:
        """True where an element has this value and no other."""
        last = np.append(np.diff(self.offset) != 0, True)
        return self.first & last if len(self.offset) else self.first

    @property
    def accesses(self) -> int:
        """How many accesses there were."""
        return int(self.count.sum())

    def __len__(self) -> int:
        return int(self.first.sum())


def collect(accesses: Accesses, base: int, element: Element, level: str = "none") -> Items:
    """The items of accesses to the object at `base`, each of one element of that type.

    Floats are cut to the mantissa bits of `level` first. Raises ValueError for accesses that are
    wider than an element, or that do not lie at one.
    """
    if (accesses.size != element.size).any():
        raise ValueError(f"an access is not of {element.size} bytes; split vector accesses first")
    distance = accesses.address.astype(np.int64) - base
    if len(distance) and (distance.min() < 0 or (distance % element.size).any()):
        raise ValueError(f"an access lies at no element of {element.size} bytes of its object")
    return _pairs(element, distance // element.size, coarsen(accesses.low, element, level))


def _pairs(
    element: Element,
    offset: NDArray[np.int64],
    value: Bits,
    count: NDArray[np.int64] | None = None,
) -> Items:
    order = np.lexsort((value, offset))
    offset, value = offset[order], value[order]
    weights = np.ones(len(order), np.int64) if count is None else count[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = (np.diff(offset) != 0) | (value[1:] != value[:-1])
    starts = np.flatnonzero(fresh)
    counts = np.add.reduceat(weights, starts) if len(starts) else weights
    return Items(element, offset[starts], value[starts], counts)


def coarser(items: Items, level: str) -> Items:
    """The same items with floats of fewer mantissa bits: pairs that became equal are merged."""
    return _pairs(
        items.element, items.offset, coarsen(items.value, items.element, level), items.count
    )

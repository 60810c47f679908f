"""Addresses: stays of known size and time are packed into as low an arena as the orders find."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Box = tuple[int, int, int]  # first step, last step (inclusive), bytes (aligned)


def pack(boxes: Sequence[Box], room: int) -> tuple[list[int], int]:
    """Addresses of the boxes and the height they reach, the least of several orders.

    Ends with the first order that fits into `room` bytes. Each box takes the lowest or the tightest
    hole among those that live beside it; where none of the orders fits, the box that ends highest
    is placed before all others, and again.
    """
    keys: list[Callable[[Box], tuple[int, ...]]] = [
        lambda box: (box[0] - box[1], -box[2]),
        lambda box: (-box[2], box[0] - box[1]),
        lambda box: (-(box[1] - box[0] + 1) * box[2],),
        lambda box: (box[0], box[0] - box[1], -box[2]),
    ]
    best: tuple[list[int], int] | None = None
    tried: list[tuple[int, list[int], list[int], bool]] = []
    for key in keys:
        for tight in (False, True):
            order = sorted(range(len(boxes)), key=lambda i: key(boxes[i]))
            addresses, height = _placed(boxes, order, tight)
            tried.append((height, order, addresses, tight))
            if best is None or height < best[1]:
                best = addresses, height
            if height <= room:
                return best
    assert best is not None
    for _, order, first, tight in sorted(tried, key=lambda each: each[0])[:2]:
        addresses = first
        for _ in range(max(4, 20_000 // len(boxes))):
            high = max(range(len(boxes)), key=lambda i: addresses[i] + boxes[i][2])
            order.remove(high)
            order.insert(0, high)
            addresses, height = _placed(boxes, order, tight)
            if height < best[1]:
                best = addresses, height
            if height <= room:
                return best
    return best


def _placed(boxes: Sequence[Box], order: Sequence[int], tight: bool) -> tuple[list[int], int]:
    count = len(boxes)
    begins, ends = np.empty(count, np.int64), np.empty(count, np.int64)
    lows, highs = np.empty(count, np.int64), np.empty(count, np.int64)
    addresses, height = [0] * count, 0
    for done, place in enumerate(order):
        begin, end, size = boxes[place]
        beside = (begins[:done] <= end) & (ends[:done] >= begin)
        address = _hole(lows[:done][beside], highs[:done][beside], size, tight)
        begins[done], ends[done] = begin, end
        lows[done], highs[done] = address, address + size
        addresses[place] = address
        height = max(height, address + size)
    return addresses, height


def _hole(lows: np.ndarray, highs: np.ndarray, size: int, tight: bool) -> int:
    """The lowest, or the tightest, hole of `size` bytes between the neighbours."""
    if not len(lows) or not size:
        return 0
    order = np.argsort(lows, kind="stable")
    tops = np.concatenate(([0], np.maximum.accumulate(highs[order])))
    holes = lows[order] - tops[:-1]
    fits = np.flatnonzero(holes >= size)
    if not len(fits):
        return int(tops[-1])
    pick = fits[np.argmin(holes[fits])] if tight else fits[0]
    return int(tops[pick])


def height_at_least(boxes: Sequence[Box]) -> int:
    """The most bytes that live at a step: no packing is lower."""
    change: dict[int, int] = {}
    for begin, end, size in boxes:
        change[begin] = change.get(begin, 0) + size
        change[end + 1] = change.get(end + 1, 0) - size
    total = most = 0
    for step in sorted(change):
        total += change[step]
        most = max(most, total)
    return most

"""Addresses: stays of known size and time are packed into a low arena.

The lowest stretch of a skyline over time is filled with the box that lives longest (as Sekiyama et
al., "Profile-guided memory optimization for deep neural networks", 2018, do); boxes that end too
high are then preferred, and all are packed again. Where few boxes do not fit so, several orders are
tried, too: each box into the lowest or the tightest hole among those that live beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Box = tuple[int, int, int]  # first step, last step (inclusive), bytes (aligned)
TRIES = 60
PREFER = 1.2  # times as much, after each time that a box ended too high
FEW = 500  # boxes, of which orders are tried


def pack(boxes: Sequence[Box], room: int, until: float = float("inf")) -> tuple[list[int], int]:
    """Addresses of the boxes and the height they reach; ends when they fit into `room` bytes.

    until: a time of `time.perf_counter`, after which what was lowest by then is taken.
    """
    real = [place for place, box in enumerate(boxes) if box[2]]
    if len(real) < len(boxes):  # what takes nothing lies anywhere, and would be in the way
        lows, height = pack([boxes[place] for place in real], room, until)
        places = dict(zip(real, lows, strict=True))
        return [places.get(place, 0) for place in range(len(boxes))], height
    if not boxes:
        return [], 0
    begins, ends, sizes = np.array(boxes, np.int64).T
    worth = (ends - begins + 1) + sizes / (2.0 * max(sizes.max(), 1))  # the larger of equals
    best: tuple[NDArray[np.int64], int] | None = None
    for _ in range(TRIES):
        addresses = _filled(begins, ends, sizes, worth)
        tops = addresses + sizes
        if best is None or tops.max() < best[1]:
            best = addresses, int(tops.max())
        if best[1] <= room or time.perf_counter() > until:
            break
        worth = np.where(tops > room, PREFER * worth, worth)
    assert best is not None
    found = [int(each) for each in best[0]], best[1]
    if found[1] <= room or len(boxes) > FEW or time.perf_counter() > until:
        return found
    return min(found, _ordered(boxes, room, until), key=lambda each: each[1])


def _filled(
    begins: NDArray[np.int64], ends: NDArray[np.int64], sizes: NDArray[np.int64],
    worth: NDArray[np.float64],
) -> NDArray[np.int64]:  # fmt: skip
    """Addresses, each the lowest that is open when the box is the worthiest that fits there."""
    order = np.argsort(-worth, kind="stable")
    begin, end, size = begins[order], ends[order], sizes[order]
    found, waiting = np.zeros(len(order), np.int64), np.ones(len(order), bool)
    line = [(0, int(begin.min()), int(end.max()))]  # height, first step, last step
    left = len(order)
    while left:
        height, first, last = lowest = min(line)
        place = line.index(lowest)
        fits = waiting & (begin >= first) & (end <= last)
        box = int(fits.argmax())
        if fits[box]:
            waiting[box], left = False, left - 1
            found[order[box]] = height
            low, high = int(begin[box]), int(end[box])
            parts = ((height, first, low - 1), (height + int(size[box]), low, high),
                     (height, high + 1, last))  # fmt: skip
            line[place : place + 1] = [part for part in parts if part[1] <= part[2]]
            continue
        around = line[max(place - 1, 0) : place] + line[place + 1 : place + 2]
        level = min(around)[0]  # nothing fits there: up to the lower neighbour
        line[place] = level, first, last
        for near in (place + 1, place):
            if 0 < near < len(line) and line[near - 1][0] == line[near][0]:
                line[near - 1 : near + 1] = [(level, line[near - 1][1], line[near][2])]
    return found


def _ordered(boxes: Sequence[Box], room: int, until: float) -> tuple[list[int], int]:
    """The least of several orders; ends with the first that fits into `room` bytes.

    Where none does, the box that ends highest is placed before all others, and again.
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
            if height <= room or time.perf_counter() > until:
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
            if height <= room or time.perf_counter() > until:
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

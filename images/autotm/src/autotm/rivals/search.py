"""A rival's knob at a cap: by measured peaks alone, which need not be monotonic in the knob."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

CLOSE = 0.01
TRIES = 12


@dataclass(frozen=True)
class Point:
    """A rival at a knob: measured peak in bytes, seconds of an iteration; which form of it."""

    rival: str
    knob: float
    peak: int
    seconds: float
    form: str = ""


def search(
    rival: str,
    knobs: Sequence[float],
    measure: Callable[[float], tuple[int, float] | None],
    cap: int,
    *,
    whole: bool,
    form: str = "",
    tries: int = TRIES,
    enough: Callable[[Point], bool] = lambda point: False,
) -> list[Point]:
    """Every point that was measured on the way to a peak within 1 % below `cap`.

    knobs: a first grid, ascending, tried from the last one on, which saves the most. measure: peak
    and seconds at a knob, None where it cannot run. whole: only whole numbers are knobs. Between
    neighbours of the grid of which one is above the cap and the other below, the knob is tried
    that a straight line between their peaks leads to, then the middle, and so on, `tries` times at
    most, closest first. enough: ends the search at a point.
    """
    found: dict[float, Point | None] = {}

    def points() -> list[Point]:
        return [point for _, point in sorted(found.items()) if point is not None]

    def ends(knob: float) -> bool:
        got = measure(knob)
        point = found[knob] = Point(rival, knob, *got, form) if got is not None else None
        return point is not None and enough(point)

    if any(ends(knob) for knob in reversed(knobs)):
        return points()
    for turn in range(tries):
        best = at_cap(points(), cap)
        if best is not None and best.peak >= (1 - CLOSE) * cap:
            break
        knob = _between(found, cap, whole, straight=turn % 2 == 0)
        if knob is None or ends(knob):
            break
    return points()


def thinned(knobs: Sequence[float], most: int) -> tuple[float, ...]:
    """At most `most` (two or more) of a grid's knobs, evenly, with both ends."""
    last = len(knobs) - 1
    if last < most:
        return tuple(knobs)
    return tuple(knobs[round(place * last / (most - 1))] for place in range(most))


def _between(
    found: dict[float, Point | None], cap: int, whole: bool, straight: bool
) -> float | None:
    """A knob between two neighbours on both sides of the cap, from the closest below it.

    straight: where the peak would be just below the cap, were it on a line; else the middle.
    """
    choices, step = [], 1.0 if whole else 1e-4
    for low, high in pairwise(sorted(found)):
        ends = found[low], found[high]
        close = high - low < (2 if whole else 1e-3)
        if close or _fits(ends[0], cap) == _fits(ends[1], cap):
            continue
        inside = next(each for each in ends if each is not None and each.peak <= cap)
        share = 0.5
        if straight and ends[0] is not None and ends[1] is not None:
            aim = (1 - CLOSE / 2) * cap
            share = (aim - ends[0].peak) / (ends[1].peak - ends[0].peak)
        knob = round(low + share * (high - low), 0 if whole else 4)
        choices.append((inside.peak, min(max(knob, low + step), high - step)))
    return max(choices)[1] if choices else None


def _fits(point: Point | None, cap: int) -> bool:
    return point is not None and point.peak <= cap


def at_cap(points: Iterable[Point], cap: int) -> Point | None:
    """The fastest point that keeps the cap."""
    fitting = [point for point in points if point.peak <= cap]
    return min(fitting, key=lambda point: point.seconds, default=None)

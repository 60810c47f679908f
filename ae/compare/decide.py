"""Faster, slower, the same within r, or undecided: a word for every cell of two results. Pure.

A word needs two things of the ratio B / A. Its 95 % interval (ae.statistics: processes first, then
samples) lies wholly beyond the margin r, or wholly within it. And a rank test of the processes'
medians says so, after the false discovery rate of all cells is held at 5 %: Mann and Whitney's,
exact for any distribution, with one side moved by r (for the same: two such tests, TOST).
Benjamini and Hochberg's procedure does it, separately for changes and for samenesses: cells of one
process move together, a positive dependence under which it holds. A margin, because two runs of one
program differ by more than their intervals say: what does not differ by more is no change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from statistics import NormalDist, median
from typing import TYPE_CHECKING

from ae.compare.cells import Cell
from ae.figures.summary import ratio_interval
from ae.statistics import FEWEST, Interval, Samples
from ae.units import TIMES

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

FALSE = 0.05  # the share of words of a table that may be wrong
LEAST = 0.01  # the smallest margin
POWER = 0.9  # with which the processes that are asked for decide
MOST = 1000  # processes that anybody is asked for
_EXACT = 2500  # pairs of processes whose orders are counted
_MEDIAN = math.sqrt(math.pi / 2)  # standard error of a median over that of a mean


class Word(StrEnum):
    """What became of a cell, in the order in which they are shown."""

    SLOWER = "slower"
    FASTER = "faster"
    HIGHER = "higher"  # where nobody knows which is better
    LOWER = "lower"
    UNDECIDED = "undecided"
    SAME = "same"
    NONE = ""  # not judged


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A cell, the medians `a` and `b` over processes in its unit, their ratio b / a, and its word.

    `margin` is r, 0.01 for 1 %. `needed`: processes of each side that would decide it.
    """

    cell: Cell
    a: float
    b: float
    ratio: Interval | None  # None: there is none of values that are not positive
    margin: float
    word: Word
    needed: int | None = None


def decide(cells: Sequence[Cell], margins: Mapping[str, float]) -> list[Finding]:
    """A word for every cell without differences; `margins` are r by metric, else LEAST."""
    each = [margins.get(cell.metric, LEAST) for cell in cells]
    values = [(medians(cell.a), medians(cell.b)) for cell in cells]
    tested = [
        at for at, cell in enumerate(cells)
        if not (cell.static or cell.differs) and min(map(min, values[at])) > 0
    ]  # fmt: skip
    tests = [rank_tests(*values[at], each[at]) for at in tested]
    families = (adjusted([one[kind] for one in tests]) for kind in (0, 1))
    chances = dict(zip(tested, zip(*families, strict=True), strict=True))
    beyond = {at: abs(_shift(*values[at])) > math.log1p(each[at]) for at in tested}
    found = []
    for at, (cell, margin) in enumerate(zip(cells, each, strict=True)):
        a, b = (float(median(side)) for side in values[at])
        ratio = ratio_interval(cell.b, cell.a) if min(map(min, values[at])) > 0 else None
        word, more = Word.UNDECIDED, None
        if cell.differs:
            word = Word.NONE
        elif cell.static:
            word = Word.SAME if a == b else direction(cell.unit, up=b > a)
        elif ratio and at in chances:
            word = word_for(cell.unit, ratio, margin, *chances[at])
            if word is Word.UNDECIDED:
                alike = sum(one is beyond[at] for one in beyond.values())
                more = needed(*values[at], margin, FALSE * alike / len(tested))
        found.append(
            Finding(cell=cell, a=a, b=b, ratio=ratio, margin=margin, word=word, needed=more)
        )
    return found


def word_for(unit: str, ratio: Interval, margin: float, change: float, same: float) -> Word:
    """What interval and tests say together; without a 95 % interval nothing."""
    bound = 1 + margin
    if ratio.spread == "ci95" and change <= FALSE and (ratio.low > bound or ratio.high < 1 / bound):
        return direction(unit, up=ratio.low > bound)
    if ratio.spread == "ci95" and same <= FALSE and 1 / bound < ratio.low <= ratio.high < bound:
        return Word.SAME
    return Word.UNDECIDED


def direction(unit: str, *, up: bool) -> Word:
    """The word for a change: of a time less is faster, of a rate more; else nobody knows."""
    if unit in TIMES:
        return Word.SLOWER if up else Word.FASTER
    if unit.endswith("/s"):
        return Word.FASTER if up else Word.SLOWER
    return Word.HIGHER if up else Word.LOWER


def medians(samples: Samples) -> NDArray[float64]:
    """The median of every process; shape (processes,), in the unit of the samples."""
    import numpy as np

    return np.array([np.median(one) for one in samples.values()])


def _shift(a: NDArray[float64], b: NDArray[float64]) -> float:
    return math.log(median(b) / median(a))


def rank_tests(a: NDArray[float64], b: NDArray[float64], margin: float) -> tuple[float, float]:
    """The p values of `B / A is not beyond the margin` and of `it is not within`."""
    bound = 1 + margin
    beyond = min(rank_test(b, a * bound), rank_test(a, b * bound))
    within = max(rank_test(b * bound, a), rank_test(a * bound, b))
    return min(1.0, 2 * beyond), within


def rank_test(high: NDArray[float64], low: NDArray[float64]) -> float:
    """Mann and Whitney's one-sided p value of `high` being no larger; ties count for that.

    Exact up to 2500 pairs, above by their normal approximation.
    """
    wins, pairs = int((high[:, None] > low[None, :]).sum()), high.size * low.size
    if pairs > _EXACT:
        spread = math.sqrt(pairs * (high.size + low.size + 1) / 12)
        return 1 - NormalDist(pairs / 2, spread).cdf(wins - 0.5)
    ways = _ways(high.size, low.size)
    return sum(ways[wins:]) / sum(ways)


@cache
def _ways(n: int, m: int) -> list[int]:
    """How many orders of n and m values have 0, 1, ... n m wins: Gauss' binomial coefficient."""
    found = [1]
    for step in range(1, m + 1):  # times (1 - q^(n + step)) / (1 - q^step)
        found += [0] * n
        for at in range(len(found) - 1, n + step - 1, -1):
            found[at] -= found[at - n - step]
        for at in range(step, len(found)):
            found[at] += found[at - step]
    return found


def adjusted(chances: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg's adjusted p values, in the order given."""
    order = sorted(range(len(chances)), key=lambda at: -chances[at])
    found, least = [1.0] * len(chances), 1.0
    for above, at in enumerate(order):
        least = min(least, chances[at] * len(chances) / (len(chances) - above))
        found[at] = least
    return found


def needed(a: NDArray[float64], b: NDArray[float64], margin: float, level: float) -> int:
    """How many processes of each side would decide, with POWER at p values up to `level`.

    Estimated from the spread of the processes: enough for a ratio of 1 to be the same, and for what
    lies further beyond the margin than that to be a change; where that was not enough, for the
    ratio that was found.
    """
    import numpy as np

    most = range(FEWEST, MOST)
    least = next(count for count in most if 2 / math.comb(2 * count, count) <= level)
    if (free := a.size + b.size - 2) == 0:
        return least
    squares = sum(float(np.log(side).var()) * side.size for side in (a, b))
    z = NormalDist().inv_cdf(1 - level / 2) + NormalDist().inv_cdf(POWER)
    shift, bound, there = abs(_shift(a, b)), math.log1p(margin), min(a.size, b.size)
    for gap in (max(bound, shift - bound), abs(shift - bound) or 1e-9):
        count = math.ceil(2 * squares / free * (_MEDIAN * z / gap) ** 2)
        if count > there:
            break
    return min(MOST, max(least, count, there + 1))


def margins_of(results: Sequence[Cell]) -> dict[str, float]:
    """r by metric, of cells whose sides are repeats of one thing: what 95 % of them differ by."""
    import numpy as np

    found: dict[str, list[float]] = {}
    for cell in results:
        a, b = medians(cell.a), medians(cell.b)
        if not (cell.static or cell.differs) and min(*a, *b) > 0:
            found.setdefault(cell.metric, []).append(abs(_shift(a, b)))
    ends = {metric: math.expm1(np.quantile(shifts, 0.95)) for metric, shifts in found.items()}
    return {metric: max(LEAST, end) for metric, end in ends.items()}


def one_way(findings: Iterable[Finding]) -> tuple[Word, int, int] | None:
    """The way that all changes and nine in ten ratios point: with how many of how many. Then the
    machine may have changed rather than the code. From six ratios on: by a sign test, so many are
    less than 5 % likely."""
    judged = [one for one in findings if one.word is not Word.NONE and not one.cell.static]
    ways = [
        direction(one.cell.unit, up=one.ratio.value > 1)
        for one in judged if one.ratio and one.ratio.value != 1
    ]  # fmt: skip
    way, other = sorted((Word.SLOWER, Word.FASTER), key=ways.count, reverse=True)
    most, total = ways.count(way), ways.count(way) + ways.count(other)
    against = any(one.word is other for one in judged)
    return None if against or total < 6 or most < 0.9 * total else (way, most, total)

"""The statistics of `ae compare` against answers that are known: exact ones, and simulated runs.

A simulated process is off by an effect of its own (0.3 to 2 %, as processes of real runs are), and
its samples spread around that. Every number of a simulation is seeded.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.random import Generator

from ae.compare.cells import Cell
from ae.compare.decide import (
    FALSE,
    Finding,
    Word,
    adjusted,
    decide,
    direction,
    margins_of,
    needed,
    one_way,
    rank_test,
    rank_tests,
)
from ae.statistics import Samples

CHANGED = {Word.SLOWER, Word.FASTER}
Effect = Callable[[Generator, int], "np.ndarray[tuple[int], np.dtype[np.float64]]"]


def normal(sd: float) -> Effect:
    return lambda rng, count: rng.normal(0, sd, count)


def two_modes(gap: float) -> Effect:
    """A clock, or a memory layout, that a process has or has not."""
    return lambda rng, count: gap * rng.integers(0, 2, count) + rng.normal(0, 1e-4, count)


def side(rng: Generator, name: str, effects: Sequence[float], scale: float = 1.0) -> Samples:
    return {
        ("host", f"{name}/{index}"): list(10 * scale * np.exp(effect + rng.normal(0, 0.002, 3)))
        for index, effect in enumerate(effects)
    }


def cell(a: Samples, b: Samples, unit: str = "us", **more: object) -> Cell:
    about = {"experiment": "e", "metric": "m", "labels": {}, "unit": unit, "static": False}
    return Cell(**{**about, "a": a, "b": b, **more})  # type: ignore[arg-type]


def table(rng: Generator, effect: Effect, count: int, ratios: Sequence[float]) -> list[Cell]:
    return [
        cell(side(rng, "a", effect(rng, count)), side(rng, "b", effect(rng, count), ratio))
        for ratio in ratios
    ]


def words(findings: Sequence[Finding]) -> Counter[Word]:
    return Counter(one.word for one in findings)


# -- exact answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 3), (4, 4), (5, 2)])
def test_the_rank_test_is_exact(n: int, m: int) -> None:
    """Against all orders of n + m different values."""
    orders = list(itertools.combinations(range(n + m), n))
    wins = [
        sum(x > y for x in high for y in set(range(n + m)) - set(high)) for high in map(set, orders)
    ]
    for high, won in zip(orders, wins, strict=True):
        low = [value for value in range(n + m) if value not in high]
        expected = sum(other >= won for other in wins) / len(wins)
        assert rank_test(np.array(high, float), np.array(low, float)) == pytest.approx(expected)


def test_ties_are_no_wins() -> None:
    same = np.ones(5)
    assert rank_test(same, same) == 1
    assert rank_test(same + 1, same) == pytest.approx(1 / 252)


def test_a_change_must_lie_beyond_the_margin_and_the_same_within() -> None:
    a = np.linspace(0.999, 1.001, 5)
    apart, least = pytest.approx(2 / 252), pytest.approx(1 / 252)
    assert rank_tests(a, a * 1.03, 0.01)[0] == apart
    assert rank_tests(a * 1.03, a, 0.01)[0] == apart
    assert rank_tests(a, a * 1.005, 0.01) == (1, least)
    assert rank_tests(a, a * 1.03, 0.01)[1] == 1
    assert rank_tests(a * 1.03, a, 0.01)[1] == 1
    assert rank_tests(a, a * 1.03, 0.05) == (1, least)


def test_adjusted_p_values_are_those_of_benjamini_and_hochberg() -> None:
    assert adjusted([]) == []
    assert adjusted([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.16 / 3, 0.16 / 3, 0.5])
    # The table of their paper of 1995: four of fifteen are found at 5 %.
    paper = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.324, 0.4262,
             0.5719, 0.6528, 0.759, 1.0]  # fmt: skip
    assert sum(one <= FALSE for one in adjusted(paper[::-1])) == 4


@pytest.mark.parametrize(
    ("unit", "up", "down"),
    [("us", "slower", "faster"), ("s", "slower", "faster"), ("samples/s", "faster", "slower"),
     ("GB/s", "faster", "slower"), ("MiB", "higher", "lower"), ("", "higher", "lower")],
)  # fmt: skip
def test_words_have_the_direction_of_the_unit(unit: str, up: str, down: str) -> None:
    assert (direction(unit, up=True), direction(unit, up=False)) == (up, down)
    rng = np.random.default_rng(1)
    a, b = (side(rng, name, rng.normal(0, 0.001, 6), scale) for name, scale in (("a", 1), ("b", 2)))
    assert [x.word for x in decide([cell(a, b, unit), cell(b, a, unit)], {})] == [up, down]


def test_what_is_static_is_exact() -> None:
    one, two = {("h", "a"): [32.0]}, {("h", "b"): [40.0]}
    cells = [cell(a, b, unit="registers", static=True)
             for a, b in ((one, one), (one, two), (two, one))]  # fmt: skip
    zero = cell({("h", "a"): [0.0]}, {("h", "b"): [0.0]}, static=True)
    found = decide([*cells, zero], {})
    assert [x.word for x in found] == ["same", "higher", "lower", "same"]
    assert found[-1].ratio is None
    assert all(x.needed is None for x in found)


def test_cells_that_were_not_measured_alike_have_a_ratio_and_no_word() -> None:
    rng = np.random.default_rng(2)
    (made,) = table(rng, normal(0.001), 6, [2])
    (found,) = decide([cell(made.a, made.b, differs=("GPU A / B",))], {})
    assert found.word == ""
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(2, rel=0.01)


def test_values_that_are_not_positive_have_no_ratio() -> None:
    a = {("h", str(i)): [0.0, 1.0, -1.0] for i in range(6)}
    (found,) = decide([cell(a, a)], {})
    assert (found.ratio, found.word, found.needed) == (None, "undecided", None)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_fewer_than_five_processes_decide_nothing(count: int) -> None:
    rng = np.random.default_rng(3)
    found = decide(table(rng, normal(0.0005), count, [1, 2, 0.5]), {})
    assert words(found) == {Word.UNDECIDED: 3}
    assert {x.ratio.spread for x in found if x.ratio} == {"none" if count == 1 else "range"}
    assert all(x.needed and x.needed >= 5 for x in found)


# -- how many processes ----------------------------------------------------------------------------


def test_the_processes_asked_for_follow_from_the_spread() -> None:
    def asked(sd: float, level: float = FALSE, shift: float = 0.0, count: int = 5) -> int:
        at = np.exp(sd * np.array([-1.2649, -0.6325, 0, 0.6325, 1.2649])[:count])
        return needed(at, at * math.exp(shift), 0.01, level)

    # 2 (1.2533 (1.96 + 1.28) sd / ln 1.01)^2, sd that of the logarithms
    assert asked(0.01) == math.ceil(2 * (1.2533 * 3.2415 * 0.01 / math.log(1.01)) ** 2)
    assert asked(0.02) == pytest.approx(4 * asked(0.01), abs=3)
    assert asked(0.02, shift=0.05) < asked(0.02) / 10
    assert asked(0.01, level=0.0001) > 1.8 * asked(0.01)
    assert asked(1e-5) == 6  # there are five, and they did not do
    assert asked(1e-5, level=0.0001) == 9  # 2 / C(18, 9) is below it, 2 / C(16, 8) is not
    assert asked(10) == 1000
    assert asked(0.01, count=1) == 5  # nobody knows the spread


@pytest.mark.parametrize("effect", [0.003, 0.01, 0.02])
@pytest.mark.parametrize("ratio", [1.03, 1 / 1.03])
def test_an_injected_3_percent_is_found_with_the_processes_asked_for(
    effect: float, ratio: float
) -> None:
    """From five processes on, each time a new run with as many as the last one asked for."""
    rng = np.random.default_rng(round(1 / effect))
    wanted, found = Word.SLOWER if ratio > 1 else Word.FASTER, Counter[Word]()
    for _ in range(10):
        count: int | None = 5
        for _ in range(3):
            assert count is not None
            cells = table(rng, normal(effect), count, [ratio, 1.0, 1.0])
            first = decide(cells, {})[0]
            count = first.needed
            if first.word is not Word.UNDECIDED:
                break
        found[first.word] += 1
    assert found[wanted] >= 9
    assert not found[Word.SAME] + found[Word.FASTER if ratio > 1 else Word.SLOWER]


# -- how often a word is wrong ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "effect", [normal(0.003), normal(0.01), normal(0.02), two_modes(0.03)],
    ids=["0.3 %", "1 %", "2 %", "two modes"],
)  # fmt: skip
@pytest.mark.parametrize("count", [5, 8])
def test_a_against_a_is_called_changed_in_at_most_5_percent_of_tables(
    effect: Effect, count: int
) -> None:
    rng = np.random.default_rng(count)
    tables = [decide(table(rng, effect, count, [1.0] * 6), {}) for _ in range(40)]
    assert sum(bool(words(one).keys() & CHANGED) for one in tables) <= 2


@pytest.mark.parametrize("together", [False, True], ids=["independent", "one effect a process"])
def test_at_the_margin_itself_at_most_5_percent_of_tables_hold_a_false_word(together: bool) -> None:
    """The worst case: the truth is r, so every word but undecided is wrong. All processes that a
    table's cells share move them together."""
    rng = np.random.default_rng(7)
    wrong, tables = Counter[str](), 1500
    for _ in range(tables):
        chances = []
        a, b = rng.normal(0, 0.003, 8), rng.normal(0, 0.003, 8)
        for _ in range(6):
            if not together:
                a, b = rng.normal(0, 0.003, 8), rng.normal(0, 0.003, 8)
            one, other = (side + rng.normal(0, 0.0005, 8) for side in (a, b))
            chances.append(rank_tests(np.exp(one), 1.01 * np.exp(other), 0.01))
        for kind, family in zip(("change", "same"), zip(*chances, strict=True), strict=True):
            wrong[kind] += min(adjusted(family)) <= FALSE
    # 5 % and three standard errors of the simulation
    assert max(wrong.values()) / tables <= FALSE + 3 * math.sqrt(FALSE * (1 - FALSE) / tables)


def test_of_a_mixed_table_at_most_5_percent_of_the_words_are_wrong() -> None:
    """Three of ten cells differ by 3 %, three by r itself, four not at all."""
    rng = np.random.default_rng(11)
    shares, right = [], 0
    for _ in range(40):
        found = decide(table(rng, normal(0.003), 8, [1.03] * 3 + [1.01] * 3 + [1.0] * 4), {})
        said = [x.word for x in found]
        wrong = said[:3].count(Word.SAME) + said[:3].count(Word.FASTER)
        wrong += sum(word is not Word.UNDECIDED for word in said[3:6])
        wrong += sum(word in CHANGED for word in said[6:])
        shares.append(wrong / max(1, 10 - said.count(Word.UNDECIDED)))
        right += said[:3].count(Word.SLOWER) + said[6:].count(Word.SAME)
    assert np.mean(shares) <= FALSE
    assert right >= 0.9 * 40 * 7


# -- r, and one way --------------------------------------------------------------------------------


def test_r_is_what_repeats_differ_by_and_at_least_1_percent() -> None:
    rng = np.random.default_rng(13)

    def repeats(metric: str, shift: float) -> list[Cell]:
        pairs = [(side(rng, "a", [0.0]), side(rng, "b", [0.0], 1 + shift * i)) for i in range(21)]
        return [cell(a, b, metric=metric) for a, b in pairs]

    quiet, loud = repeats("quiet", 0.0001), repeats("loud", 0.002)
    other = [cell(x.a, side(rng, "b", [0.0], 9), metric="loud", differs=("x",)) for x in loud]
    found = margins_of([*quiet, *loud, *other])
    assert found["quiet"] == 0.01
    assert found["loud"] == pytest.approx(0.038, abs=0.002)  # 95 % of 21 cells: the twentieth
    (made,) = table(rng, normal(0.0005), 6, [1.03])
    assert [x.word for x in decide([made], {"m": 0.038})] == ["same"]
    assert [x.word for x in decide([made], {"other": 0.038})] == ["slower"]


def test_a_warning_when_all_changes_point_one_way() -> None:
    rng = np.random.default_rng(17)
    half, all_of_it = [1.03, 1 / 1.03] * 5, [1.03] * 10
    assert one_way(decide(table(rng, normal(0.001), 6, all_of_it), {})) == (Word.SLOWER, 10, 10)
    assert one_way(decide(table(rng, normal(0.001), 6, half), {})) is None
    assert one_way(decide(table(rng, normal(0.001), 6, [1 / 1.006] * 8), {})) == ("faster", 8, 8)
    # five of five is no evidence; nor is one change to faster among many to slower
    assert one_way(decide(table(rng, normal(0.001), 6, [1.03] * 5), {})) is None
    assert one_way(decide(table(rng, normal(0.001), 6, [*[1.03] * 20, 1 / 1.03]), {})) is None
    assert one_way([]) is None

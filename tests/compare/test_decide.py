"""The statistics of `ae compare` against answers that are known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ae.compare.cells import Cell
from ae.compare.decide import (
    FALSE,
    Word,
    adjusted,
    decide,
    direction,
    margins_of,
    medians,
    needed,
    one_way,
    rank_test,
    rank_tests,
    word_for,
)
from ae.statistics import Interval
from tests.compare.simulated import cell, normal, side, table, words

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


def test_of_many_processes_the_normal_approximation_does() -> None:
    """50 of each are counted, 51 are not."""
    rng = np.random.default_rng(5)
    for count in (50, 51):
        a, b = rng.normal(0, 1, count), rng.normal(0.4, 1, count)
        wins = (b[:, None] > a[None, :]).sum()
        z = (wins - count**2 / 2 - 0.5) / math.sqrt(count**2 * (2 * count + 1) / 12)
        assert rank_test(b, a) == pytest.approx(math.erfc(z / math.sqrt(2)) / 2, rel=0.2)


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
    assert rank_tests(a * 1.005, a, 0.01) == (1, least)
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
    ("low", "high", "change", "same", "word"),
    [
        (1.02, 1.04, 0.05, 1, "slower"),
        (1.02, 1.04, 0.051, 1, "undecided"),  # the test alone does not say so
        (1.009, 1.04, 0.001, 1, "undecided"),  # the interval holds the margin
        (0.96, 0.98, 0.05, 1, "faster"),
        (0.96, 0.991, 0.001, 1, "undecided"),
        (0.995, 1.005, 1, 0.05, "same"),
        (0.995, 1.005, 1, 0.051, "undecided"),
        (0.989, 1.005, 1, 0.001, "undecided"),
        (0.995, 1.011, 1, 0.001, "undecided"),
    ],
)
def test_interval_and_test_must_both_say_so(
    low: float, high: float, change: float, same: float, word: str
) -> None:
    ratio = Interval((low * high) ** 0.5, low, high, "ci95", 5, 1)
    assert word_for("us", ratio, 0.01, change, same) == word
    assert word_for("us", ratio._replace(spread="range"), 0.01, change, same) == "undecided"


def test_the_family_is_all_cells_that_are_tested() -> None:
    """One change of five processes has p = 2 / 252, which is enough among six cells, not seven."""
    rng = np.random.default_rng(19)
    several = table(rng, normal(0.0005), 5, [1.03, *[1.0] * 39])
    assert decide(several[:6], {})[0].word == "slower"
    (first, *_) = decide(several[:7], {})
    assert first.word == "undecided"
    assert first.needed == 6  # 2 / C(12, 6) is below 5 % / 7
    assert decide(several, {})[0].needed == 7
    others = [cell(one.a, one.b, differs=("x",)) for one in several[6:]]
    assert decide([*several[:6], *others], {})[0].word == "slower"
    exact = [cell(one.a, one.a, static=True) for one in several[6:]]
    assert decide([*several[:6], *exact], {})[0].word == "slower"


def test_a_process_counts_by_its_median() -> None:
    assert medians({("h", "a"): [1, 1, 9], ("h", "b"): [2, 3]}).tolist() == [1, 2.5]


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
    for against, expected in ((2, None), (1, ("slower", 9, 10))):
        ratios = [*[1.006] * (10 - against), *[1 / 1.006] * against]
        assert one_way(decide(table(rng, normal(0.0003), 6, ratios), {})) == expected
    # five of five is no evidence; nor is one change to faster among many to slower
    assert one_way(decide(table(rng, normal(0.001), 6, [1.03] * 5), {})) is None
    assert one_way(decide(table(rng, normal(0.001), 6, [*[1.03] * 20, 1 / 1.03]), {})) is None
    assert one_way([]) is None

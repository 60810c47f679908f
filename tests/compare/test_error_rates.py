"""How often `ae compare` is wrong, and whether it finds what is there: on simulated runs.

Processes are off by 0.3 to 2 %, as those of real runs are. Every number is seeded.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from ae.compare.decide import FALSE, Word, adjusted, decide, rank_tests
from tests.compare.simulated import CHANGED, Effect, normal, table, two_modes, words


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

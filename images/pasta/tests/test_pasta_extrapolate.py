"""The sound extrapolation and the paper's (docs/papers/pasta.md, 4.2)."""

from __future__ import annotations

import pytest
from pasta_workloads.extrapolate import paper, sound


def test_only_what_was_added_is_scaled() -> None:
    assert sound(10, 13, total=300, profiled=10) == pytest.approx(10 + 3 * 30)
    assert sound(10, 13, total=5, profiled=5) == 13
    assert sound(10, 9.5, total=300, profiled=10) == 10  # noise below the base adds nothing


def test_the_papers_formula_cannot_fall_below_the_rate() -> None:
    assert paper(10, 30) / 10 == 30


@pytest.mark.parametrize("bad", [(10, 13, 5, 0), (10, 13, 5, 6), (0, 13, 5, 5), (10, -1, 5, 5)])
def test_impossible_numbers(bad: tuple[float, float, int, int]) -> None:
    with pytest.raises(ValueError, match=r"must be above 0|nothing to scale"):
        sound(*bad)
    with pytest.raises(ValueError, match="at least 1"):
        paper(10, 0)

"""Medians and bootstrap intervals."""

from __future__ import annotations

import numpy as np
import pytest

from ae import statistics


def test_median_and_interval_of_a_known_sample() -> None:
    samples = [float(x) for x in range(1, 102)]
    value, low, high = statistics.median_interval(samples)
    assert value == 51.0
    # The order-statistic interval of a median of 101 samples is about the 41st to the 61st.
    assert 38 <= low <= 44
    assert 58 <= high <= 64


def test_same_samples_same_interval() -> None:
    samples = [1.0, 5.0, 2.0, 8.0]
    assert statistics.median_interval(samples) == statistics.median_interval(list(samples))


def test_the_interval_is_that_of_95_percent() -> None:
    found = statistics.interval(np.concatenate([[500.0], np.arange(1001.0)]))
    assert found == (500.0, 25.0, 975.0)


@pytest.mark.parametrize("value", [-7.0, 7.0])
def test_the_interval_holds_the_value(value: float) -> None:
    """Percentiles of few and skewed samples need not."""
    found = statistics.interval(np.array([value, 0.0, 0.5, 1.0]))
    assert found.low <= value <= found.high


def test_one_sample_has_no_spread() -> None:
    assert statistics.median_interval([3.5]) == (3.5, 3.5, 3.5)


def test_different_samples_are_drawn_independently() -> None:
    a = statistics.resample([float(x) for x in range(50)])
    b = statistics.resample([float(x) + 0.5 for x in range(50)])
    assert abs(np.corrcoef(a[1:], b[1:])[0, 1]) < 0.2


def test_interval_narrows_with_samples() -> None:
    rng = np.random.default_rng(0)
    few = statistics.median_interval(list(rng.normal(100, 10, 20)))
    many = statistics.median_interval(list(rng.normal(100, 10, 2000)))
    assert many.high - many.low < (few.high - few.low) / 4


def test_coverage_of_the_interval() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        found = statistics.median_interval(list(rng.normal(0.0, 1.0, 40)))
        hits += found.low <= 0.0 <= found.high
    assert 178 <= hits <= 199  # 95 % of 200 is 190, standard deviation 3


@pytest.mark.parametrize(
    ("statistic", "value"),
    [("mean", 4.0), ("min", 1.0), ("max", 9.0),
     ("median", 2.0)],
)  # fmt: skip
def test_statistics(statistic: statistics.Statistic, value: float) -> None:
    found = statistics.resample([1.0, 2.0, 9.0], statistic)
    assert found.shape == (1 + statistics.RESAMPLES,)
    assert found[0] == value
    assert found.min() >= 1.0
    assert found.max() <= 9.0


def test_long_records_are_drawn_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = list(np.random.default_rng(2).normal(10, 1, 500))
    whole = statistics.median_interval(samples)
    monkeypatch.setattr(statistics, "_CHUNK", 1500)
    pieces = statistics.median_interval(samples)
    assert pieces == pytest.approx(whole, rel=1e-12)


def test_no_samples() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        statistics.resample([])


def test_the_interval_is_of_95_percent() -> None:
    draws = np.random.default_rng(4).permutation(np.arange(1001.0))
    assert statistics.interval(np.concatenate([[500.0], draws])) == (500.0, 25.0, 975.0)


def test_the_interval_always_holds_the_value() -> None:
    draws = np.arange(1001.0)
    assert statistics.interval(np.concatenate([[3.0], draws])).low == 3.0
    assert statistics.interval(np.concatenate([[999.0], draws])).high == 999.0
    assert statistics.interval(np.array([7.0])) == (7.0, 7.0, 7.0)


def test_three_samples_are_the_fewest_with_an_interval() -> None:
    assert statistics.median_interval([1.0, 9.0]) == (5.0, 5.0, 5.0)
    found = statistics.median_interval([1.0, 5.0, 9.0])
    assert (found.low, found.high) == (1.0, 9.0)


def test_draws_are_with_replacement_and_of_all_samples() -> None:
    found = statistics.resample([1.0, 2.0, 3.0, 4.0], "mean")
    assert len(np.unique(found[1:])) > 10  # without replacement all would be 2.5
    assert found[1:].mean() == pytest.approx(2.5, abs=0.1)
    assert found[1:].std() == pytest.approx(np.sqrt(1.25 / 4), rel=0.1)
    assert {1.0, 4.0} <= set(statistics.resample([1.0, 2.0, 3.0, 4.0], "min")[1:])


def test_a_nested_list_is_refused() -> None:
    with pytest.raises(ValueError, match="flat list"):
        statistics.resample(np.ones((2, 3)))

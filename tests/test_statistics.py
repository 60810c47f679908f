"""Values and their spread over processes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from ae import statistics
from ae.statistics import Basis, Samples, summarize

CI95 = Basis("ci95", 5, 1)


def processes(*samples: list[float], host: str = "h") -> Samples:
    return {(host, f"p{index}"): list(values) for index, values in enumerate(samples)}


def drawn(rng: np.random.Generator, count: int, *, each: int = 20) -> Samples:
    """Processes that differ by more than their samples do: what was found on real GPUs."""
    return processes(*(list(rng.normal(rng.normal(0.0, 1.0), 0.2, each)) for _ in range(count)))


@pytest.mark.parametrize("count", [5, 6, 10])
def test_the_interval_over_processes_covers(count: int) -> None:
    rng = np.random.default_rng(count)
    found = [summarize(drawn(rng, count)) for _ in range(200)]
    assert {one.spread for one in found} == {"ci95"}
    covered = np.mean([one.low <= 0.0 <= one.high for one in found])
    assert covered >= 0.9


def test_pooled_flat_it_would_not_cover() -> None:
    """What was done before: the processes' samples put together as if one process had them all."""
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(200):
        flat = np.concatenate([*drawn(rng, 5).values()])
        medians = np.median(flat[rng.integers(0, flat.size, size=(400, flat.size))], axis=-1)
        low, high = np.percentile(medians, [2.5, 97.5])
        hits += low <= 0.0 <= high
    assert hits / 200 < 0.75


def test_a_ratio_of_variants_of_the_same_processes_is_paired() -> None:
    rng = np.random.default_rng(1)
    speeds = rng.normal(1.0, 0.2, 6)  # of the processes: a clock, a layout
    base = processes(*([2 * s * f for f in rng.normal(1, 0.001, 9)] for s in speeds))
    fast = processes(*([s * f for f in rng.normal(1, 0.001, 9)] for s in speeds))
    elsewhere = {("h", f"other{key}"): list(one) for key, one in fast.items()}
    on = statistics.basis(base)
    top = statistics.resample(base)
    paired = statistics.interval(top / statistics.resample(fast), on)
    apart = statistics.interval(top / statistics.resample(elsewhere), on)
    assert paired.low <= 2.0 <= paired.high
    assert paired.high - paired.low < (apart.high - apart.low) / 10


@pytest.mark.parametrize(
    ("statistic", "value"),
    [("median", 3.0), ("mean", 3.0), ("minimum", 0.0), ("maximum", 10.0)],
)
def test_the_value_is_over_processes(statistic: str, value: float) -> None:
    """Not over samples: the process with many of them has no more to say."""
    samples = processes([0.0, 1.0, 2.0] * 9, [3.0], [2.0, 3.0, 4.0], [3.0], [10.0, 10.0])
    found = summarize(samples, statistic)
    assert found.value == value
    assert found.processes == 5


def test_two_to_four_processes_have_a_range_and_it_says_so() -> None:
    found = summarize(processes([1.0, 1.0], [5.0, 7.0], [2.0, 2.0]))
    assert found == (2.0, 1.0, 6.0, "range", 3, 1)


def test_one_process_and_few_samples_have_no_spread() -> None:
    assert summarize(processes([1.0, 5.0, 9.0] * 40)) == (5.0, 5.0, 5.0, "none", 1, 1)
    assert summarize(processes([1.0, 5.0], [9.0, 9.0])).spread == "none"  # 4 samples
    assert summarize(processes([1.0, 5.0], [9.0, 9.0, 9.0])).spread == "range"
    assert summarize(processes(*([float(x)] for x in range(5)))).spread == "ci95"


def test_devices_are_counted() -> None:
    samples = {("a", "1"): [1.0] * 3, ("b c", "1"): [2.0] * 3, ("a", "2"): [3.0] * 3}
    assert summarize(samples)[3:] == ("range", 3, 3)


def test_records_are_put_together_by_process_alone() -> None:
    rows = [
        {"samples": (1.0,), "uuid": "a", "process": "1", "repeat": 0},
        {"samples": (2.0,), "uuid": "a", "process": "1", "repeat": 0},
        {"samples": (3.0,), "uuid": "b", "process": "1", "repeat": 0},
        {"samples": (4.0,), "repeat": 1},
    ]
    assert statistics.by_process(rows) == {
        ("a", "1"): [1.0, 2.0], ("b", "1"): [3.0], ("", "1"): [4.0],
    }  # fmt: skip


def test_an_infinite_or_undefined_draw_makes_the_interval_undefined() -> None:
    """[4, 4, 4] over [0, 1, 1] was 4, from 4 to 4, when such draws were left out."""
    top, bottom = processes(*[[4.0]] * 5), processes([0.0], [1.0], [1.0], [1.0], [0.0])
    with np.errstate(all="ignore"):
        draws = statistics.resample(top) / statistics.resample(bottom)
    found = statistics.interval(draws, CI95)
    assert found.value == 4.0
    assert np.isnan([found.low, found.high]).all()
    assert found.spread == "none"
    assert np.isnan(statistics.interval(np.array([1.0, np.nan, 1.0]), CI95).low)


def test_what_several_rest_on_is_what_the_weakest_does() -> None:
    some = [Basis("ci95", 5, 1), Basis("range", 3, 2), Basis("ci95", 8, 1)]
    assert statistics.weakest(some) == ("range", 3, 1)
    assert statistics.weakest([*some, Basis("none", 1, 1)]).spread == "none"
    assert statistics.weakest([]) == ("none", 0, 0)


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [(60, 62, 0.890, 0.991), (0, 10, 0.0, 0.278), (10, 10, 0.722, 1.0), (5, 10, 0.237, 0.763)],
)
def test_a_share_has_wilsons_interval(hits: int, trials: int, low: float, high: float) -> None:
    samples = [1.0] * hits + [0.0] * (trials - hits)
    found = summarize(processes(samples), "share")
    assert found.value == hits / trials
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.002)
    assert found.spread == "ci95"
    again = summarize(processes(samples, samples, samples), "share")
    assert (again.low, again.high) == pytest.approx((low, high), abs=0.002)  # not more trials
    with pytest.raises(ValueError, match="0 or 1"):
        summarize(processes([0.5, 1.0]), "share")


def test_same_samples_same_interval() -> None:
    rng = np.random.default_rng(0)
    samples = drawn(rng, 5)
    assert summarize(samples) == summarize(dict(reversed(list(samples.items()))))


def test_the_interval_is_that_of_95_percent() -> None:
    draws = np.random.default_rng(4).permutation(np.arange(1001.0))
    found = statistics.interval(np.concatenate([[500.0], draws]), CI95)
    assert found[:3] == (500.0, 25.0, 975.0)
    assert statistics.interval(np.concatenate([[3.0], draws]), CI95).low == 3.0
    assert statistics.interval(np.concatenate([[999.0], draws]), CI95).high == 999.0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=6), min_size=1, max_size=8
    ),
    st.sampled_from(["median", "mean", "minimum", "maximum"]),
)  # fmt: skip
def test_ends_hold_the_value_and_stay_within_the_samples(
    samples: list[list[float]], statistic: str
) -> None:
    found = summarize(processes(*samples), statistic)
    every = [x for one in samples for x in one]
    slack = 1e-6 * max(map(abs, every))
    assert found.low <= found.value <= found.high
    assert min(every) - slack <= found.low <= found.high <= max(every) + slack
    assert (found.spread == "ci95") == (len(samples) >= 5)
    if len(samples) == 1:
        assert found.low == found.high


def test_samples_are_drawn_with_replacement_within_a_process() -> None:
    one = list(np.random.default_rng(3).normal(10, 1, 30))
    found = statistics.resample(processes(*[one] * 5), "mean")
    assert found.shape == (1 + statistics.RESAMPLES,)
    assert len(np.unique(found)) > 500
    assert np.isin(statistics.resample(processes(*[one] * 5), "minimum"), one).all()
    assert statistics.resample(processes(*[sorted(one)] * 5), "maximum")[1:].max() == max(one)


def test_long_records_are_drawn_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = drawn(np.random.default_rng(2), 5, each=100)
    whole = summarize(samples)
    monkeypatch.setattr(statistics, "_CHUNK", 350)
    assert summarize(samples) == whole


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, array_shapes(min_dims=1, max_dims=3)))
def test_a_median_is_numpys(values: statistics.Draws) -> None:
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(
            statistics._median(values, axis=-1), np.median(values, axis=-1)
        )


@pytest.mark.parametrize("samples", [{}, {("h", "p"): []}, {("h", "p"): np.ones((2, 3))}])
def test_no_samples_or_a_nested_list_are_refused(samples: Samples) -> None:
    with pytest.raises(ValueError, match="flat list"):
        statistics.resample(samples)


def test_a_median_of_five_covers_what_a_mean_does_not() -> None:
    """Why processes are joined by their median: see the module's first lines."""
    rng = np.random.default_rng(7)
    medians = means = 0
    for _ in range(400):
        each = rng.normal(0.0, 1.0, 5)
        found = summarize(processes(*([x] for x in each)))
        medians += found.low <= 0.0 <= found.high
        draws = each[rng.integers(0, 5, size=(400, 5))].mean(axis=-1)
        low, high = np.percentile(draws, [2.5, 97.5])
        means += low <= 0.0 <= high
    assert medians / 400 > 0.91
    assert means / 400 < 0.88

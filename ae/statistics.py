"""Medians and bootstrap intervals. Seeded, so the same samples always give the same interval."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Statistic = Literal["median", "mean", "min", "max"]
RESAMPLES = 1000
FEWEST = 3  # samples that an interval takes; fewer give the value alone
_CHUNK = 2_000_000  # samples drawn at once, so that long records need no gigabytes


class Interval(NamedTuple):
    """A value and its bootstrap 95 % interval, in the unit of the samples; both ends are the
    value where there is none."""

    value: float
    low: float
    high: float


def resample(
    samples: Sequence[float] | NDArray[np.float64], statistic: Statistic = "median"
) -> NDArray[np.float64]:
    """The statistic of the samples, then of RESAMPLES draws with replacement.

    Returns shape (1 + RESAMPLES,), float64; of fewer than three samples all are the statistic.
    The seed is made from the samples, so two records with different samples are drawn
    independently. Raises ValueError without samples.
    """
    import numpy as np

    values, function = np.asarray(samples, dtype=np.float64), getattr(np, statistic)
    if values.ndim != 1 or values.size == 0:
        raise ValueError("a statistic needs a flat list of at least one sample")
    found = np.empty(1 + RESAMPLES, dtype=np.float64)
    found[0] = function(values[None, :], axis=-1)[0]
    if values.size < FEWEST:
        found[1:] = found[0]
        return found
    rng = np.random.default_rng(zlib.crc32(values.tobytes()))
    step = max(1, _CHUNK // values.size)
    for start in range(0, RESAMPLES, step):
        count = min(step, RESAMPLES - start)
        picks = rng.integers(0, values.size, size=(count, values.size))
        found[1 + start : 1 + start + count] = function(values[picks], axis=-1)
    return found


def interval(resampled: NDArray[np.float64]) -> Interval:
    """The value and 95 % interval of what `resample`, or arithmetic on its results, returned.

    The interval always holds the value, which percentiles of a skewed few need not.
    """
    value = float(resampled[0])
    if resampled.size == 1:
        return Interval(value, value, value)
    import numpy as np

    low, high = np.percentile(resampled[1:], [2.5, 97.5])
    return Interval(value, min(float(low), value), max(float(high), value))


def median_interval(samples: Sequence[float]) -> Interval:
    """Median of at least one sample and the bootstrap 95 % interval of that median."""
    if 0 < len(samples) < FEWEST:
        middle = float(median(samples))
        return Interval(middle, middle, middle)
    return interval(resample(samples))

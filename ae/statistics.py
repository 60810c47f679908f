"""Values with their spread over processes. Seeded: the same samples always give the same interval.

The process is the unit: clocks, memory layout and just-in-time choices differ from one process to
the next by more than samples within one do. The value of a metric is the median over processes of
the statistic within each; of a minimum the least, and of a maximum the largest of all. A median,
because the percentile interval of the median of five processes covers 94 %, and that of their mean
84 % (tests/test_statistics.py). An interval draws processes, then samples within each drawn one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

    Draws = NDArray[float64]  # (1 + RESAMPLES,): the value, then one of every draw

Spread = Literal["none", "range", "ci95"]  # what the ends are of, in the order of their worth
Process = tuple[str, str]  # its GPUs or its host, with spaces between; its name
Samples = Mapping[Process, Sequence[float]]  # of one metric

RESAMPLES = 1000
FEWEST = 5  # processes that a 95 % interval takes; samples that any spread takes
_CHUNK = 2_000_000  # samples drawn at once, so that long records need no gigabytes
_SPREADS: tuple[Spread, ...] = ("none", "range", "ci95")
STATISTICS: Mapping[str, tuple[str, str]] = {  # of numpy, within a process and over processes
    "median": ("median", "median"),
    "mean": ("mean", "median"),
    "minimum": ("min", "min"),
    "maximum": ("max", "max"),
    "share": ("mean", "median"),
}


class Basis(NamedTuple):
    """What a value rests on: the spread that it can have, its processes and their devices."""

    spread: Spread
    processes: int
    devices: int


class Interval(NamedTuple):
    """A value and its spread, in the unit of the samples.

    `low` and `high` are the ends of the bootstrap 95 % interval (ci95) or the least and the largest
    of the processes (range); both are the value where there is none, and NaN where a draw was
    infinite or undefined.
    """

    value: float
    low: float
    high: float
    spread: Spread = "none"
    processes: int = 1
    devices: int = 1


def by_process(rows: Iterable[Mapping[str, Any]]) -> Samples:
    """The samples of records of one metric, by the process that they were taken in."""
    found: dict[Process, list[float]] = {}
    for row in rows:
        key = str(row.get("uuid") or ""), str(row.get("process") or row.get("repeat") or "")
        found.setdefault(key, []).extend(map(float, row["samples"]))
    return found


def unpaired(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Whether records of a point, but for static ones, are of several runs (`Results.rows`)."""
    moving = [row for row in rows if row["evidence"] != "static"]
    runs = {(row.get("point"), *str(row.get("process")).split("/")[:-1][:1]) for row in moving}
    return len(runs) > len({point for point, *_ in runs})


def basis(samples: Samples, statistic: str = "median") -> Basis:
    """What a statistic of these samples rests on."""
    spread: Spread = "range" if len(samples) > 1 else "none"
    if len(samples) >= FEWEST or statistic == "share":
        spread = "ci95"
    if sum(map(len, samples.values())) < FEWEST:
        spread = "none"
    devices = {name for names, _ in samples for name in names.split(" ")}
    return Basis(spread, len(samples), len(devices))


def weakest(several: Iterable[Basis]) -> Basis:
    """What a value that is made of all these rests on; of none, it is known exactly."""
    spreads, *counts = [*zip(*several, strict=True)] or [(), (), ()]
    spread: Spread = min(spreads, key=_SPREADS.index, default="none")
    return Basis(spread, *(min(each, default=0) for each in counts))


def resample(samples: Samples, statistic: str = "median") -> Draws:
    """The statistic of the samples, then of RESAMPLES draws; shape (1 + RESAMPLES,), float64.

    Metrics of the same processes draw the same processes, so a ratio of variants that were measured
    in one process is paired. Of two to four processes a draw is one of them, so the draws' ends are
    the range; without a spread all are the value. `share` is the share of samples that are 1, all
    others 0; its draws spread as Wilson's interval does, for as many trials as a process has, since
    a repetition of the same trials is not more of them. Raises ValueError without samples.
    """
    import numpy as np

    groups = [np.asarray(samples[key], dtype=np.float64) for key in sorted(samples)]
    if not groups or any(one.ndim != 1 or one.size == 0 for one in groups):
        raise ValueError("a statistic needs at least one process and a flat list of its samples")
    if statistic == "share" and not all(np.isin(one, (0, 1)).all() for one in groups):
        raise ValueError("a share needs samples that are 0 or 1")
    within, over = (_median if n == "median" else getattr(np, n) for n in STATISTICS[statistic])
    each = np.array([within(one[None, :], axis=-1)[0] for one in groups])
    found = np.full(1 + RESAMPLES, over(each[None, :], axis=-1)[0])
    spread = basis(samples, statistic).spread
    processes = np.random.default_rng(zlib.crc32(repr(sorted(samples)).encode()))
    rng = np.random.default_rng(zlib.crc32(b"".join(one.tobytes() for one in groups)))
    if spread == "range":
        found[1:] = each[processes.permutation(np.arange(RESAMPLES) % len(groups))]
    elif spread == "ci95" and statistic == "share":
        levels = np.clip(rng.permutation(RESAMPLES) / (RESAMPLES - 1), 1e-4, 1 - 1e-4)
        z = np.array([NormalDist().inv_cdf(level) for level in levels])
        found[1:] = wilson(found[0], float(np.median([one.size for one in groups])), z)
    elif spread == "ci95":
        picks = processes.integers(0, len(groups), size=(RESAMPLES, len(groups)))
        drawn = np.empty(picks.shape)
        for index, group in enumerate(groups):
            places = np.flatnonzero(picks == index)
            for part in np.array_split(places, 1 + places.size * group.size // _CHUNK):
                size = part.size, group.size
                drawn.flat[part] = within(group[rng.integers(0, group.size, size=size)], axis=-1)
        found[1:] = over(drawn, axis=-1)
    return found


def _median(values: Draws, axis: Literal[-1]) -> Draws:
    """As `np.median`, which takes several times as long to find the middle of short rows."""
    import numpy as np

    ordered, size = np.sort(values, axis=axis), values.shape[axis]
    middle = ordered[..., (size - 1) // 2 : size // 2 + 1].mean(axis=axis)
    return np.where(np.isnan(ordered[..., -1]), np.nan, middle)


def wilson(share: float, trials: float, z: Draws) -> Draws:
    """The end of Wilson's score interval of a share that lies `z` standard deviations off."""
    half = z * (share * (1 - share) / trials + z**2 / (4 * trials**2)) ** 0.5
    return (share + z**2 / (2 * trials) + half) / (1 + z**2 / trials)


def interval(draws: Draws, on: Basis) -> Interval:
    """What `resample`, or arithmetic on its results, returned, with its ends.

    They always hold the value, which percentiles of a skewed few need not.
    """
    import numpy as np

    value = float(draws[0])
    if on.spread == "none":
        return Interval(value, value, value, *on)
    if not np.isfinite(draws).all():
        return Interval(value, np.nan, np.nan, *on._replace(spread="none"))
    low, high = np.percentile(draws[1:], [0, 100] if on.spread == "range" else [2.5, 97.5])
    return Interval(value, min(float(low), value), max(float(high), value), *on)


def summarize(samples: Samples, statistic: str = "median") -> Interval:
    """A metric's value and its spread. Raises ValueError without samples."""
    return interval(resample(samples, statistic), basis(samples, statistic))

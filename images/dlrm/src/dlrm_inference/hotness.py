"""How hot a stream of row ids is: unique rows, coverage, hottest rows, and Zipf's law."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def zipf(rows: int, exponent: float) -> NDArray[np.float64]:
    """Return probabilities (rows,) of popularity ranks 1..rows, proportional to rank^-exponent."""
    weights = np.arange(1, rows + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


def expected_unique(probabilities: NDArray[np.float64], draws: float) -> float:
    """Return the expected number of distinct ranks among `draws` independent draws."""
    return float(-np.expm1(draws * np.log1p(-np.minimum(probabilities, 1 - 1e-16))).sum())


def expected_unique_uniform(rows: int, draws: int) -> float:
    """Return N(1-(1-1/N)^n), the distinct rows of n uniform draws over N rows (claim D12)."""
    return expected_unique(np.full(1, 1.0 / rows), draws) * rows


def unique_rows(ids: NDArray[np.integer]) -> int:
    """Return how many distinct ids there are in `ids` (any shape, non-negative)."""
    return int(np.count_nonzero(np.bincount(ids.ravel())))


def top_rows(ids: NDArray[np.integer], rows: int, count: int) -> NDArray[np.int64]:
    """Return at most `count` ids (int64) by falling frequency in `ids`, ties by rising id.

    Ids that never occur are not listed, so the result may be shorter than `count`.
    """
    counts = np.bincount(ids.ravel(), minlength=rows)
    order = np.argsort(-counts, kind="stable")[:count]
    return order[counts[order] > 0].astype(np.int64)


def coverage(ids: NDArray[np.integer], rows: int, shares: tuple[float, ...]) -> tuple[float, ...]:
    """Return the share of accesses that the hottest `share` of all `rows` serve, for each share.

    Hottest means by frequency within `ids` itself. At least one row counts for any share.
    """
    counts = np.sort(np.bincount(ids.ravel(), minlength=rows))[::-1]
    cumulative = np.cumsum(counts) / counts.sum()
    return tuple(float(cumulative[max(1, round(share * rows)) - 1]) for share in shares)

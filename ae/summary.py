"""Medians, bootstrap intervals and ratios of record tables, for figures, tables and reports.

The input is the record table of docs/contracts.md: one row per record, raw samples in `samples`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

RESAMPLES = 1000
_SEED = 20240


class Interval(NamedTuple):
    """A point estimate and its bootstrap 95 % interval, in the unit of the samples."""

    value: float
    low: float
    high: float


def median_interval(samples: Sequence[float]) -> Interval:
    """Median of `samples` (any length >= 1) and the interval of that median."""
    medians = _resampled_medians(samples, _SEED)
    return _interval(float(np.median(np.asarray(samples, dtype=np.float64))), medians)


def ratio_interval(top: Sequence[float], bottom: Sequence[float]) -> Interval:
    """median(top) / median(bottom), both resampled independently. `bottom` must be positive."""
    ratios = _resampled_medians(top, _SEED) / _resampled_medians(bottom, _SEED + 1)
    value = float(np.median(np.asarray(top)) / np.median(np.asarray(bottom)))
    return _interval(value, ratios)


def pool(frame: pd.DataFrame, metric: str, keys: Sequence[str]) -> pd.DataFrame:
    """One row per combination of the labels `keys` among the records of `metric`.

    Samples of all records that agree in `keys` (repeats of a point) are put together. Columns:
    the keys (a label that a record lacks is ""), samples, n, median, low, high, unit, evidence.
    The order is that of first appearance; an unknown metric gives an empty table.
    """
    import pandas as pd

    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    if not frame.empty:
        for row in frame[frame["metric"] == metric].to_dict("records"):
            key = tuple(_label(row.get(name)) for name in keys)
            groups.setdefault(key, []).append({str(name): cell for name, cell in row.items()})
    rows = []
    for key, members in groups.items():
        samples = [float(x) for member in members for x in member["samples"]]
        middle = median_interval(samples)
        rows.append(
            {
                **dict(zip(keys, key, strict=True)),
                "samples": samples,
                "n": len(samples),
                "median": middle.value,
                "low": middle.low,
                "high": middle.high,
                "unit": str(members[0]["unit"]),
                "evidence": "+".join(sorted({str(member["evidence"]) for member in members})),
            }
        )
    columns = [*keys, "samples", "n", "median", "low", "high", "unit", "evidence"]
    return pd.DataFrame(rows, columns=columns)


def label_columns(frame: pd.DataFrame) -> list[str]:
    """Names of the label columns of a record table."""
    own = {"metric", "unit", "evidence", "samples", "n", "median", "low", "high", "note", "warmup"}
    place = {"experiment", "point", "repeat", "schema"}
    return [str(name) for name in frame.columns if name not in own | place]


def in_order(names: Iterable[str], order: Sequence[str]) -> list[str]:
    """The distinct names, those of `order` first and in its order, the rest as they came."""
    seen = list(dict.fromkeys(names))
    return [name for name in order if name in seen] + [name for name in seen if name not in order]


def _label(value: object) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    return str(value)


def _resampled_medians(samples: Sequence[float], seed: int) -> NDArray[np.float64]:
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 1:
        return np.full(RESAMPLES, values[0])
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, values.size, size=(RESAMPLES, values.size))
    medians: NDArray[np.float64] = np.median(values[picks], axis=1)
    return medians


def _interval(value: float, resampled: NDArray[np.float64]) -> Interval:
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Interval(value, min(float(low), value), max(float(high), value))

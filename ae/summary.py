"""Medians, bootstrap intervals and ratios of record tables, for figures, tables and reports.

The input is the record table of docs/contracts.md: one row per record, raw samples in `samples`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

from ae.statistics import Interval, interval, median_interval, resample

if TYPE_CHECKING:
    import pandas as pd


def ratio_interval(top: Sequence[float], bottom: Sequence[float]) -> Interval:
    """median(top) / median(bottom), both resampled independently. `bottom` must be positive."""
    return interval(resample(top) / resample(bottom))


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
    if value is None or (isinstance(value, float) and isnan(value)):
        return ""
    return str(value)

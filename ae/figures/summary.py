"""Medians, their spread, and ratios of record tables, for figures, tables and reports.

The input is the record table of docs/contracts.md: one row per record, raw samples in `samples`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ae import statistics

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]  # of a record table
ASKED: ContextVar[list[Row]] = ContextVar("ASKED")  # records that the figure being drawn pooled
_SUMMARY = ("median", "low", "high", "spread", "processes", "devices")


def ratio_interval(top: statistics.Samples, bottom: statistics.Samples) -> statistics.Interval:
    """median(top) / median(bottom); paired by process where both have the same processes."""
    draws = statistics.resample(top) / statistics.resample(bottom)
    return statistics.interval(draws, statistics.weakest(map(statistics.basis, (top, bottom))))


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """The plain rows of a record table; missing labels are None."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(k): v for k, v in row.items()} for row in plain.to_dict("records")]


def pool_rows(rows: Iterable[Row], metric: str, keys: Sequence[str]) -> list[dict[str, Any]]:
    """One row per combination of the labels `keys` among the records of `metric`.

    Columns: the keys (a label that a record lacks is ""), samples (of all records that agree in the
    keys, by process), n, median, low, high, spread, processes, devices, unit, evidence.
    The order is that of first appearance; an unknown metric gives no row.
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row["metric"] == metric:
            key = tuple("" if row.get(name) is None else str(row[name]) for name in keys)
            groups.setdefault(key, []).append(row)
    pooled = []
    for key, members in groups.items():
        samples = statistics.by_process(members)
        found: dict[str, Any] = dict(zip(keys, key, strict=True))
        found |= {"samples": samples, "n": sum(map(len, samples.values()))}
        found |= zip(_SUMMARY, statistics.summarize(samples), strict=True)
        evidence = join_evidence(*(member["evidence"] for member in members))
        pooled.append(found | {"unit": str(members[0]["unit"]), "evidence": evidence})
    return pooled


def pool(frame: pd.DataFrame, metric: str, keys: Sequence[str]) -> pd.DataFrame:
    """`pool_rows` for figures: the same as a DataFrame, with its columns also when it is empty."""
    import pandas as pd

    columns = [*keys, "samples", "n", *_SUMMARY, "unit", "evidence"]
    return pd.DataFrame(list(pool_by(frame, metric, keys).values()), columns=columns)


def pool_by(frame: pd.DataFrame, metric: str, keys: Sequence[str]) -> dict[tuple[str, ...], Row]:
    """The rows of `pool` by their values of `keys`."""
    rows = rows_of(frame[frame["metric"] == metric] if len(frame) else frame)
    ASKED.get([]).extend(rows)
    return {tuple(row[key] for key in keys): row for row in pool_rows(rows, metric, keys)}


def against(pooled: pd.DataFrame, baseline: str, keys: Sequence[str]) -> list[tuple[Row, Row]]:
    """Each row of `pool` with that of the variant `baseline` which agrees in `keys`, if any."""
    rows: list[Any] = pooled.to_dict("records")
    bases = {tuple(one[key] for key in keys): one for one in rows if one["variant"] == baseline}
    places = [tuple(row[key] for key in keys) for row in rows]
    return [(row, bases[at]) for row, at in zip(rows, places, strict=True) if at in bases]


def join_evidence(*evidence: object) -> str:
    """The evidence of a value that several records make up, e.g. `measured+static`."""
    return "+".join(sorted({word for text in evidence for word in str(text).split("+")}))


def in_order(names: Iterable[str], order: Sequence[str]) -> list[str]:
    """The distinct names, those of `order` first and in its order, the rest as they came."""
    seen = list(dict.fromkeys(names))
    return [name for name in order if name in seen] + [name for name in seen if name not in order]

"""The result tables of a run, and what it skipped, as data. Pure functions."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ae.figures.summary import Row, in_order, label_columns, pool_rows, ratio_interval
from ae.records.files import Skip

_TIMES = ("s", "ms", "us", "ns")


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """One line of the result table; `keys` in the order of the table's key columns."""

    keys: tuple[str, ...]
    median: float
    low: float  # ends of the 95 % interval of the median
    high: float
    n: int
    evidence: str
    speedup: float | None  # over the baseline, of a time or a rate; None: there is none
    baseline: str


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """A metric by its key columns, ready to be written as text, HTML or markdown."""

    metric: str
    unit: str
    keys: tuple[str, ...]
    rows: tuple[ResultRow, ...] = ()
    experiment: str = ""
    skipped: tuple[tuple[str, str], ...] = ()  # what was not measured, and why


def result_tables(
    rows: Sequence[Row],
    *,
    metric: str,
    keys: Sequence[str],
    baseline: str = "",
    baselines: Mapping[str, str] | None = None,
    order: Mapping[str, Sequence[str]] | None = None,
    skipped: Iterable[Skip] = (),
) -> list[ResultTable]:
    """One result table per experiment: of `metric`, else of the time that it recorded by `keys`.

    The arguments are those of `result_table`; the skips stand under the last table.
    """
    tables = []
    for name in dict.fromkeys(row["experiment"] for row in rows):
        part = [row for row in rows if row["experiment"] == name]
        shown = _metric_to_show(part, metric, keys)
        table = result_table(
            part, metric=shown, keys=keys, baseline=baseline, baselines=baselines, order=order
        )
        tables.append(replace(table, experiment=str(name)))
    groups = tuple(skip_groups(skipped, rows, keys, order or {}))
    if groups:
        last = tables.pop() if tables else ResultTable(metric=metric, unit="", keys=tuple(keys))
        tables.append(replace(last, skipped=groups))
    return tables


def result_table(
    rows: Sequence[Row],
    *,
    metric: str,
    keys: Sequence[str],
    baseline: str = "",
    baselines: Mapping[str, str] | None = None,
    order: Mapping[str, Sequence[str]] | None = None,
) -> ResultTable:
    """Collect the result table of `metric` from a record table.

    `keys` are label columns, e.g. size and variant; labels that tell apart records which agree
    in them are added. The speed-up of a row is over its variant's entry in `baselines`, else over
    `baseline`, at the same other keys (a label the baseline lacks does not count). `order` gives
    the display order of a key's values.
    """
    found = [row for row in rows if row["metric"] == metric]
    there = [key for key in keys if any(row.get(key) is not None for row in found)]
    columns = [*there, *_telling_labels(found, there)]
    records = pool_rows(found, metric, columns)
    shown = [
        _row(record, columns, records, baseline=baseline, baselines=baselines or {})
        for record in records
    ]
    ranks = {key: in_order((row.keys[i] for row in shown), (order or {}).get(key, ()))
             for i, key in enumerate(columns)}  # fmt: skip
    shown.sort(key=lambda row: [ranks[key].index(row.keys[i]) for i, key in enumerate(columns)])
    unit = records[0]["unit"] if records else ""
    return ResultTable(metric=metric, unit=unit, keys=tuple(columns), rows=tuple(shown))


def skip_groups(
    skipped: Iterable[Skip],
    rows: Sequence[Row],
    keys: Sequence[str] = (),
    order: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[tuple[str, str]]:
    """What was skipped and why, with the skips of one reason put together.

    Labels stand in the order of `keys`, last first; one that the whole run shares is left out, and
    all known values of a key (`order`) are written as `every`.
    """
    groups: dict[str, dict[str, list[str]]] = {}
    for skip in skipped:
        values = groups.setdefault(clean(skip.reason), {})
        for key in sorted(skip.labels, key=lambda key: -keys.index(key) if key in keys else 1):
            seen = values.setdefault(key, [])
            if skip.labels[key] not in seen:
                seen.append(skip.labels[key])
    return [
        ("; ".join(_skip_words(rows, labels, order)) or "everything", reason)
        for reason, labels in groups.items()
    ]


def clean(text: object) -> str:
    """Text on one line without control characters."""
    line = " ".join(str(text).split())
    return "".join("?" if unicodedata.category(char).startswith("C") else char for char in line)


def _skip_words(
    rows: Sequence[Row], labels: Mapping[str, list[str]], order: Mapping[str, Sequence[str]]
) -> list[str]:
    words = []
    for key, values in labels.items():
        measured = {row[key] for row in rows if row.get(key) is not None}
        if len(values) == 1 and measured == set(values):
            continue
        known = set(order.get(key, ()))
        words.append(f"every {key}" if len(values) > 1 and known == set(values)
                     else f"{key} {', '.join(values)}")  # fmt: skip
    return words


def _metric_to_show(rows: Sequence[Row], metric: str, keys: Sequence[str]) -> str:
    """The metric itself, else the first time, else the first one, of those that have most keys."""
    names = list(dict.fromkeys(str(row["metric"]) for row in rows))
    if metric in names:
        return metric

    def merit(name: str) -> tuple[int, bool]:
        mine = [row for row in rows if row["metric"] == name]
        known = sum(any(row.get(key) is not None for row in mine) for key in keys)
        return known, str(mine[0]["unit"]) in _TIMES

    return max(names, key=merit)


def _telling_labels(rows: Sequence[Row], keys: Sequence[str]) -> list[str]:
    """Labels beyond `keys` that differ among records which agree in `keys`."""

    def combinations(names: Sequence[str]) -> int:
        return len({tuple(row.get(name) for name in names) for row in rows})

    groups = combinations(keys)
    return [
        name
        for name in label_columns(rows)
        if name not in keys and combinations([*keys, name]) > groups
    ]


def _row(
    record: Mapping[str, Any],
    columns: Sequence[str],
    records: Sequence[Mapping[str, Any]],
    *,
    baseline: str,
    baselines: Mapping[str, str],
) -> ResultRow:
    against = baselines.get(record.get("variant", ""), baseline)
    is_time, is_rate = record["unit"] in _TIMES, str(record["unit"]).endswith("/s")
    base = _baseline_of(record, columns, records, against) if is_time or is_rate else None
    speedup = None
    if base is not None and base is not record and min(base["samples"] + record["samples"]) > 0:
        over, under = (base, record) if is_time else (record, base)
        speedup = ratio_interval(over["samples"], under["samples"]).value
    return ResultRow(
        keys=tuple(record[key] for key in columns),
        median=record["median"],
        low=record["low"],
        high=record["high"],
        n=record["n"],
        evidence=record["evidence"],
        speedup=speedup,
        baseline=against,
    )


def _baseline_of(
    record: Mapping[str, Any],
    columns: Sequence[str],
    records: Sequence[Mapping[str, Any]],
    baseline: str,
) -> Mapping[str, Any] | None:
    same = [key for key in columns if key != "variant"]
    for other in records:
        if other.get("variant") == baseline and all(other[k] in (record[k], "") for k in same):
            return other
    return None

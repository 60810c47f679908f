"""Plain-text tables for a terminal: results with their spread, and verdicts. Pure functions."""

from __future__ import annotations

import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from ae.figures.summary import Row, in_order, label_columns, pool_rows, ratio_interval, rows_of

if TYPE_CHECKING:
    import pandas as pd

_GAP = "  "
_TIMES = ("s", "ms", "us", "ns")
_LEAST_TEXT = 12  # columns that a wrapped text column always keeps


class Skip(Protocol):
    """A part of a point that could not be measured, with its reason."""

    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def reason(self) -> str: ...


class Verdict(Protocol):
    """What is shown of a judged claim."""

    @property
    def id(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def value(self) -> float | None: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...
    @property
    def reason(self) -> str: ...


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
    frame: pd.DataFrame | Iterable[Row],
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
    rows = rows_of(frame)
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
    frame: pd.DataFrame | Iterable[Row],
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
    found = [row for row in rows_of(frame) if row["metric"] == metric]
    there = [key for key in keys if any(row.get(key) is not None for row in found)]
    columns = [*there, *_telling_labels(found, there)]
    records = pool_rows(found, metric, columns)
    rows = [
        _row(record, columns, records, baseline=baseline, baselines=baselines or {})
        for record in records
    ]
    ranks = {key: in_order((row.keys[i] for row in rows), (order or {}).get(key, ()))
             for i, key in enumerate(columns)}  # fmt: skip
    rows.sort(key=lambda row: [ranks[key].index(row.keys[i]) for i, key in enumerate(columns)])
    unit = records[0]["unit"] if records else ""
    return ResultTable(metric=metric, unit=unit, keys=tuple(columns), rows=tuple(rows))


def skip_groups(
    skipped: Iterable[Skip],
    frame: pd.DataFrame | Iterable[Row],
    keys: Sequence[str] = (),
    order: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[tuple[str, str]]:
    """What was skipped and why, with the skips of one reason put together.

    Labels stand in the order of `keys`, last first; one that the whole run shares is left out, and
    all known values of a key (`order`) are written as `every`.
    """
    rows = rows_of(frame)
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


def result_cells(table: ResultTable) -> tuple[list[str], list[list[str]]]:
    """Header and cells of a result table as strings."""
    unit = f" [{table.unit}]" if table.unit else ""
    header = [*table.keys, f"{table.metric}{unit}", "95 % interval", "n", "evidence", "speed-up"]
    cells = [
        [
            *row.keys,
            number(row.median),
            f"{number(row.low)} to {number(row.high)}",
            str(row.n),
            row.evidence,
            "-" if row.speedup is None else f"{row.speedup:.2f}x over {row.baseline}",
        ]
        for row in table.rows
    ]
    return header, cells


def result_text(table: ResultTable, width: int = 100) -> str:
    """The result table as text of at most `width` columns (80 or more), then what was skipped.

    Samples and evidence are columns only where they differ; else the line below says them once.
    """
    if not table.rows:
        body = f"no records of metric {table.metric}"
    else:
        header, cells = result_cells(table)
        keys = len(table.keys)
        same = {i: cells[0][i] for i in (keys + 2, keys + 3) if len({row[i] for row in cells}) == 1}
        keep = [i for i in range(len(header)) if i not in same]
        body = grid(
            [header[i] for i in keep],
            [[row[i] for i in keep] for row in _blank_repeats(cells, max(0, keys - 1))],
            width=width,
            right=[keep.index(i) for i in range(keys, keys + 3) if i in keep],
        )
        facts = [f"{header[i]}: {value}" for i, value in same.items()]
        body += "\n" + ", ".join(["median and bootstrap interval", *facts])
    for what, reason in table.skipped:
        body += "\n" + textwrap.fill(
            f"skipped {what}: {reason}", width, subsequent_indent="  ", break_long_words=False
        )
    return body


def verdict_cells(verdicts: Iterable[Verdict]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the verdict table: claim, verdict, our value, and why."""
    cells = []
    for verdict in verdicts:
        ours = ""
        if verdict.value is not None:
            ours = number(verdict.value)
            if verdict.low is not None and verdict.high is not None:
                ours += f" ({number(verdict.low)} to {number(verdict.high)})"
        cells.append([verdict.id, str(verdict.verdict), ours, verdict.reason])
    return ["claim", "verdict", "ours", "why"], cells


def verdict_text(verdicts: Iterable[Verdict], width: int = 100) -> str:
    """The verdict table as text, followed by one line that counts the verdicts."""
    judged = list(verdicts)
    if not judged:
        return "no claims"
    header, cells = verdict_cells(judged)
    counts = verdict_counts(str(verdict.verdict) for verdict in judged)
    return grid(header, cells, width=width) + "\n\n" + counts


def verdict_counts(words: Iterable[str]) -> str:
    """How many claims got which verdict, in one line."""
    counts = Counter(words)
    return f"{counts.total()} claims: " + ", ".join(f"{n} {word}" for word, n in counts.items())


def grid(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    width: int = 100,
    right: Iterable[int] = (),
) -> str:
    """Columns of text, at most `width` wide; the last column is wrapped, others are never cut.

    Width is counted in terminal cells, so that wide and combining characters line up; control
    characters are shown as '?'. Columns in `right` are set flush right.
    """
    table = [[clean(cell) for cell in row] for row in [header, *rows]]
    last = len(header) - 1
    flush = set(right)
    widths = [max(cells(row[i]) for row in table) for i in range(last)]
    room = max(_LEAST_TEXT, width - sum(widths) - len(_GAP) * last)
    widths.append(min(room, max(cells(row[last]) for row in table)))
    table.insert(1, ["-" * size for size in widths])
    lines = []
    for row in table:
        wrapped = textwrap.wrap(row[last], widths[last]) or [""]
        for number_, piece in enumerate(wrapped):
            parts = [_pad("" if number_ else cell, widths[i], i in flush)
                     for i, cell in enumerate(row[:last])]  # fmt: skip
            lines.append(_GAP.join([*parts, piece]).rstrip())
    return "\n".join(lines)


def number(value: float) -> str:
    """A number with three or four significant digits and no exponent where it can be avoided."""
    if not isfinite(value):
        return str(value)
    size = abs(value)
    if size >= 1e7 or 0 < size < 1e-3:
        return f"{value:.3g}"
    if size >= 1000:
        return f"{value:,.0f}"
    digits = 1 if size >= 100 else 2 if size >= 10 else 3
    text = f"{value:.{digits}f}"
    return f"{value:.0f}" if value == round(value) else text


def cells(text: str) -> int:
    """Terminal cells that `text` takes: wide characters two, combining ones none."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


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


def _blank_repeats(rows: list[list[str]], count: int) -> list[list[str]]:
    """Leave out a leading key that equals the line above it."""
    shown, above = [], [""] * count
    for row in rows:
        first = next((i for i in range(count) if row[i] != above[i]), count)
        shown.append([""] * min(first, 1) + row[min(first, 1) :])
        above = row[:count]
    return shown


def _pad(text: str, width: int, right: bool) -> str:
    fill = " " * (width - cells(text))
    return fill + text if right else text + fill

"""The result tables of a run, and what it skipped, as data. Pure functions."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ae.figures.summary import Row, in_order, pool_rows
from ae.records.files import COLUMNS, Skip
from ae.units import TIMES

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How the tables of a recipe look."""

    metrics: Sequence[str] = ()  # of an experiment the first that it recorded
    keys: Sequence[str] = ()  # label columns, e.g. size and variant
    baseline: str = ""  # variant that a speed-up is over
    baselines: Mapping[str, str] = field(default_factory=dict)  # the same of one variant
    order: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of a key's values


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """A metric of an experiment by its key columns, ready to be written as text, CSV or HTML.

    `rows` are those of `pool_rows` with `speedup`, over the variant `baseline`, of a time or a
    rate; both are None where there is none.
    """

    experiment: str
    metric: str
    keys: tuple[str, ...]
    rows: tuple[Row, ...]

    def within(self, plotted: pd.DataFrame) -> bool:
        """Whether every row is among those plotted, by the keys that are columns of them."""
        keys = [key for key in self.keys if key in plotted]
        rows = Counter(tuple(row[key] for key in keys) for row in self.rows)
        return rows <= Counter(zip(*(plotted[key].astype(str) for key in keys), strict=True))


def result_tables(rows: Sequence[Row], shape: Shape) -> list[ResultTable]:
    """One result table per experiment: of a named metric, else of the time recorded by its keys.

    Labels that tell apart records which agree in the keys become keys, too. A speed-up is over
    the baseline at the same other keys; a label that the baseline lacks does not count.
    """
    experiments: dict[str, list[Row]] = {}
    for row in rows:
        experiments.setdefault(row["experiment"], []).append(row)
    return [_table(name, part, shape) for name, part in experiments.items()]


def _table(experiment: str, rows: Sequence[Row], shape: Shape) -> ResultTable:
    metric = _metric_to_show(rows, shape)
    found = [row for row in rows if row["metric"] == metric]
    keys = [key for key in shape.keys if any(row.get(key) is not None for row in found)]
    keys += _telling_labels(found, keys)
    records = pool_rows(found, metric, keys)
    ranks = {key: in_order((one[key] for one in records), shape.order.get(key, ())) for key in keys}
    records.sort(key=lambda one: [ranks[key].index(one[key]) for key in keys])
    return ResultTable(
        experiment=experiment,
        metric=metric,
        keys=tuple(keys),
        rows=tuple({**one, **_speedup(one, keys, records, shape)} for one in records),
    )


def skip_groups(
    skipped: Iterable[Skip], rows: Sequence[Row], shape: Shape
) -> list[tuple[str, str]]:
    """What was skipped and why, with the skips of one reason put together.

    Labels stand in the order of the keys, last first; one that the whole run shares is left out,
    and all known values of a key (`order`) are written as `every`.
    """
    keys = list(shape.keys)
    groups: dict[str, dict[str, dict[str, None]]] = {}
    for skip in skipped:
        values = groups.setdefault(clean(skip.reason), {})
        for key in sorted(skip.labels, key=lambda key: -keys.index(key) if key in keys else 1):
            values.setdefault(key, {})[skip.labels[key]] = None
    found = []
    for reason, labels in groups.items():
        words = []
        for key, seen in labels.items():
            if len(seen) > 1 and set(seen) == set(shape.order.get(key, ())):
                words.append(f"every {key}")
            elif {row.get(key) for row in rows} - {None} != set(seen) or len(seen) > 1:
                words.append(f"{key} {', '.join(seen)}")
        found.append((clean("; ".join(words)) or "everything", reason))
    return found


def clean(text: object) -> str:
    """Text on one line without control characters."""
    line = " ".join(str(text).split())
    return "".join("?" if unicodedata.category(char).startswith("C") else char for char in line)


def _metric_to_show(rows: Sequence[Row], shape: Shape) -> str:
    """The first of `metrics`, else the first time, else any, of those that have most keys."""
    names = list(dict.fromkeys(str(row["metric"]) for row in rows))

    def merit(name: str) -> tuple[int, int, bool]:
        mine = [row for row in rows if row["metric"] == name]
        known = sum(any(row.get(key) is not None for row in mine) for key in shape.keys)
        return -[*shape.metrics, name].index(name), known, str(mine[0]["unit"]) in TIMES

    return max(names, key=merit)


def _telling_labels(rows: Sequence[Row], keys: Sequence[str]) -> list[str]:
    """Labels beyond `keys` that differ among records which agree in `keys`."""

    def combinations(names: Sequence[str]) -> int:
        return len({tuple(row.get(name) for name in names) for row in rows})

    groups, known = combinations(keys), {*COLUMNS, *keys}
    names = dict.fromkeys(name for row in rows for name in row if name not in known)
    return [name for name in names if combinations([*keys, name]) > groups]


def _speedup(record: Row, keys: Sequence[str], records: Sequence[Row], shape: Shape) -> Row:
    against = shape.baselines.get(record.get("variant", ""), shape.baseline)
    same = [key for key in keys if key != "variant"]
    bases = (
        one
        for one in records
        if one.get("variant") == against and all(one[k] in (record[k], "") for k in same)
    )
    base = next(bases, record)
    is_time, is_rate = record["unit"] in TIMES, record["unit"].endswith("/s")
    parts = [part for one in (base, record) for part in one["samples"].values()]
    if base is record or min(map(min, parts)) <= 0 or not (is_time or is_rate):
        return {"speedup": None, "baseline": None}
    over, under = (base, record) if is_time else (record, base)
    return {"speedup": over["median"] / under["median"], "baseline": against}


def without_ends(table: pd.DataFrame) -> pd.DataFrame:
    """The table without the ends of a spread that is none: they are the value twice."""
    if not {"low", "high"} <= set(table.columns):
        return table
    ends = table[["low", "high"]].where(table["low"] != table["high"])
    return table.assign(low=ends["low"], high=ends["high"])

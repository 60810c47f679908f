"""The record files of points: read, validated line by line, and put together into one table.

Light to import: numpy and pandas are imported by `frame` alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ae.errors import WorkloadError, nearest

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
_LARGEST = sys.float_info.max
EVIDENCE = ("measured", "scaled", "emulated", "simulated", "static")
COLUMNS = (
    "metric", "unit", "evidence", "samples", "n", "median", "low", "high",
    "experiment", "point", "repeat", "note",
)  # fmt: skip
_RECORD_KEYS = ("metric", "unit", "samples", "labels", "evidence", "schema", "warmup", "note")
_SKIP_KEYS = ("labels", "reason", "schema")
_REWRITE = "mend the workload's record writer, then run again with --resume"
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One line of records.jsonl: all samples of one metric in `unit`, in the order taken."""

    metric: str
    unit: str
    samples: tuple[float, ...]
    labels: Mapping[str, str]
    evidence: str
    warmup: int | None = None  # samples dropped before these
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Skip:
    """One line of skipped.jsonl: what could not run, and why."""

    labels: Mapping[str, str]
    reason: str


@dataclass(frozen=True, kw_only=True)
class PointRecords:
    """All that a point's workload wrote. `environment` is empty when it wrote none."""

    records: tuple[Record, ...] = ()
    skipped: tuple[Skip, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)


class RecordsFault(WorkloadError):
    """A record file breaks its contract; `good` holds all that could be read before it did."""

    def __init__(self, message: str, *, fix: str, good: PointRecords | None = None) -> None:
        super().__init__(message, fix=fix)
        self.good = good or PointRecords()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One record with its point: a row of the table that figures and claims see."""

    metric: str
    unit: str
    evidence: str
    samples: tuple[float, ...]
    labels: Mapping[str, str]  # the point's axes, overridden by the record's own labels
    experiment: str
    point: str
    repeat: int = 0
    note: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)  # of the point


def read_point(folder: Path) -> PointRecords:
    """Read what a workload left in a point's folder; missing files are empty.

    Raises RecordsFault (a WorkloadError) naming the file and line. The files are not touched.
    """
    good = PointRecords()
    try:
        environment = _read_object(folder / "environment.json")
        good = PointRecords(environment=environment)
        skipped = _read_lines(folder / "skipped.jsonl", _parse_skip)
        good = PointRecords(environment=environment, skipped=tuple(skipped))
        records = _read_lines(folder / "records.jsonl", _parse_record)
    except _LineFault as fault:
        read = tuple(item for item in fault.good if isinstance(item, Record))
        kept = PointRecords(
            environment=good.environment, skipped=good.skipped, records=good.records + read
        )
        raise RecordsFault(fault.message, fix=fault.fix, good=kept) from fault
    return PointRecords(environment=environment, skipped=tuple(skipped), records=tuple(records))


def load_run(run_dir: Path) -> list[Row]:
    """The records of all points of a run that are done, in the order of plan and lines.

    Raises RecordsFault when a done point's files have been damaged since.
    """
    rows = []
    for folder, status in _done_points(run_dir):
        found = read_point(folder)
        for record in found.records:
            rows.append(
                Row(
                    metric=record.metric,
                    unit=record.unit,
                    evidence=record.evidence,
                    samples=record.samples,
                    labels={**status["labels"], **record.labels},
                    experiment=status["experiment"],
                    point=status["id"],
                    repeat=status["repeat"],
                    note=record.note,
                    environment=found.environment,
                )
            )
    return rows


def load_skips(run_dir: Path) -> list[Skip]:
    """What the points of a run skipped, in part (skipped.jsonl) or as a whole (exit code 77)."""
    skips = []
    for folder, status in _points(run_dir):
        labels = {"experiment": status["experiment"], **status["labels"]}
        if status["status"] == "skipped":
            skips.append(Skip(labels=labels, reason=status["reason"]))
        elif status["status"] == "done":
            for skip in read_point(folder).skipped:
                skips.append(Skip(labels={**labels, **skip.labels}, reason=skip.reason))
    return skips


def load_environment(run_dir: Path) -> dict[str, Any]:
    """The environment of a run: that of its first done point with a GPU, else of its first."""
    found = [read_point(folder).environment for folder, _ in _done_points(run_dir)]
    written = [environment for environment in found if environment]
    with_gpu = [environment for environment in written if gpu_name(environment)]
    return dict((with_gpu or written or [{}])[0])


def gpu_name(environment: Mapping[str, Any]) -> str | None:
    """The GPU's name in environment.json; None on a CPU."""
    gpu = environment.get("gpu")
    if isinstance(gpu, list):
        gpu = gpu[0] if gpu else None
    if isinstance(gpu, Mapping):
        gpu = gpu.get("name")
    return str(gpu) if gpu else None


def table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The record table as plain rows: one dict per record, its labels among the other columns."""
    names = list(dict.fromkeys(name for row in rows for name in row.labels))
    return [
        {
            "metric": row.metric,
            "unit": row.unit,
            "evidence": row.evidence,
            "samples": row.samples,
            "n": len(row.samples),
            "experiment": row.experiment,
            "point": row.point,
            "repeat": row.repeat,
            "note": row.note,
            **{name: row.labels.get(name) for name in names},
        }
        for row in rows
    ]


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """The table of docs/contracts.md: one row per record, one column per label.

    `samples` are tuples of floats; `median`, `low` and `high` are the median and its bootstrap
    95 % interval, in `unit`. A label that a record lacks is missing (NaN).
    """
    import pandas as pd

    from ae.statistics import median_interval

    lines = table(rows)
    for line in lines:
        line["median"], line["low"], line["high"] = median_interval(line["samples"])
    names = list(dict.fromkeys(name for row in rows for name in row.labels))
    return pd.DataFrame(lines, columns=[*COLUMNS, *names])


class _LineFault(WorkloadError):
    """A bad line, with the good ones before it."""

    def __init__(self, message: str, *, fix: str = _REWRITE, good: Iterable[object] = ()) -> None:
        super().__init__(message, fix=fix)
        self.good = tuple(good)


def _read_lines(path: Path, parse: Callable[[Mapping[str, Any]], Item]) -> list[Item]:
    if not path.is_file():
        return []
    items: list[Item] = []
    content = path.read_bytes()
    lines = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            items.append(parse(_decode(line)))
        except json.JSONDecodeError as error:
            where = f"{_name(path)}:{number}"
            if number == len(lines):  # no newline at the end: the writer was cut off
                raise _LineFault(
                    f"{where}: the file ends in the middle of a line",
                    fix="the workload was cut off while writing; the lines before are kept, "
                    "run again with --resume",
                    good=items,
                ) from error
            raise _LineFault(f"{where}: not a JSON object: {error.msg}", good=items) from error
        except _Schema as error:
            raise _LineFault(
                f"{_name(path)}:{number}: {error}",
                fix="build image and launcher from the same revision: `ae build`",
                good=items,
            ) from error
        except ValueError as error:
            raise _LineFault(f"{_name(path)}:{number}: {error}", good=items) from error
    return items


class _Schema(ValueError):
    """Written for another version of the contract."""


def _decode(line: bytes) -> Mapping[str, Any]:
    try:
        data = json.loads(line, parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8 text") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(data, dict):
        raise ValueError(f"not a JSON object but {type(data).__name__}")
    if data.get("schema", SCHEMA) != SCHEMA:
        raise _Schema(f"schema {data['schema']!r}, this launcher reads schema {SCHEMA}")
    return data


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a finite number")


def _parse_record(data: Mapping[str, Any]) -> Record:
    _check_keys(data, _RECORD_KEYS, required=("metric", "unit", "samples", "labels", "evidence"))
    samples = data["samples"]
    if not isinstance(samples, list) or not samples:
        raise ValueError("'samples' must be a list of at least one number")
    for sample in samples:
        if isinstance(sample, bool) or not isinstance(sample, int | float):
            raise ValueError(f"'samples' holds {sample!r}, which is not a number")
        if not -_LARGEST <= sample <= _LARGEST:  # not true of nan either
            raise ValueError("'samples' holds a number that is not finite")
    evidence = data["evidence"]
    if evidence not in EVIDENCE:
        raise ValueError(f"unknown evidence {evidence!r}; {nearest(str(evidence), EVIDENCE)}")
    warmup = data.get("warmup")
    if warmup is not None and (isinstance(warmup, bool) or not isinstance(warmup, int)):
        raise ValueError(f"'warmup' must be a whole number, not {warmup!r}")
    labels = _labels(data)
    for name in labels:
        if name in COLUMNS:
            raise ValueError(f"a label may not be called '{name}', that is a column of its own")
    return Record(
        metric=_text(data, "metric"),
        unit=_text(data, "unit", empty=True),
        samples=tuple(float(sample) for sample in samples),
        labels=labels,
        evidence=str(evidence),
        warmup=warmup,
        note=_text(data, "note", empty=True) if data.get("note") is not None else "",
    )


def _parse_skip(data: Mapping[str, Any]) -> Skip:
    _check_keys(data, _SKIP_KEYS, required=("reason",))
    return Skip(labels=_labels(data), reason=_text(data, "reason"))


def _check_keys(data: Mapping[str, Any], known: Sequence[str], required: Sequence[str]) -> None:
    for key in data:
        if key not in known:
            raise ValueError(f"unknown key '{key}'; {nearest(key, known)}")
    for key in required:
        if key not in data:
            raise ValueError(f"missing key '{key}'")


def _text(data: Mapping[str, Any], key: str, *, empty: bool = False) -> str:
    value = data[key]
    if not isinstance(value, str) or not (value or empty):
        raise ValueError(f"'{key}' must be text, not {value!r}")
    return value


def _labels(data: Mapping[str, Any]) -> dict[str, str]:
    labels = data.get("labels", {})
    if not isinstance(labels, dict) or not all(isinstance(v, str) for v in labels.values()):
        raise ValueError("'labels' must be an object whose values are all text")
    return labels


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _LineFault(f"{_name(path)}: not a JSON object: {error}") from error
    if not isinstance(data, dict):
        raise _LineFault(f"{_name(path)}: not a JSON object but {type(data).__name__}")
    return data


def _points(run_dir: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The folders of ended points and their status, in the order of the run's plan."""
    folder = run_dir / "points"
    found = [] if not folder.is_dir() else sorted(folder.iterdir())
    found = [p for p in found if not p.name.startswith(".") and (p / "status.json").is_file()]
    plan = _read_object(run_dir / "run.json").get("plan", {})
    order = [point["id"] for point in plan.get("points", [])]
    found.sort(key=lambda p: order.index(p.name) if p.name in order else len(order))
    for point in found:
        yield point, _read_object(point / "status.json")


def _done_points(run_dir: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    return ((point, status) for point, status in _points(run_dir) if status["status"] == "done")


def _name(path: Path) -> str:
    """The point and the file: what a person needs to find it."""
    return f"{path.parent.name.removeprefix('.').removesuffix('.tmp')}/{path.name}"

"""The files of a point: read, checked line by line against their models, sizes bounded.

Light to import: pandas is imported by `frame` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, field_validator

from ae.errors import WorkloadError, nearest
from ae.model import Model, Part, Text

if TYPE_CHECKING:
    import pandas as pd

Evidence = Literal["measured", "scaled", "emulated", "simulated", "inferred", "static"]
EVIDENCE: tuple[str, ...] = get_args(Evidence)
COLUMNS = (
    "metric", "unit", "evidence", "samples", "experiment", "point", "repeat", "uuid", "process",
    "note",
)  # fmt: skip
_MADE = ("n", "median", "low", "high", "spread", "processes", "devices", "speedup", "baseline")
RESERVED = (*COLUMNS, *_MADE)  # the last are made for figures and tables
LINE_BYTES = 16 * 2**20  # of a line, and of a file that is one object
FILE_BYTES = 512 * 2**20
_REWRITE = "measure the point again (ae run RUN --resume); if it comes back, mend what writes it"
_REBUILD = "build image and launcher from the same revision: `ae build`"


class _Line(Part):
    schema_version: Literal[1] = Field(1, alias="schema", repr=False)
    labels: dict[str, str] = Field(default_factory=dict)


class Record(_Line):
    """One line of records.jsonl: all samples of one metric in `unit`, in the order taken."""

    metric: Text
    unit: str
    samples: Annotated[tuple[float, ...], Field(min_length=1)]
    labels: dict[str, str]
    evidence: Evidence
    warmup: int | None = None  # samples dropped before these
    note: str | None = None
    process: Text | None = None  # which of those that a point started; None: the point's own

    @field_validator("labels")
    @classmethod
    def _no_column(cls, labels: dict[str, str]) -> dict[str, str]:
        for name in labels:
            if name in RESERVED:
                raise ValueError(f"a label may not be called '{name}', that is a column of its own")
        return labels


class Skip(_Line):
    """One line of skipped.jsonl: what could not run, and why."""

    reason: Text


def _names(value: object) -> tuple[str, ...]:
    """The names in what may be one name, an object with a name, or a list of them."""
    if isinstance(value, Mapping):
        return _names(value.get("name") or value.get("model"))
    if isinstance(value, list | tuple):
        return tuple(name for item in value for name in _names(item))
    return (str(value),) if value else ()


class Environment(Part, extra="allow", strict=False, coerce_numbers_to_str=True):
    """environment.json: what a workload says of its machine. Keys not listed here are kept."""

    gpu: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()  # a name a GPU; none on a CPU
    gpu_uuid: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    driver: str | None = None
    cuda: str | None = None
    torch: str | None = None
    cpu: str | None = None
    clocks: Any = None

    @property
    def gpu_name(self) -> str | None:
        """The first GPU's name; None on a CPU."""
        return self.gpu[0] if self.gpu else None


@dataclass(frozen=True, kw_only=True)
class PointRecords:
    """All that a point's workload wrote. `environment` is None when it wrote none."""

    records: tuple[Record, ...] = ()
    skipped: tuple[Skip, ...] = ()
    environment: Environment | None = None

    @property
    def empty(self) -> bool:
        """Whether the point neither measured nor skipped anything."""
        return not self.records and not self.skipped


class RecordsFault(WorkloadError):
    """A file of a point or a run breaks its contract."""

    def __init__(self, message: str, *, fix: str = _REWRITE) -> None:
        super().__init__(message, fix=fix)


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
    uuid: str = ""  # of its GPUs, with spaces between; without any the name of the host
    process: str = ""  # run, point and, where it has several, which of its processes
    note: str = ""
    environment: Environment | None = None  # of its point; None: nobody knows
    reduced: tuple[str, ...] = ()  # in what its run is smaller than the paper's
    argv: tuple[str, ...] = ()  # of its point

    @property
    def hardware(self) -> str:
        """The first GPU's name; `CPU` where there is none."""
        return (self.environment and self.environment.gpu_name) or "CPU"


def read_point(folder: Path) -> PointRecords:
    """Read what a workload left in a point's folder; missing files are empty.

    Raises RecordsFault naming the file and line. The files are not touched.
    """
    path = folder / "environment.json"
    return PointRecords(
        environment=read_object(path, Environment) if path.is_file() else None,
        skipped=_read_lines(folder / "skipped.jsonl", Skip),
        records=_read_lines(folder / "records.jsonl", Record),
    )


def read_object(path: Path, model: type[Model]) -> Model:
    """A file that is one JSON object. Raises RecordsFault, and OSError without the file."""
    if path.stat().st_size > LINE_BYTES:
        raise RecordsFault(f"{_name(path)}: larger than {LINE_BYTES // 2**20} MiB")
    fix = "" if issubclass(model, Part) else f"put {path} back as it was, or move it elsewhere"
    return _parse(model, path.read_bytes(), _name(path), fix)


def _parse(model: type[Model], content: bytes, where: str, fix: str = "") -> Model:
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        about_schema = error.errors()[0]["loc"] == ("schema",)
        fix = fix or (_REBUILD if about_schema else _REWRITE)
        raise RecordsFault(f"{where}: {_sentence(error, model)}", fix=fix) from error


def _sentence(error: ValidationError, model: type[BaseModel]) -> str:
    """The first thing that is wrong, in a few words."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = " ".join(".".join(map(str, first["loc"])).split())
    if first["type"] == "extra_forbidden":
        known = [about.alias or name for name, about in model.model_fields.items()]
        return f"unknown key '{where}'; {nearest(where, known)}"
    said = first["msg"].removeprefix("Value error, ")
    return f"'{where}': {said}" if where else f"not a JSON object: {said}"


def _read_lines(path: Path, model: type[Model]) -> tuple[Model, ...]:
    if not path.is_file():
        return ()
    if path.stat().st_size > FILE_BYTES:
        raise RecordsFault(f"{_name(path)}: larger than {FILE_BYTES // 2**20} MiB")
    items: list[Model] = []
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES + 1), b""), 1):
            where = f"{_name(path)}:{number}"
            if len(line) > LINE_BYTES:
                raise RecordsFault(f"{where}: a line larger than {LINE_BYTES // 2**20} MiB")
            if line.strip():
                items.append(_parse(model, line, where))
    return tuple(items)


def flat(row: Row) -> dict[str, Any]:
    """The row as tables see it: a value for each column and each label that it has."""
    return {name: getattr(row, name) for name in COLUMNS} | dict(row.labels)


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """The table of docs/contracts.md: one row per record, one column per label.

    `samples` are tuples of floats, in `unit`. A label that a record lacks is NaN.
    """
    import pandas as pd

    labels = dict.fromkeys(name for row in rows for name in row.labels)
    return pd.DataFrame(list(map(flat, rows)), columns=[*COLUMNS, *labels])


def _name(path: Path) -> str:
    """The run, the point and the file: what a person needs to find it."""
    run = f"{path.parents[2].name}/" if path.parts[-3:-2] == ("points",) else ""
    return f"{run}{path.parent.name.removeprefix('.').removesuffix('.tmp')}/{path.name}"

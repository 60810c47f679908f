"""What a tool is: what it needs of the collector, its options, and a report from a recorded run."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from reprokit.records import Evidence

if TYPE_CHECKING:
    from accel_trace.session import Process, Session

# `none` injects nothing at all: the baseline of a measurement.
MODES = ("none", "events", "sync", "copies", "empty", "count", "touch", "hot", "trace", "values")
ANALYSING = ("count", "touch", "hot", "trace", "values")
PATCHING = ("empty", *ANALYSING)
HANDLERS = (
    "sanitizer", "cupti", "torch", "operators", "stacks", "memory_history", "storages", "dispatch",
    "cpu",
)  # fmt: skip
CLASSES = ("global", "shared", "local", "async", "bulk")
Value = str | int | float | bool


class ToolError(ValueError):
    """A tool that is not known, that cannot be loaded, or that got a bad option; one sentence."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What the collector has to do for a tool. `environment` goes to the target as it is."""

    mode: str = "events"
    handlers: tuple[str, ...] = ("sanitizer",)
    classes: tuple[str, ...] = ()  # none: the mode's own default
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, values, known in (
            ("mode", (self.mode,), MODES),
            ("handler", self.handlers, HANDLERS),
            ("class of accesses", self.classes, CLASSES),
        ):
            for value in values:
                if value not in known:
                    raise ToolError(f"{what} '{value}' is not known; choose of {', '.join(known)}")


@dataclass(frozen=True)
class Option:
    """One option of a tool, set by `--set NAME=VALUE`; its default says its type."""

    name: str
    default: Value
    help: str
    choices: tuple[str, ...] = ()

    def read(self, text: str) -> Value:
        """Return the value that `text` names. Raises ToolError with one sentence."""
        if self.choices and text not in self.choices:
            raise ToolError(f"{self.name}={text}: choose of {', '.join(self.choices)}")
        if isinstance(self.default, bool):
            words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
            if text.lower() not in words:
                raise ToolError(f"{self.name}={text}: write true or false")
            return words[text.lower()]
        kind = type(self.default)
        try:
            value = kind(text)
        except ValueError:
            name = "a whole number" if kind is int else "a number"
            raise ToolError(f"{self.name}={text}: {name} is needed") from None
        if not isinstance(value, str) and float(self.default) >= 0 and not value >= 0:
            raise ToolError(f"{self.name}={text}: a number of at least 0 is needed")
        return value


@dataclass(frozen=True)
class Record:
    """One line of records.jsonl (see docs/contracts.md); sizes are bytes, times are seconds."""

    metric: str
    unit: str
    samples: tuple[float, ...]
    labels: Mapping[str, object] = field(default_factory=dict)
    note: str = ""
    evidence: Evidence = "measured"


@dataclass(frozen=True)
class Report:
    """What a tool has found: records, words for a person, and the files that it wrote."""

    records: tuple[Record, ...] = ()
    text: str = ""
    files: tuple[Path, ...] = ()


class Tool:
    """A tool: a subclass with a `name`, a `help`, and `run`.

    `settings` holds the options' values; `out` is the folder for files that the tool writes. A tool
    that needs the program to run more than once says so in `passes`, tells each pass' needs in
    `needs_of`, and finds all sessions in `sessions` (`run` gets the last one).
    """

    name: ClassVar[str] = ""
    help: ClassVar[str] = ""
    needs: ClassVar[Needs] = Needs()
    options: ClassVar[tuple[Option, ...]] = ()
    passes: ClassVar[int] = 1
    infers: ClassVar[bool] = False  # whether it can do with launches inferred from others

    def __init__(
        self, settings: Mapping[str, Value] | None = None, out: Path | None = None
    ) -> None:
        """Take options by name; those left out have their defaults. Raises ToolError."""
        given = dict(settings or {})
        self.settings: dict[str, Value] = {
            option.name: given.pop(option.name, option.default) for option in self.options
        }
        if given:
            known = ", ".join(option.name for option in self.options) or "none"
            raise ToolError(f"{self.name} has no option '{next(iter(given))}'; it has: {known}")
        self.out = out or Path()
        self.sessions: Sequence[Session] = ()

    @classmethod
    def read_settings(cls, words: Mapping[str, str]) -> dict[str, Value]:
        """Return the typed values of `--set` words. Raises ToolError."""
        options = {option.name: option for option in cls.options}
        for name in words:
            if name not in options:
                known = ", ".join(options) or "none"
                raise ToolError(f"{cls.name} has no option '{name}'; it has: {known}")
        return {name: options[name].read(text) for name, text in words.items()}

    def needs_of(self, number: int, earlier: Sequence[Session]) -> Needs:
        """Return the needs of pass `number`, from 0, given the sessions of the passes before it."""
        return self.needs

    def run(self, session: Session) -> Report:
        """Read a recorded run and report. Raises ToolError when it does not hold what it should."""
        raise NotImplementedError

    def number(self, name: str) -> float:
        """Return a numeric option."""
        return float(self.settings[name])

    def word(self, name: str) -> str:
        """Return an option as text."""
        return str(self.settings[name])


def need(process: Process, analysis: str) -> None:
    """Raise ToolError where the log says that its launches were recorded for something else."""
    if process.mode and process.coverage.launches and process.analysis != analysis:
        raise ToolError(
            f"process {process.label}: its launches were recorded in mode {process.analysis}, and "
            f"this tool reads mode {analysis}: run the program again with this tool"
        )


def write_file(path: Path, write: Callable[[Path], object]) -> Path:
    """Have `write` make a file beside `path` that then takes its name; returns `path`.

    So a reader never sees half a file, and one that could not be written leaves the old one. What
    is there and is no plain file (a pipe, /dev/stdout) is written to as it is.
    """
    if path.exists() and not path.is_file():
        write(path)
        return path
    temporary = path.with_name(f".{path.stem}.tmp{path.suffix}")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    """Write a CSV file with a header line; returns `path`."""

    def write(target: Path) -> None:
        with target.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(header)
            writer.writerows(rows)

    return write_file(path, write)


def cut(name: str, most: int = 80) -> str:
    """Return a kernel's name for a person: its end is left out where it is longer."""
    return name if len(name) <= most else name[: most - 3] + "..."


def bytes_text(size: float) -> str:
    """Return a size for a person: B, KiB, MiB or GiB with two digits."""
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"

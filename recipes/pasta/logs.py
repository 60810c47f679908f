"""Reads the logs of the authors' profiler.

Each reader raises ValueError with one sentence when a log is missing, cut off, or not of the form
that the authors' own scripts read (their python/ folder). Sizes are bytes, times seconds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# The fields of one kernel in an app_analysis log, in their order.
FIELDS = (
    "Kernel Name", "Access Count", "Tensor Working Set Size", "Memory Working Set Size",
    "Tensor Footprint Size", "Memory Footprint Size",
)  # fmt: skip
_ELAPSED = re.compile(r"\[ACCELPROF INFO\] ELAPSED TIME\s*: (\d{2,}):([0-5]\d):([0-5]\d)\s*$")
_TENSOR = re.compile(
    r"(?:\[[A-Z]+ INFO\] )?(Malloc|Free) tensor \S+ with size -?\d+, "
    r"allocated (\d+), reserved \d+(.*)$"
)


class Kernel(NamedTuple):
    """One launch. Sizes in bytes: whole tensors touched, and what the driver had handed out."""

    name: str
    working_set: int
    footprint: int


def read_kernels(path: Path) -> list[Kernel]:
    """All launches of an app_analysis log, in order. Raises ValueError when it is cut off."""
    lines = lines_of(path)
    if "Kernel Stats:" not in lines:
        raise ValueError(f"{path.name} is no app_analysis log: it has no 'Kernel Stats:'")
    body = lines[lines.index("Kernel Stats:") + 1 :]
    size = len(FIELDS) + 1
    if not body:
        raise ValueError(f"{path.name} holds no kernel")
    if len(body) % size:
        raise ValueError(f"{path.name} is cut off within a kernel")
    kernels: list[Kernel] = []
    first = None
    for start in range(0, len(body), size):
        block = body[start : start + size]
        number = re.fullmatch(r"Kernel ID: (\d+)", block[0])
        values = [
            line.split(": ", 1)[1]
            for line, field in zip(block[1:], FIELDS, strict=True)
            if line.startswith(f"  {field}: ")
        ]
        if number is None or len(values) != len(FIELDS):
            raise ValueError(f"{path.name}: a kernel does not have the fields that it should")
        first = int(number[1]) if first is None else first
        if int(number[1]) != first + len(kernels):
            raise ValueError(f"{path.name}: kernel {first + len(kernels)} is missing")
        sizes = [re.match(r"\d+(?= |$)", value) for value in values[1:]]
        if not all(sizes):
            raise ValueError(f"{path.name}: a size of kernel {number[1]} is no whole number")
        numbers = [int(found[0]) for found in sizes if found]
        kernels.append(Kernel(values[0], working_set=numbers[1], footprint=numbers[4]))
    return kernels


def short_name(name: str) -> str:
    """A kernel's name as Figure 7 shows it: without `void `, up to the first `<`."""
    return name.removeprefix("void ").split("<", 1)[0].strip() or "(nameless)"


def read_elapsed(path: Path) -> int:
    """Seconds that accelprof counted, from its last line. Raises ValueError without one."""
    last = (lines_of(path) or [""])[-1]
    found = _ELAPSED.match(last)
    if found is None:
        raise ValueError(f"{path.name} does not end with the elapsed time: the run was cut off")
    hours, minutes, seconds = (int(part) for part in found.groups())
    return 3600 * hours + 60 * minutes + seconds


def count_launches(path: Path) -> tuple[int, int]:
    """How many launches the Sanitizer backend profiled and how many it passed over."""
    counts = Counter(
        word
        for line in lines_of(path)
        for word in ("Monitoring kernel", "Skipping kernel")
        if line.startswith(f"[SANITIZER INFO] {word}")
    )
    return counts["Monitoring kernel"], counts["Skipping kernel"]


def tensor_events(path: Path) -> Iterator[tuple[str, int, str]]:
    """Every tensor event of a verbose log: kind, bytes allocated after it, rest of the line."""
    for line in lines_of(path):
        if "Malloc tensor" not in line and "Free tensor" not in line:
            continue
        found = _TENSOR.match(line)
        if found is None:
            raise ValueError(f"{path.name} has a tensor event of another form: {line[:80]!r}")
        yield found[1].lower(), int(found[2]), found[3]


def require_measured(path: Path) -> None:
    """The ResNet programs end with 0 also when they ran nothing."""
    read_elapsed(path)
    if not any("Time taken:" in line for line in lines_of(path)):
        raise ValueError(f"{path.name} has no 'Time taken': the benchmark measured nothing")


def lines_of(path: Path) -> list[str]:
    """The lines of a log; the last one must be whole. Binary noise is kept as question marks."""
    if not path.is_file():
        raise ValueError(f"there is no {path.name}")
    text = path.read_text(encoding="utf-8", errors="replace")
    if not text.endswith("\n"):
        raise ValueError(f"{path.name} is {'cut off within a line' if text else 'empty'}")
    return text.rstrip("\n").split("\n") if text.strip() else []


def integers(line: str, path: Path) -> list[int]:
    words = line.split()
    if not all(word.isascii() and word.isdigit() for word in words):
        raise ValueError(f"{path.name} has a line that is not whole numbers: {line[:60]!r}")
    return [int(word) for word in words]

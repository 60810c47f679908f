"""A recorded run for other programs: a Chrome trace (Perfetto opens it), or JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from accel_trace.events import (
    Alloc,
    CopyTime,
    Event,
    Free,
    KernelTime,
    Launch,
    Memcpy,
    Memset,
    Note,
    OperatorEnd,
    OperatorStart,
    RegionEnd,
    RegionStart,
    Sync,
    TensorAlloc,
    TensorFree,
)
from accel_trace.objects import MemoryIndex
from accel_trace.session import Process, Session
from accel_trace.tools.base import write_file
from accel_trace.tools.lines import event_json

_KINDS: tuple[type[Event], ...] = (
    Alloc, CopyTime, Free, KernelTime, Launch, Memcpy, Memset, Note, OperatorEnd, OperatorStart,
    RegionEnd, RegionStart, Sync, TensorAlloc, TensorFree,
)  # fmt: skip
Entry = dict[str, Any]


def chrome(session: Session, output: Path) -> int:
    """Write a Chrome trace; returns the number of entries. Times are us since the first event.

    Kernels and copies are slices where CUPTI timed them, else instants at their launch.
    """
    return _write(output, _entries(session), '{"displayTimeUnit":"ns","traceEvents":[\n', "\n]}\n")


def jsonl(session: Session, output: Path) -> int:
    """Write one event a line, of all processes in order of time; returns their number."""
    count = 0

    def write(path: Path) -> None:
        nonlocal count
        with path.open("w", encoding="utf-8") as file:
            for process, event in session.events():
                file.write(event_json(event, process.pid) + "\n")
                count += 1

    write_file(output, write)
    return count


FORMATS: dict[str, Callable[[Session, Path], int]] = {"chrome": chrome, "jsonl": jsonl}


def gpu_offset(process: Process) -> int | None:
    """Return what to add to the GPU's clock to get the host's, ns; None where nothing was timed.

    No kernel starts before its launch, so the offset is the least that keeps that true of all.
    """
    launched: dict[int, int] = {}
    started: dict[int, int] = {}
    earliest: int | None = None
    for event in process.events((Launch, KernelTime, CopyTime)):
        if isinstance(event, Launch):
            launched[event.launch] = event.ns
        elif isinstance(event, KernelTime | CopyTime):
            earliest = event.start_ns if earliest is None else min(earliest, event.start_ns)
            if isinstance(event, KernelTime):
                started[event.launch] = event.start_ns
    if earliest is None:
        return None
    known = [launched[number] - start for number, start in started.items() if number in launched]
    return max(known) if known else process.start_ns - earliest


def _entries(session: Session) -> Iterator[Entry]:
    start = next((event.ns for _, event in session.events(_KINDS)), 0)
    starts = [process.start_ns for process in session.processes if process.start_ns]
    start = min([start, *starts])
    for process in session.processes:
        yield from _Track(process, start).entries()


class _Track:
    """One process' entries. Thread ids: those of the host, then made-up ones for streams."""

    def __init__(self, process: Process, start: int) -> None:
        self._process = process
        self._start = start
        self._offset = gpu_offset(process)
        self._memory = MemoryIndex()
        self._rows: dict[str, int] = {}

    def entries(self) -> Iterator[Entry]:
        """Yield the process' name, its events, and then the names of its rows."""
        process = self._process
        yield self._meta("process_name", 0, f"process {process.label} (pid {process.pid})")
        for event in process.events(_KINDS):
            yield from self._of(event)
        for name, row in self._rows.items():
            yield self._meta("thread_name", row, name)

    def _of(self, event: Event) -> Iterator[Entry]:
        if isinstance(event, Launch):
            yield from self._launch(event)
        elif isinstance(event, KernelTime | CopyTime):
            yield self._slice(event)
        elif isinstance(event, OperatorStart | OperatorEnd):
            name, phase = event.name, "B" if isinstance(event, OperatorStart) else "E"
            yield self._at(event.ns, phase, name, self._row(f"operators {event.thread}"))
        elif isinstance(event, RegionStart | RegionEnd):
            phase = "B" if isinstance(event, RegionStart) else "E"
            yield self._at(event.ns, phase, event.name, self._row("regions"))
        elif isinstance(event, TensorAlloc | TensorFree):
            values = {"allocated": event.allocated, "reserved": event.reserved}
            name = f"tensors on device {event.device} (bytes)"
            yield self._at(event.ns, "C", name, 0) | {"args": values}
        elif isinstance(event, Alloc | Free):
            self._memory.apply(event)
            for device, size in self._memory.object_bytes.items():
                name = f"driver's memory on device {device} (bytes)"
                yield self._at(event.ns, "C", name, 0) | {"args": {"allocated": size}}
        elif isinstance(event, Memcpy | Memset | Sync | Note):
            yield self._instant(event)

    def _launch(self, event: Launch) -> Iterator[Entry]:
        words = {
            "launch": event.launch,
            "grid": [event.grid_x, event.grid_y, event.grid_z],
            "block": [event.block_x, event.block_y, event.block_z],
            "operator": event.operator,
            "region": event.region,
            "analysed": event.analysed,
        }
        row = self._row(f"launches, device {event.device} stream {event.stream:#x}")
        yield self._at(event.ns, "i", event.name, row) | {"s": "t", "args": words}

    def _slice(self, event: KernelTime | CopyTime) -> Entry:
        row = self._row(f"GPU {event.device} stream {event.stream}")
        if isinstance(event, KernelTime):
            name, words = event.name, {"launch": event.launch}
        else:
            name, words = event.what, {"bytes": event.size}
        start = event.start_ns + (self._offset or 0)
        length = max(event.end_ns - event.start_ns, 0) / 1e3
        return self._at(start, "X", name, row) | {"dur": length, "args": words}

    def _instant(self, event: Event) -> Entry:
        if isinstance(event, Memcpy):
            words = {"bytes": event.size, "asynchronous": bool(event.asynchronous)}
            name = ("copy", "copy HtoH", "copy HtoD", "copy DtoH", "copy DtoD")[
                event.direction if event.direction < 5 else 0
            ]
        elif isinstance(event, Memset):
            name, words = "memset", {"bytes": event.size, "value": event.value}
        elif isinstance(event, Sync):
            name, words = "wait for a stream" if event.what == 1 else "wait for a context", {}
        else:
            assert isinstance(event, Note)
            return self._at(event.ns, "i", event.text, self._row("notes")) | {"s": "p"}
        return self._at(event.ns, "i", name, self._row("copies and waits")) | {
            "s": "t", "args": words,
        }  # fmt: skip

    def _at(self, ns: int, phase: str, name: str, row: int) -> Entry:
        time = (ns - self._start) / 1e3
        return {"name": name, "ph": phase, "ts": time, "pid": self._process.pid, "tid": row}

    def _meta(self, what: str, row: int, name: str) -> Entry:
        return {"name": what, "ph": "M", "pid": self._process.pid, "tid": row,
                "args": {"name": name}}  # fmt: skip

    def _row(self, name: str) -> int:
        return self._rows.setdefault(name, len(self._rows) + 1)


def _write(output: Path, entries: Iterator[Entry], head: str, tail: str) -> int:
    count = 0

    def write(path: Path) -> None:
        nonlocal count
        with path.open("w", encoding="utf-8") as file:
            file.write(head)
            for entry in entries:
                file.write((",\n" if count else "") + json.dumps(entry, ensure_ascii=False))
                count += 1
            file.write(tail)

    write_file(output, write)
    return count

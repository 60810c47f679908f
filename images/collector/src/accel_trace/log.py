"""Logs of events: a reader that bears with cut files, a writer that never raises for a full disk.

A log is a header, then frames (events.FRAME) whose payload is an event's fields, packed. Strings
are frames of their own, written before they are first named. A log that was closed in order ends
with an End frame, which counts all frames before it, those of strings too.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, get_args, get_type_hints

from accel_trace.events import (
    EVENTS,
    FRAME,
    HEADER,
    MAGIC,
    STRING_KIND,
    VERSION,
    End,
    Event,
)

STATUS_BYTES = 4096
MAX_PAYLOAD = 1 << 24  # bytes; a longer frame means that the file is damaged
_CHUNK = 1 << 20
_FLUSH = 1 << 16
_HEADER = struct.Struct(HEADER)
_FRAME = struct.Struct(FRAME)
_NUMBER = struct.Struct("<I")


class LogError(ValueError):
    """A file that is no log of ours, or that cannot be read."""


class Layout:
    """How one kind of event lies in a frame: struct, field names, and which fields are strings."""

    __slots__ = ("cls", "names", "struct", "texts")

    def __init__(self, cls: type[Event]) -> None:
        hints = get_type_hints(cls, include_extras=True)
        self.cls = cls
        self.names = tuple(f.name for f in fields(cls) if f.name not in ("clock", "ns"))
        types = [get_args(hints[name]) for name in self.names]
        self.struct = struct.Struct("<" + "".join(code for _, code in types))
        self.texts = tuple(i for i, (python, _) in enumerate(types) if python is str)


LAYOUTS: dict[int, Layout] = {cls.kind: Layout(cls) for cls in EVENTS}


@dataclass(frozen=True)
class Status:
    """What the file beside a log says: state `open`, `closed` or `gave_up`, and what was lost."""

    state: str = ""
    why: str = ""
    dropped_events: int = 0
    dropped_accesses: int = 0


def read_status(path: Path) -> Status:
    """Return what a status file says; an empty Status where there is none, or nothing readable."""
    try:
        found = json.loads(path.read_bytes().rstrip(b"\0 \n") or b"{}")
        return Status(
            state=str(found.get("state", "")),
            why=str(found.get("why", "")),
            dropped_events=int(found.get("dropped_events", 0)),
            dropped_accesses=int(found.get("dropped_accesses", 0)),
        )
    except (OSError, ValueError, AttributeError, TypeError):
        return Status()


class LogReader:
    """Reads one log from front to back, in memory that does not grow with its length.

    After an iteration has ended, `damage` says in words why the log is not whole ("" when it is),
    `unknown` counts the frames of kinds that this version does not know, by kind, and `frames`
    counts all frames read. A header that is cut gives no events, and damage.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the header. Raises LogError for a file that is no log or cannot be read."""
        self.path = Path(path)
        self.pid = 0
        self.start_unix_ns = 0
        self.start_ns = 0
        self.damage = ""
        self.frames = 0
        self.unknown: Counter[int] = Counter()
        self._body = 0  # offset of the first frame; 0: the header is cut
        try:
            with self.path.open("rb") as file:
                self._read_header(file.read(_HEADER.size))
        except OSError as error:
            raise LogError(f"{self.path}: cannot be read: {error.strerror or error}") from error

    @property
    def truncated(self) -> bool:
        """Whether the log, as far as it was read, is not whole."""
        return bool(self.damage)

    def __iter__(self) -> Iterator[Event]:
        return self.events()

    def events(self, kinds: Collection[type[Event]] | None = None) -> Iterator[Event]:
        """Yield the events in order; with `kinds`, only those of these classes (faster).

        Every frame that is whole is given, whatever follows it.
        """
        self.frames = 0
        self.unknown = Counter()
        if not self._body:
            self.damage = "the header is cut"
            return
        self.damage = ""
        wanted = LAYOUTS if kinds is None else {cls.kind: LAYOUTS[cls.kind] for cls in kinds}
        with self.path.open("rb", buffering=0) as file:
            yield from self._walk(file, wanted)

    def _read_header(self, data: bytes) -> None:
        if data[: len(MAGIC)] != MAGIC[: len(data)]:
            raise LogError(f"{self.path}: is no log of accel-trace (it does not begin as one)")
        if len(data) < _HEADER.size:
            self.damage = "the header is cut"
            return
        _, version, size, self.pid, self.start_unix_ns, self.start_ns = _HEADER.unpack(data)
        if version != VERSION:
            raise LogError(
                f"{self.path}: is a log of format {version}, and this accel-trace reads format "
                f"{VERSION}; read it with the accel-trace that wrote it"
            )
        if not _HEADER.size <= size <= STATUS_BYTES:
            raise LogError(f"{self.path}: its header claims {size} bytes, so it is damaged")
        self._body = size

    def _walk(self, file: BinaryIO, wanted: dict[int, Layout]) -> Iterator[Event]:
        strings = _Strings()
        strings[0] = ""
        for kind, clock, ns, data, body, end in self._whole_frames(file):
            if kind == STRING_KIND:
                text = data[body + _NUMBER.size : end].decode("utf-8", "replace")
                strings[_NUMBER.unpack_from(data, body)[0]] = text
                continue
            layout = wanted.get(kind)
            if layout is None:
                continue
            values: Any = layout.struct.unpack_from(data, body)
            if layout.texts:
                values = list(values)
                for index in layout.texts:
                    values[index] = strings[values[index]]
            yield layout.cls(clock=clock, ns=ns, **dict(zip(layout.names, values, strict=True)))

    def _whole_frames(self, file: BinaryIO) -> Iterator[tuple[int, int, int, bytes, int, int]]:
        """Yield kind, clock, ns, buffer, and where the payload lies in it, of frames we know."""
        offset = self._body  # of buffer[0] in the file
        file.seek(offset)
        buffer = b""
        at = 0
        while True:
            if at + _FRAME.size > len(buffer):
                offset, buffer, at = offset + at, _more(file, buffer, at, _FRAME.size), 0
                if len(buffer) < _FRAME.size:
                    self.damage = _cut(len(buffer), offset)
                    return
            kind, _, size, clock, ns = _FRAME.unpack_from(buffer, at)
            layout = LAYOUTS.get(kind)
            if layout is None or size != layout.struct.size:
                problem = _problem(kind, size, layout)
                if problem:
                    self.damage = f"{problem} at byte {offset + at}; what follows is not read"
                    return
            whole = _FRAME.size + size
            if at + whole > len(buffer):
                offset, buffer, at = offset + at, _more(file, buffer, at, whole), 0
                if len(buffer) < whole:
                    self.damage = _cut(len(buffer), offset)
                    return
            body = at + _FRAME.size
            at += whole
            if kind == End.kind:
                (counted,) = LAYOUTS[kind].struct.unpack_from(buffer, body)
                if counted != self.frames:
                    self.damage = f"it holds {self.frames} frames, and its end counts {counted}"
                elif at < len(buffer) or file.read(1):
                    self.damage = f"it goes on after its end, at byte {offset + at}"
                yield kind, clock, ns, buffer, body, at
                return
            self.frames += 1
            if layout is None and kind != STRING_KIND:
                self.unknown[kind] += 1
            else:
                yield kind, clock, ns, buffer, body, at


class _Strings(dict[int, str]):
    def __missing__(self, number: int) -> str:
        return f"<string {number}>"  # named, and never written


def _more(file: BinaryIO, buffer: bytes, at: int, need: int) -> bytes:
    """Return what `buffer` holds from `at` on and, as far as the file goes, `need` bytes."""
    parts = [buffer[at:]]
    held = len(parts[0])
    while held < need:
        part = file.read(_CHUNK)
        if not part:
            break
        parts.append(part)
        held += len(part)
    return b"".join(parts)


def _cut(left: int, offset: int) -> str:
    if left:
        return f"its last frame, at byte {offset}, is cut"
    return f"it has no end (its last frame ends at byte {offset})"


def _problem(kind: int, size: int, layout: Layout | None) -> str:
    """Say what is wrong with a frame's head, "" for nothing."""
    if layout is not None and size != layout.struct.size:
        return f"{layout.cls.__name__} of {size} bytes instead of {layout.struct.size}"
    if kind == 0:
        return "nothing was written"  # a file that was made longer before it was filled
    if size > MAX_PAYLOAD or (kind == STRING_KIND and size < _NUMBER.size):
        return f"a frame of kind {kind} and {size} bytes"
    return ""


class LogWriter:
    """Writes one log, with its status file. Threads may share it.

    A disk that is full, or a folder that cannot be written, never raises: the writer gives up, says
    so in the status file, and counts what it drops. In a forked child it writes nothing.
    """

    def __init__(self, path: str | Path, *, pid: int | None = None) -> None:
        """Make the log at `path`, and `.status` beside it. `pid` is the process it speaks of."""
        self.path = Path(path)
        self.pid = os.getpid() if pid is None else pid
        self.why = ""
        self.dropped_events = 0
        self.dropped_accesses = 0
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._strings: dict[str, int] = {"": 0}
        self._buffer = bytearray()
        self._ends: list[tuple[int, bool]] = []  # of frames in the buffer; True for an event
        self._frames = 0
        self._clock = 0
        self._closed = False
        self._log = self._status = -1
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            self._status = os.open(self.path.with_suffix(".status"), flags, 0o644)
            self._log = os.open(self.path, flags, 0o644)
            self._say("open")
        except OSError as error:
            self._give_up(error)
        now = (self.pid, time.time_ns(), time.monotonic_ns())
        self._buffer += _HEADER.pack(MAGIC, VERSION, _HEADER.size, *now)

    @classmethod
    def in_folder(cls, folder: str | Path, part: str = "") -> LogWriter:
        """Make this process' log in `folder`; `part` tells several logs of one process apart.

        A log that is there already, of a program that this process ran before an exec, is kept.
        """
        stem = f"trace-{os.getpid()}{part and f'-{part}'}"
        path = Path(folder) / f"{stem}.atl"
        for number in range(2, 100):
            if not path.exists():
                break
            path = Path(folder) / f"{stem}.{number}.atl"
        return cls(path)

    @property
    def gave_up(self) -> bool:
        """Whether the writer has stopped writing, for the reason `why`."""
        return bool(self.why)

    def write(self, event: Event) -> bool:
        """Append one event; False when it was dropped.

        A clock or time of 0 is filled in. Raises ValueError for a value that its field cannot hold.
        """
        with self._lock:
            if os.getpid() != self._owner:
                return False
            if self.why or self._closed:
                self._drop(1)
                return False
            self._clock = event.clock or self._clock + 1
            self._pack(event)
            if len(self._buffer) >= _FLUSH:
                self._flush()
            return not self.why

    def drop_accesses(self, count: int) -> None:
        """Count accesses that were lost before they could be written."""
        with self._lock:
            self.dropped_accesses += count
            self._say(self._state())

    def flush(self) -> None:
        """Hand everything written so far to the operating system."""
        with self._lock:
            self._flush()

    def close(self) -> None:
        """End the log in order. Closing twice is the same as once."""
        with self._lock:
            if self._closed or os.getpid() != self._owner:
                return
            if not self.why:
                self._clock += 1
                self._pack(End(clock=self._clock, frames=self._frames))
                self._flush()
            self._closed = True
            self._say(self._state())
            for file in (self._log, self._status):
                if file >= 0:
                    os.close(file)
            self._log = self._status = -1

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _pack(self, event: Event) -> None:
        layout = LAYOUTS[event.kind]
        values = [getattr(event, name) for name in layout.names]
        for index in layout.texts:
            values[index] = self._number(values[index])
        try:
            payload = layout.struct.pack(*values)
        except struct.error as error:
            raise ValueError(f"{event} cannot be written: {error}") from error
        self._frame(event.kind, payload, event.ns, True)

    def _number(self, text: str) -> int:
        number = self._strings.get(text)
        if number is None:
            number = self._strings[text] = len(self._strings)
            data = text.encode("utf-8", "backslashreplace")[: MAX_PAYLOAD - _NUMBER.size]
            self._frame(STRING_KIND, _NUMBER.pack(number) + data, 0, False)
        return number

    def _frame(self, kind: int, payload: bytes, ns: int, event: bool) -> None:
        ns = ns or time.monotonic_ns()
        self._buffer += _FRAME.pack(kind, 0, len(payload), self._clock, ns) + payload
        self._ends.append((len(self._buffer), event))
        self._frames += 1

    def _flush(self) -> None:
        if self.why or self._log < 0 or os.getpid() != self._owner:
            return
        written = 0
        try:
            while written < len(self._buffer):
                written += os.write(self._log, memoryview(self._buffer)[written:])
        except OSError as error:
            self.dropped_events += sum(event for end, event in self._ends if end > written)
            self._give_up(error)
        self._buffer = bytearray()
        self._ends = []

    def _give_up(self, error: OSError) -> None:
        self.why = f"{self.path.name}: {error.strerror or error}"
        self._buffer = bytearray()
        self._say("gave_up")

    def _drop(self, count: int) -> None:
        before = self.dropped_events
        self.dropped_events += count
        if before == 0 or before.bit_length() != self.dropped_events.bit_length():
            self._say(self._state())  # seldom: the exact number is written at the end

    def _state(self) -> str:
        if self.why:
            return "gave_up"
        return "closed" if self._closed else "open"

    def _say(self, state: str) -> None:
        """Write the status in place; its blocks were taken when the log was made."""
        if self._status < 0:
            return
        words = {"state": state, "why": self.why[:1000], "dropped_events": self.dropped_events}
        text = json.dumps(words | {"dropped_accesses": self.dropped_accesses})
        try:
            os.pwrite(self._status, text.encode().ljust(STATUS_BYTES - 1) + b"\n", 0)
        except OSError as error:
            self.why = self.why or f"{self.path.name}: {error.strerror or error}"

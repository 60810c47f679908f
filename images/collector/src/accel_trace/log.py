"""Reads logs of events, also those that were cut.

A log is a header, then frames (layouts.FRAME) whose payload is an event's fields, packed. Strings
are frames of their own, written before they are first named. A log that was closed in order ends
with an End frame, which counts all frames before it, those of strings too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from accel_trace.events import End, Event
from accel_trace.layouts import (
    FRAME_HEAD,
    HEAD,
    LAYOUTS,
    MAGIC,
    MAX_PAYLOAD,
    NUMBER,
    STATUS_BYTES,
    STRING_KIND,
    VERSION,
    Layout,
)

_CHUNK = 1 << 20


class LogError(ValueError):
    """A file that is no log of ours, or that cannot be read."""


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
    except (OSError, ValueError, AttributeError, TypeError, OverflowError, RecursionError):
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
                self._read_header(file.read(HEAD.size))
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
        if len(data) < HEAD.size:
            self.damage = "the header is cut"
            return
        _, version, size, self.pid, self.start_unix_ns, self.start_ns = HEAD.unpack(data)
        if version != VERSION:
            raise LogError(
                f"{self.path}: is a log of format {version}, and this accel-trace reads format "
                f"{VERSION}; read it with the accel-trace that wrote it"
            )
        if not HEAD.size <= size <= STATUS_BYTES:
            raise LogError(f"{self.path}: its header claims {size} bytes, so it is damaged")
        self._body = size

    def _walk(self, file: BinaryIO, wanted: dict[int, Layout]) -> Iterator[Event]:
        strings = _Strings()
        strings[0] = ""
        for kind, clock, ns, data, body, end in self._whole_frames(file):
            if kind == STRING_KIND:
                text = data[body + NUMBER.size : end].decode("utf-8", "replace")
                strings[NUMBER.unpack_from(data, body)[0]] = text
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
            if at + FRAME_HEAD.size > len(buffer):
                offset, buffer, at = offset + at, _more(file, buffer, at, FRAME_HEAD.size), 0
                if len(buffer) < FRAME_HEAD.size:
                    self.damage = _cut(len(buffer), offset)
                    return
            kind, _, size, clock, ns = FRAME_HEAD.unpack_from(buffer, at)
            layout = LAYOUTS.get(kind)
            if layout is None or size != layout.struct.size:
                problem = _problem(kind, size, layout)
                if problem:
                    self.damage = f"{problem} at byte {offset + at}; what follows is not read"
                    return
            whole = FRAME_HEAD.size + size
            if at + whole > len(buffer):
                offset, buffer, at = offset + at, _more(file, buffer, at, whole), 0
                if len(buffer) < whole:
                    self.damage = _cut(len(buffer), offset)
                    return
            body = at + FRAME_HEAD.size
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
    if size > MAX_PAYLOAD or (kind == STRING_KIND and size < NUMBER.size):
        return f"a frame of kind {kind} and {size} bytes"
    return ""

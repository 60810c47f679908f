"""Writes logs of events (see `log`); a full disk never raises."""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from pathlib import Path
from types import TracebackType

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
)

_FLUSH = 1 << 16


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
        self._buffer += HEAD.pack(MAGIC, VERSION, HEAD.size, *now)

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
            data = text.encode("utf-8", "backslashreplace")[: MAX_PAYLOAD - NUMBER.size]
            self._frame(STRING_KIND, NUMBER.pack(number) + data, 0, False)
        return number

    def _frame(self, kind: int, payload: bytes, ns: int, event: bool) -> None:
        ns = ns or time.monotonic_ns()
        self._buffer += FRAME_HEAD.pack(kind, 0, len(payload), self._clock, ns) + payload
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

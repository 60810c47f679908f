"""Where Python handlers report to: the injection library, or a log of their own.

Two writers never share a file. Where the library is loaded it owns `trace-<pid>.atl`; a handler
that still needs events the library has no function for opens a log with a part name beside it.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from accel_trace.events import (
    Event,
    Fact,
    Note,
    OperatorEnd,
    OperatorStart,
    RegionEnd,
    RegionStart,
    Stack,
    TensorAlloc,
    TensorFree,
)
from accel_trace.handlers import library
from accel_trace.log_writer import LogWriter


class Sink(Protocol):
    """What handlers call; see handlers/library.py for the meaning of each."""

    def tensor(
        self,
        alloc: bool,
        address: int,
        size: int,
        *,
        allocated: int,
        reserved: int,
        device: int = 0,
        stream: int = 0,
    ) -> None: ...
    def operator(self, start: bool, name: str) -> None: ...
    def region(self, start: bool, name: str) -> None: ...
    def stack(self, launch: int, text: str) -> None: ...
    def note(self, level: int, text: str) -> None: ...
    def fact(self, name: str, value: str) -> None: ...


class LogSink:
    """A log that opens at its first event and closes when the process ends.

    Threads share it. An event that comes while another is being written (a finaliser that the
    garbage collector runs) waits its turn. A forked child opens its own log.
    """

    def __init__(self, folder: str, part: str = "") -> None:
        """`part` tells several logs of one process apart."""
        self.folder = folder
        self.part = part
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._writer: LogWriter | None = None
        self._closers: list[Callable[[], None]] = []
        self._lock = threading.RLock()
        self._waiting: deque[Event] = deque()
        self._armed = self._busy = self._closed = False
        self._operators = 0
        self._local = threading.local()

    def before_close(self, closer: Callable[[], None]) -> None:
        """Call `closer` when the process ends, before the log is closed: the last events."""
        self._closers.append(closer)
        self._arm()

    def write(self, event: Event) -> None:
        """Append one event; its clock and time are filled in."""
        self._waiting.append(event)
        with self._lock:
            if self._busy:
                return
            self._busy = True
            try:
                writer = self._open()
                while self._waiting and not self._closed:
                    writer.write(self._waiting.popleft())
            finally:
                self._busy = False

    def close(self) -> None:
        """Run the closers, end the log. Again: nothing."""
        if self._closed:
            return
        for closer in self._closers:
            try:
                closer()
            except Exception as error:  # noqa: BLE001  # the target's end must not fail
                self.note(2, f"a handler's last events are lost: {error!r}")
        self._closed = True
        if self._writer is not None:
            self._writer.close()

    def tensor(
        self,
        alloc: bool,
        address: int,
        size: int,
        *,
        allocated: int,
        reserved: int,
        device: int = 0,
        stream: int = 0,
        ns: int = 0,
    ) -> None:
        """A block was handed out or taken back."""
        event = TensorAlloc if alloc else TensorFree
        self.write(
            event(
                address=address,
                size=size,
                allocated=allocated,
                reserved=reserved,
                device=device,
                stream=stream,
                ns=ns,
            )
        )

    def operator(self, start: bool, name: str) -> None:
        """An operator began or ended on this thread."""
        thread = threading.get_native_id()
        open_ones: list[tuple[str, int]] = self._local.__dict__.setdefault("open", [])
        if start:
            with self._lock:
                index, self._operators = self._operators, self._operators + 1
            open_ones.append((name, index))
            self.write(OperatorStart(name=name, index=index, thread=thread))
        elif open_ones:
            opened, index = open_ones.pop()
            self.write(OperatorEnd(name=opened, index=index, thread=thread))

    def region(self, start: bool, name: str) -> None:
        """A region was entered or left."""
        self.write(RegionStart(name=name) if start else RegionEnd(name=name))

    def stack(self, launch: int, text: str) -> None:
        """The call stack of a launch."""
        self.write(Stack(launch=launch, text=text))

    def note(self, level: int, text: str) -> None:
        """Something a person should know."""
        self.write(Note(level=level, text=text))

    def fact(self, name: str, value: str) -> None:
        """A fact about the process."""
        self.write(Fact(name=name, value=value))

    def flush(self) -> None:
        """Hand the events so far to the operating system."""
        with self._lock:
            if self._writer is not None and not self._closed:
                self._writer.flush()

    def _open(self) -> LogWriter:
        if self._writer is None:
            self._writer = LogWriter.in_folder(self.folder, self.part)
            self._arm()
        return self._writer

    def _arm(self) -> None:
        """Have the log closed when the process ends."""
        if self._armed:
            return
        self._armed = True
        atexit.register(self.close)
        util = sys.modules.get("multiprocessing.util")
        if util is not None:  # a forked worker leaves by os._exit, past atexit
            with suppress(Exception):
                util.Finalize(None, self.close, exitpriority=0)


_logs: dict[str, LogSink] = {}


def log_sink(part: str = "") -> LogSink | None:
    """The log of this process for handlers in Python; None where nothing is recorded."""
    folder = os.environ.get("ACCEL_TRACE_OUT")
    if not folder:
        return None
    if library.find() is not None:
        part = part or "python"
    if part not in _logs:
        _logs[part] = LogSink(folder, part)
    return _logs[part]


def sink() -> Sink | None:
    """The injection library where it is loaded, else this process' own log, else None."""
    return library.find() or log_sink()


def open_log() -> LogSink | None:
    """The own log, if a handler of this process already has one."""
    return _logs.get("")


def note(level: int, text: str) -> None:
    """Tell a person something; where nothing is recorded, nobody."""
    target = sink()
    if target is not None:
        target.note(level, text)

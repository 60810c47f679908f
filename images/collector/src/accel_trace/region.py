"""What a program says to the recorder that watches it; without one it does nothing.

`with region("name"):` marks a part, to filter by and to read in a report. `flush()` has the
recorder bring down what it still holds, so that a clock that is read afterwards has seen its cost.
"""

from __future__ import annotations

import os
import sys
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any


class region(ContextDecorator):
    """Mark what runs inside, as a context manager or a decorator; regions nest, threads may share.

    Reports to the recorder that is active in the process; without one it does nothing, so that it
    may stay in a program. `name` must be text that is not empty (ValueError).
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f'region({name!r}): give it a name, such as region("forward")')
        self.name = name
        self._told: list[Any] = []

    def _recreate_cm(self) -> region:
        return region(self.name)  # a decorated function may run in several threads at once

    def __enter__(self) -> region:
        target = _target()
        if target is not None:
            target.region(True, self.name)
        self._told.append(target)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        target = self._told.pop()  # the end goes where the start went
        if target is not None:
            target.region(False, self.name)


def flush() -> None:
    """Wait for the analysis of all launches so far, and for the log to be written."""
    target = _target()
    if target is not None:
        target.flush()


def step() -> None:
    """Say in a loop that an iteration begins here, and that the one before it has ended.

    With `accel-trace run --every N` one in N is analysed, and the others run without patches.
    """
    if os.environ.get("ACCEL_TRACE_EVERY"):
        target = _target()
        if target is not None and hasattr(target, "step"):
            target.step()


def _target() -> Any:
    if not os.environ.get("ACCEL_TRACE_OUT"):
        return None
    from accel_trace.handlers import library

    found = library.find()
    if found is not None:
        return found
    sinks = sys.modules.get("accel_trace.handlers.sink")
    return sinks.open_log() if sinks is not None else None

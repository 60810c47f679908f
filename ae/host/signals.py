"""The one place that handles signals: the first stops the work, later ones let it clean up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _State:
    """What has arrived in a `handled()` block."""

    def __init__(self) -> None:
        self.raised = False  # KeyboardInterrupt has been raised: clean-up is under way
        self.pending = False  # a signal arrived inside `shielded()`
        self.shields = 0

    def arrived(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Raise KeyboardInterrupt: once, and not inside `shielded()`."""
        self.pending = not self.raised and self.shields > 0
        if not self.raised and not self.pending:
            self.raised = True
            raise KeyboardInterrupt


_stack: list[_State] = []  # of nested blocks


@contextmanager
def handled() -> Iterator[None]:
    """Turn the first SIGINT, SIGTERM or SIGHUP in this block into one KeyboardInterrupt.

    Later signals are ignored, so that clean-up runs to its end. The old handlers come back after
    the block. Outside the main thread, where Python allows no handlers, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    state = _State()
    before: dict[signal.Signals, Any] = {}
    _stack.append(state)
    try:
        for number in HANDLED:
            # `nohup ae run` ignores SIGHUP for us; keep it so.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, state.arrived)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _stack.pop()


@contextmanager
def shielded() -> Iterator[None]:
    """Hold a signal back until the end of this block: for short steps that must not be torn."""
    if not _stack or threading.current_thread() is not threading.main_thread():
        yield
        return
    state = _stack[-1]
    state.shields += 1
    try:
        yield
    finally:
        state.shields -= 1
        if state.pending and state.shields == 0:
            state.arrived()

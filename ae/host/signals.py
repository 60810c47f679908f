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
    """What has arrived. One per `handled()` block; the stack serves nested blocks."""

    def __init__(self) -> None:
        self.raised = False  # KeyboardInterrupt has been raised: clean-up is under way
        self.pending = False  # a signal arrived inside `shielded()`
        self.shields = 0


_stack: list[_State] = []


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
            current: Any = signal.getsignal(number)
            # `nohup ae run` ignores SIGHUP for us; keep it so.
            if number == signal.SIGHUP and current is signal.SIG_IGN:
                continue
            before[number] = current
            signal.signal(number, _on_signal)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        _stack.pop()


@contextmanager
def shielded() -> Iterator[None]:
    """Hold a signal back until the end of this block: for short steps that must not be torn."""
    state = _stack[-1] if _stack else None
    if state is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    state.shields += 1
    try:
        yield
    finally:
        state.shields -= 1
        if state.pending and state.shields == 0:
            state.pending = False
            state.raised = True
            raise KeyboardInterrupt


def _on_signal(number: int, frame: FrameType | None) -> None:
    state = _stack[-1]
    if state.raised or state.pending:
        return
    if state.shields:
        state.pending = True
        return
    state.raised = True
    raise KeyboardInterrupt

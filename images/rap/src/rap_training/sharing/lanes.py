"""Lanes: where work queues up in order. CUDA streams on a GPU, threads on a CPU.

A variant decides what runs in which lane and what waits for what; the same code then runs on a GPU
and, for tests and the quick size, on a CPU.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Lane(Protocol):
    """Work in order. Events of one lane can be waited for in another."""

    def submit(self, work: Callable[[], object]) -> None:
        """Queue `work`."""

    def record(self) -> Any:
        """An event: everything queued so far is done."""

    def wait(self, event: Any) -> None:
        """What is queued from now on runs after `event`; None: nothing to wait for."""

    def finish(self) -> None:
        """Block the caller until the lane is idle. Raises what the lane's work raised."""

    def close(self) -> None:
        """Let go of threads."""


class StreamLane:
    """A CUDA stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream

    def submit(self, work: Callable[[], object]) -> None:
        """See Lane."""
        with torch.cuda.stream(self.stream):
            work()

    def record(self) -> torch.cuda.Event:
        """See Lane."""
        event = torch.cuda.Event()
        event.record(self.stream)
        return event

    def wait(self, event: torch.cuda.Event | None) -> None:
        """See Lane. The device waits, not the host."""
        if event is not None:
            self.stream.wait_event(event)

    def finish(self) -> None:
        """See Lane."""
        self.stream.synchronize()

    def close(self) -> None:
        """See Lane."""


class CallerLane:
    """The calling thread itself: work runs at once (training on a CPU)."""

    def submit(self, work: Callable[[], object]) -> None:
        """See Lane."""
        work()

    def record(self) -> threading.Event:
        """See Lane."""
        event = threading.Event()
        event.set()
        return event

    def wait(self, event: threading.Event | None) -> None:
        """See Lane."""
        if event is not None:
            event.wait()

    def finish(self) -> None:
        """See Lane."""

    def close(self) -> None:
        """See Lane."""


class ThreadLane:
    """A thread (preprocessing beside training on a CPU)."""

    def __init__(self, name: str = "lane") -> None:
        self._work: queue.Queue[Callable[[], object] | None] = queue.Queue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], object]) -> None:
        """See Lane. Raises what earlier work raised: nobody should go on for nothing."""
        self._raise()
        self._work.put(work)

    def record(self) -> threading.Event:
        """See Lane."""
        event = threading.Event()
        self._work.put(event.set)
        return event

    def wait(self, event: threading.Event | None) -> None:
        """See Lane."""
        if event is not None:
            self._work.put(event.wait)

    def finish(self) -> None:
        """See Lane."""
        self.record().wait()
        self._raise()

    def close(self) -> None:
        """See Lane."""
        self._work.put(None)
        self._thread.join()

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _loop(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                # After a failure only events go on, so that nobody waits for ever.
                if self._error is None or getattr(work, "__name__", "") == "set":
                    work()
            except BaseException as error:  # noqa: BLE001 - raised again by finish()
                self._error = error


def lanes(device: torch.device, *, priority: int = 0) -> tuple[Lane, Lane]:
    """The lane of training and one beside it. `priority` 0: equal; 1: training goes first.

    Training's stream is always one that goes first, as its graphs were captured in such a one.
    """
    if device.type == "cpu":
        return CallerLane(), ThreadLane("preprocess")
    least, most = torch.cuda.Stream.priority_range()
    side = torch.cuda.Stream(device, priority=least if priority else most)
    return StreamLane(torch.cuda.Stream(device, priority=most)), StreamLane(side)

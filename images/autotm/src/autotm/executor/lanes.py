"""Where tensors live and who moves them: an arena, a host arena, and three lanes.

Lane `compute` runs the operators in the caller's order; lanes `out` and `in` copy to the host and
back, each in its own order, beside it. On a GPU the lanes are CUDA streams, marks are events and
the host arena is pinned once. On a CPU both arenas are plain memory and each copy lane is a thread,
so that the same program runs there, as concurrently.
"""

from __future__ import annotations

import contextlib
import mmap
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

from autotm.executor.errors import PinnedError
from autotm.executor.memory import Region, room
from autotm.executor.outside import fits_on_host
from autotm.graph import aligned

PAGE = 4096

Mark = Any  # a point in a lane that another lane can wait for
Delay = Callable[[str], float]  # lane -> seconds that the next copy is late: for tests of races


class Lanes(Protocol):
    """Arenas of bytes (uint8, 1-d) and lanes `compute`, `out`, `in`.

    trace: None, or where copies put (lane, label, stamp at begin, stamp at end).
    """

    arena: torch.Tensor
    host: torch.Tensor
    trace: list[tuple[str, str, Any, Any]] | None

    def begin(self) -> None:
        """From now on compute is the caller's stream."""

    def mark(self) -> Mark:
        """The end of what compute has been given so far."""

    def copy(
        self, lane: str, label: str, target: torch.Tensor, source: torch.Tensor, after: list[Mark]
    ) -> Mark:
        """Copy in a lane after some marks; gives the mark of its end."""

    def wait(self, mark: Mark) -> None:
        """Compute goes on after this mark."""

    def stamp(self) -> Any:
        """A moment of compute."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Seconds between two stamps of any lanes, once all lanes are idle."""

    def idle(self) -> None:
        """Wait for all lanes."""

    def region(self, address: int, size: int) -> Region | None:
        """Where operators allocate what they need, in the arena; None on a CPU, where it does not
        count."""

    def close(self) -> None:
        """Wait for all lanes; give the memory back."""


class _Done:
    """A mark of a thread: set at the end, with what went wrong."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._error: BaseException | None = None

    def set(self, error: BaseException | None = None) -> None:
        self._error = error
        self._event.set()

    def wait(self) -> None:
        self._event.wait()
        if self._error is not None:
            raise self._error


class CpuLanes:
    """Two plain arenas and two threads. delay: seconds by which a copy is held up, by lane."""

    def __init__(self, arena: int, host: int, delay: Delay | None = None) -> None:
        self.arena = torch.empty(arena, dtype=torch.uint8)
        self.host = torch.empty(host, dtype=torch.uint8)
        self.trace: list[tuple[str, str, Any, Any]] | None = None
        self._queues: dict[str, queue.SimpleQueue[Any]] = {
            "out": queue.SimpleQueue(),
            "in": queue.SimpleQueue(),
        }
        self._threads = [
            threading.Thread(
                target=_serve, args=(todo, name, delay), name=f"autotm {name}", daemon=True
            )
            for name, todo in self._queues.items()
        ]
        for thread in self._threads:
            thread.start()
        # Without it, whoever forgets to close leaves threads behind.
        self._finalizer = weakref.finalize(self, _stop, tuple(self._queues.values()), self._threads)

    def begin(self) -> None:
        pass

    def mark(self) -> Mark:
        return None  # the caller's thread is compute: what it was given is done

    def copy(
        self, lane: str, label: str, target: torch.Tensor, source: torch.Tensor, after: list[Mark]
    ) -> Mark:
        done = _Done()
        waits = [mark for mark in after if mark is not None]
        self._queues[lane].put((done, target, source, waits, label, self.trace))
        return done

    def wait(self, mark: Mark) -> None:
        if mark is not None:
            mark.wait()

    def stamp(self) -> Any:
        return time.perf_counter()

    def seconds(self, begin: Any, end: Any) -> float:
        return float(end - begin)

    def idle(self) -> None:
        nothing = torch.empty(0, dtype=torch.uint8)
        for lane in self._queues:
            self.wait(self.copy(lane, "", nothing, nothing, []))

    def region(self, address: int, size: int) -> Region | None:
        return None

    def close(self) -> None:
        self._finalizer()
        self.arena = self.host = torch.empty(0, dtype=torch.uint8)


def _serve(todo: queue.SimpleQueue[Any], lane: str, delay: Delay | None) -> None:
    sleeping = threading.Event()
    while (item := todo.get()) is not None:
        done, target, source, after, label, trace = item
        try:
            for mark in after:
                mark.wait()
            if delay is not None:
                sleeping.wait(delay(lane))
            begin = time.perf_counter()
            target.copy_(source)
            if trace is not None and label:
                trace.append((lane, label, begin, time.perf_counter()))
        except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
            done.set(error)
        else:
            done.set()


def _stop(queues: tuple[queue.SimpleQueue[Any], ...], threads: list[threading.Thread]) -> None:
    for todo in queues:
        todo.put(None)
    for thread in threads:
        thread.join()


class CudaLanes:
    """An arena of a GPU, a pinned host arena, and two streams beside the caller's.

    delay: seconds by which a copy is held up on its stream (a spinning kernel), by lane.
    Raises PinnedError where the host's memory cannot be pinned, torch.OutOfMemoryError as usual.
    """

    def __init__(
        self, arena: int, host: int, device: torch.device, delay: Delay | None = None
    ) -> None:
        self._device = device
        self._delay = delay
        self.trace: list[tuple[str, str, Any, Any]] | None = None
        self.arena = room(arena, device)
        self.host = pinned(host)
        self._finalizer = weakref.finalize(self, unpin, self.host)  # it outlives these lanes
        self._streams = {name: torch.cuda.Stream(device) for name in ("out", "in")}
        self.begin()

    def begin(self) -> None:
        self._compute = torch.cuda.current_stream(self._device)

    def mark(self) -> Mark:
        return self._compute.record_event()

    def copy(
        self, lane: str, label: str, target: torch.Tensor, source: torch.Tensor, after: list[Mark]
    ) -> Mark:
        stream = self._streams[lane]
        for mark in after:
            stream.wait_event(mark)
        torch.cuda.set_stream(stream)  # `with torch.cuda.stream` takes several times as long
        try:
            if self._delay is not None:
                torch.cuda._sleep(int(self._delay(lane) * 1.5e9))  # cycles
            begin = self.stamp() if self.trace is not None else None
            target.copy_(source, non_blocking=True)
            if self.trace is not None:
                self.trace.append((lane, label, begin, self.stamp()))
        finally:
            torch.cuda.set_stream(self._compute)
        return stream.record_event()

    def wait(self, mark: Mark) -> None:
        self._compute.wait_event(mark)

    def stamp(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) / 1e3

    def idle(self) -> None:
        torch.cuda.synchronize(self._device)

    def region(self, address: int, size: int) -> Region | None:
        return Region(self.arena[address : address + size])

    def close(self) -> None:
        self.idle()
        self.arena = self.host = torch.empty(0, dtype=torch.uint8)
        self._finalizer()


def pinned(size: int) -> torch.Tensor:
    """`size` bytes of host memory that a GPU can copy from beside its work, until `unpin`.

    Registered by hand, in pages of its own: PyTorch's own pinned memory is rounded up to a power of
    two. The storage begins with the first page, which is where `is_pinned` looks. Raises
    PinnedError.
    """
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    whole = aligned(size, PAGE)
    if not fits_on_host(whole):
        raise PinnedError(_no_memory(size))
    try:
        pages = mmap.mmap(-1, whole, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise PinnedError(_no_memory(size)) from error
    memory = torch.frombuffer(pages, dtype=torch.uint8, count=size)
    if int(_runtime().cudaHostRegister(memory.data_ptr(), whole, 0)) != 0:
        _forget_error()
        raise PinnedError(_no_memory(size))
    return memory


def unpin(memory: torch.Tensor) -> None:
    """Let go of what `pinned` gave; every copy must have ended."""
    if memory.numel():
        _runtime().cudaHostUnregister(memory.data_ptr())


def _runtime() -> Any:
    return torch.cuda.cudart()


def _forget_error() -> None:
    """The runtime keeps its last error for whoever asks next: the next kernel's launch."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")


def _no_memory(size: int) -> str:
    return (
        f"{size / 1e9:.2f} GB of pinned host memory for tensors that leave cannot be had: raise "
        "the budget, or the limits of host memory (ulimit -l, docker run --ulimit memlock=-1)"
    )


def lanes_on(device: torch.device, arena: int, host: int, delay: Delay | None = None) -> Lanes:
    """Arenas of these bytes and lanes on a device. Raises PinnedError."""
    if device.type == "cuda":
        return CudaLanes(arena, host, device, delay)
    return CpuLanes(arena, host, delay)

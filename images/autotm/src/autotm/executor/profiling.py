"""How long each operator takes here, and what it needs outside the arena: measured once, kept.

An operator is timed as the executor runs it (with the copy into the arena, where there is one), on
operands in the memory where it will find them. What is kept is named by everything that the time
may depend on: operator, shapes, strides and types of all operands, every other argument (padding
and stride of a convolution), how it writes (which a first run finds out, where that is tried),
device, PyTorch and its settings. A file of times is only ever appended to, a line at a time, so
that a killed process leaves nothing behind that matters.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import torch

from autotm.executor.calls import Call, Capture, View
from autotm.executor.kernels import Kernel, kernel
from autotm.executor.lanes import pinned, unpin
from autotm.executor.memory import Region, given_bytes, pooled, room
from autotm.executor.outside import laid, staying
from autotm.executor.trying import tried, unchanged_random
from autotm.graph import OUTSIDE

REPEATS = 5
INFINITE = float("inf")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Measured:
    """Median seconds; bytes outside the arena while it runs (results that are copied in, and on a
    GPU the kernel's workspace; on a CPU the workspace is not known). host: seconds that a GPU's
    host takes to launch it, which others of the GPU may hide; 0 on a CPU. room: bytes of a region
    in which it can run, with all its results that are not written in place; 0 where it needs little
    or has none (`memory.py`).
    """

    seconds: float
    outside: int
    host: float = 0.0
    room: int = 0


def paced(times: Sequence[Measured]) -> list[float]:
    """Seconds by which each operator puts off the end, where all are launched one after another:
    its own, and those in which a GPU has nothing to do, as the host is behind."""
    launched = ended = 0.0
    found = []
    for each in times:
        launched += each.host
        begun = max(ended, launched)
        found.append(begun + each.seconds - ended)
        ended = begun + each.seconds
    return found


class Cache:
    """Times by key, in a JSON-lines file or in memory. A line that is none is left out."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._found: dict[str, Measured] = {}
        if path is not None and path.is_file():
            for line in path.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    entry = json.loads(line)
                    sizes = int(entry["outside"]), int(entry["room"])
                    times = float(entry["seconds"]), float(entry["host"])
                    if 0 <= min(times) <= max(times) < float("inf") and min(sizes) >= 0:
                        found = Measured(times[0], sizes[0], times[1], sizes[1])
                        self._found[entry["key"]] = found

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: str) -> Measured | None:
        return self._found.get(key)

    def put(self, key: str, measured: Measured) -> None:
        """Keep it, with one write that no other process's can be mixed with."""
        self._found[key] = measured
        if self._path is None:
            return
        entry = {"key": key, **asdict(measured)}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        target = os.open(self._path, flags, 0o644)
        try:
            os.write(target, (json.dumps(entry) + "\n").encode())
        finally:
            os.close(target)


def settings(device: torch.device) -> str:
    """What times depend on beside the operator."""
    shared = [torch.__version__, torch.are_deterministic_algorithms_enabled()]
    if device.type != "cuda":
        return f"cpu {torch.get_num_threads()} {shared}"
    dnn, blas = torch.backends.cudnn, torch.backends.cuda.matmul
    flags = [dnn.enabled, dnn.benchmark, dnn.deterministic, dnn.allow_tf32, blas.allow_tf32]
    return f"{torch.cuda.get_device_name(device)} {flags} {shared}"


def key(kernel: Kernel, device: torch.device) -> str:
    """A name for everything that the time of a call may depend on, once it has run."""
    call = kernel.call
    wanted = [_words(view) if view is not None else None for view in call.outputs]
    words = [str(call.target), _words(call.args), _words(call.kwargs), wanted, kernel.how]
    return json.dumps([*words, settings(device)])


def _words(value: Any) -> Any:
    if isinstance(value, View):
        return [str(value.dtype), value.size, value.stride]
    if isinstance(value, dict):
        return {name: _words(each) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [_words(each) for each in value]
    return repr(value)


def profile(
    capture: Capture, cache: Cache, repeats: int = REPEATS, *,
    known: Sequence[Measured] = (), limits: Sequence[float | None] = (),
) -> list[Measured]:  # fmt: skip
    """A time for each call of the capture, in order; only what the cache lacks is measured.

    Each kind of call runs at least once: what libraries keep from then on, and what is tried but
    once, is no part of an iteration. known: times of before, which calls keep that have no limit in
    `limits`; the others run under theirs first (`workspace.py`), and are told which room they need,
    also where it is infinite.
    """
    inside = {each.id for each in capture.graph.tensors if each.kind not in OUTSIDE}
    here: dict[tuple[str, float | None], Measured] = {}
    found = list(known) or [Measured(0.0, 0) for _ in capture.calls]
    for number, call in enumerate(capture.calls):
        limit = limits[number] if known else None
        if known and limit is None:
            continue
        one = kernel(call, lambda view: view.tensor in inside, capture.device.type)
        name = key(one, capture.device)
        if (name, limit) not in here:
            time = _measure(one, capture, inside, repeats, cache, limit)
            here[name, limit] = here[key(one, capture.device), limit] = time
        found[number] = here[name, limit]
    return found


def _measure(
    kernel: Kernel, capture: Capture, inside: set[int], repeats: int, cache: Cache,
    limit: float | None,
) -> Measured:  # fmt: skip
    """A call's time, or what is known of it, after a first run, which tells how it is done."""
    call, device = kernel.call, capture.device
    sizes = [each.bytes for each in capture.graph.tensors]
    wanted = [None if v is None or v.tensor not in inside else v for v in call.outputs]
    given = staying(call, {view.tensor for view in call.outputs if view is not None} - inside)

    def once(args: Any, kwargs: Any, outs: Any) -> Callable[[], None]:
        def run() -> None:
            results = kernel.run(outs, args, kwargs)
            if results is not None:
                laid(given, results, sizes)

        if limit not in (None, INFINITE):
            _narrow(kernel, outs, args, kwargs, device, int(limit))
        run()
        return run

    with (
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),
        unchanged_random(device),
    ):
        run = tried(once, call, device, capture.hosted, wanted)
        name = key(kernel, device) + ("" if limit is None else f" within {limit}")
        found = cache.get(name)
        if found is None:
            run()
            if device.type == "cuda":
                seconds, host = _cuda_seconds(run, repeats)
                needs = 0 if limit is None else pooled(run, device)
                found = Measured(seconds, _cuda_outside(run, call, inside), host, needs)
            else:
                found = Measured(seconds_of(run, repeats), kernel.outside)
            cache.put(name, found)
        return found


def _narrow(
    kernel: Kernel, outs: Any, args: Any, kwargs: Any, device: torch.device, limit: int
) -> None:
    """Run a call as the executor does, and as a plain step does, with little memory: `limit` bytes
    beside its results. A library that can do with less does so in this thread from then on, and
    a large gradient is made by parts. What fails is tried again by the caller, unlimited."""
    kernel.part(limit)
    with contextlib.suppress(RuntimeError):
        memory = room(limit + given_bytes(kernel.call), device)
        with Region(memory):
            kernel.call.target(*args, **kwargs)
        with Region(memory):
            kernel.run(outs, args, kwargs)
    kernel.forget()


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, seed: torch.Tensor, work: Callable[[], None]) -> torch.Tensor:
        ctx.work = work
        return seed.clone()

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor) -> tuple[None, None]:
        ctx.work()
        return None, None


def in_backward(device: torch.device, work: Callable[[], Found]) -> Found:
    """What `work` gives, run where autograd runs a backward on a device.

    On a GPU that is a thread with library handles of its own, and cuBLAS keeps a workspace for
    each handle.
    """
    found: list[Found] = []
    with torch.enable_grad():
        seed = torch.zeros((), device=device, requires_grad=True)
        out = _Backward.apply(seed, lambda: found.append(work()))
        out.backward()
    return found[0]


def seconds_of(run: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call, by the host's clock."""
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def _cuda_seconds(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Medians of the device's seconds, and of the host's to launch it."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in "be"] for _ in range(repeats)]
    torch.cuda._sleep(2_000_000)  # about a millisecond, so that launches wait in line
    host = []
    for begin, end in events:
        begin.record()
        start = time.perf_counter()
        run()
        host.append(time.perf_counter() - start)
        end.record()
    torch.cuda.synchronize()
    device = statistics.median(begin.elapsed_time(end) for begin, end in events) / 1e3
    return device, statistics.median(host)


def _cuda_outside(run: Callable[[], object], call: Call, inside: set[int]) -> int:
    """Bytes that a call allocates at its peak, but for results that stay outside the arena."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    kept = sum(
        prod(view.size) * view.dtype.itemsize
        for view in call.outputs
        if view is not None and view.tensor not in inside
    )
    return max(0, torch.cuda.max_memory_allocated() - before - kept)


@dataclass(frozen=True)
class Link:
    """Bytes per second to the host and back, alone; duplex: both at once lose less than a third."""

    to_host: float
    from_host: float
    duplex: bool


def link(device: torch.device, size: int = 0, repeats: int = REPEATS) -> Link:
    """Copies of `size` bytes, timed; by default of some that are typical. Raises PinnedError."""
    size = size or (1 << 26 if device.type == "cuda" else 1 << 22)
    here, there = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    if device.type != "cuda":
        rate = size / seconds_of(lambda: there.copy_(here), repeats)
        return Link(rate, rate, duplex=False)
    host, other = pinned(size), pinned(size)
    streams = [torch.cuda.Stream(device) for _ in range(2)]

    def both(ways: Sequence[bool]) -> None:
        if ways[0]:
            with torch.cuda.stream(streams[0]):
                host.copy_(here, non_blocking=True)
        if ways[1]:
            with torch.cuda.stream(streams[1]):
                there.copy_(other, non_blocking=True)
        torch.cuda.synchronize(device)

    try:
        both((True, True))
        out, back, at_once = (
            seconds_of(lambda ways=ways: both(ways), repeats)  # type: ignore[misc]
            for ways in ((True, False), (False, True), (True, True))
        )
    finally:
        unpin(host)
        unpin(other)
    return Link(size / out, size / back, duplex=at_once < 1.5 * max(out, back))

"""Times launches, or graphs of several, by events around them, with nothing of the host inside.

A sample's event pair can only measure the device if the launch behind the first event is already
queued when the device gets there; else the pair measures the host. So a round of launches is
queued behind a gate: a kernel that waits for a word in host memory. The host queues everything,
opens the gate, and waits for the round's end. What one empty launch measures this way is recorded
beside the results (`event_overhead`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from dlrm_inference.cuda import launch
from dlrm_inference.cuda.compile import compile_source

PATIENCE_NS = 2_000_000_000  # that the gate waits for the host
_ORDER_SEED = 7


class TimingError(RuntimeError):
    """A round could not be timed."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is timed, as one launch (or graph) per rotation. `calls[i]` queues that on input set i.

    `before[i]`, if given, is queued ahead of it and outside its event pair (L2 pinning);
    `outside(i)`, if given, runs on the host while the device is idle; such a launch is queued
    alone, not among the others of its round.
    """

    calls: Sequence[Callable[[], object]]
    before: Sequence[Callable[[], object]] = ()
    outside: Callable[[int], object] | None = None


class Captured:
    """A CUDA graph of `calls`, one after the other, all of them `turns` times: a call replays it.

    The calls stay alive with it. What they return is in `results`, each in memory of its own, and
    every turn of every replay writes it anew.
    """

    def __init__(self, calls: Sequence[Callable[[], object]], turns: int = 1) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # code and libraries are loaded before the capture
            for call in (*calls, *calls):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        self.results: list[object] = []
        self._calls = calls
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for _ in range(turns):
                self.results.clear()  # a turn writes where the one before it wrote
                self.results.extend([call() for call in calls])

    def __call__(self) -> None:
        self._graph.replay()


class Gate:
    """Holds the current stream until `open`."""

    def __init__(self, device: torch.device) -> None:
        self._kernel = tool("gate", device)
        with torch.cuda.device(device):
            self._words = torch.zeros(2, dtype=torch.int32, pin_memory=True)  # door, late
        address = self._words.data_ptr()
        self._door = ctypes.c_int.from_address(address)
        self._late = ctypes.c_int.from_address(address + 4)
        self._arguments = launch.Values(
            (
                ctypes.c_void_p(address),
                ctypes.c_void_p(address + 4),
                ctypes.c_ulonglong(PATIENCE_NS),
            )
        )

    def close(self) -> None:
        """Queue the gate; what is queued after it waits. The stream must be idle."""
        self._door.value = 0
        self._late.value = 0
        self._kernel.launch((1, 1, 1), (1, 1, 1), self._arguments)

    def open(self) -> None:
        """Let the stream go on. Raises TimingError if the gate had given up waiting."""
        self._door.value = 1
        if self._late.value:
            raise TimingError("the host took over 2 s to queue a round; fix: use a quieter machine")


def interleave(
    targets: Mapping[str, Target],
    samples: int,
    warmup: int,
    device: torch.device,
    on_round: Callable[[int], object] = lambda _: None,
    *,
    gated: bool = True,
) -> dict[str, list[float]]:
    """Return `samples` times in us of every target, after `warmup` rounds that are not kept.

    A round holds one launch of every target, in an order drawn anew, so that drift of clocks and
    what a neighbour left in the caches hit all alike. Input sets rotate from launch to launch
    across targets, so that no launch finds the rows of the one before it. With `gated` false
    every launch starts on an idle device and its time includes the host's.
    """
    gate = Gate(device)
    kept: dict[str, list[float]] = {name: [] for name in targets}
    order = np.random.default_rng(_ORDER_SEED)
    names = list(targets)
    events = {name: _event_pair() for name in names}
    number = 0
    for round_number in range(-warmup, samples):
        # The first round loads code and fills PyTorch's memory pool, which a gate would block.
        closed = gated and round_number > -warmup
        chosen: list[tuple[str, int]] = []
        for name in order.permutation(names).tolist():
            chosen.append((name, number % len(targets[name].calls)))
            number += 1
        together = [one for one in chosen if targets[one[0]].outside is None]
        alone = [[one] for one in chosen if targets[one[0]].outside is not None]
        parts = [together, *alone] if gated else [[one] for one in chosen]
        for part in parts:
            _queue(part, targets, events, gate if closed else None, device)
        if round_number >= 0:
            for name, (start, end) in events.items():
                kept[name].append(start.elapsed_time(end) * 1000.0)
        on_round(round_number)
    return kept


def _queue(
    part: Sequence[tuple[str, int]],
    targets: Mapping[str, Target],
    events: Mapping[str, tuple[torch.cuda.Event, torch.cuda.Event]],
    gate: Gate | None,
    device: torch.device,
) -> None:
    """Queue the launches of `part`, let them run, and wait for their end."""
    torch.cuda.synchronize(device)
    for name, place in part:
        outside = targets[name].outside
        if outside is not None:
            outside(place)
    if gate is not None:
        gate.close()
    try:
        for name, place in part:
            target, (start, end) = targets[name], events[name]
            if target.before:
                target.before[place]()
            start.record()
            target.calls[place]()
            end.record()
    finally:
        if gate is not None:
            gate.open()
    torch.cuda.synchronize(device)


def copy_bandwidth(
    device: torch.device, samples: int = 20, gib: float = 2.0
) -> dict[str, list[float]]:
    """Return rates in GB/s (bytes read plus bytes written) of a plain copy of `gib` GiB.

    By a kernel of ours and by PyTorch's own copy: the limit of the memory is what the faster shows.
    """
    count = int(gib * 2**30) // 16
    source = torch.rand(count * 4, device=device)
    target = torch.empty_like(source)
    arguments = launch.Values(
        (
            ctypes.c_void_p(source.data_ptr()),
            ctypes.c_void_p(target.data_ptr()),
            ctypes.c_ulonglong(count),
        ),
        (source, target),
    )
    blocks = 8 * torch.cuda.get_device_properties(device).multi_processor_count
    kernel = tool("copy", device)
    kernel.launch((blocks, 1, 1), (512, 1, 1), arguments)
    if not torch.equal(source, target):
        raise TimingError("the copy kernel did not copy")
    calls: dict[str, Callable[[], object]] = {
        "kernel": lambda: kernel.launch((blocks, 1, 1), (512, 1, 1), arguments),
        "library": lambda: target.copy_(source),
    }
    targets = {name: Target(calls=[call]) for name, call in calls.items()}
    times = interleave(targets, samples, 4, device)
    return {name: [32 * count / time / 1000.0 for time in kept] for name, kept in times.items()}


def empty_launch(device: torch.device) -> Target:
    """Return a launch of no work, as a target: what an event pair measures around nothing."""
    kernel, arguments = tool("nothing", device), launch.Values(())
    return Target(calls=[lambda: kernel.launch((1, 1, 1), (32, 1, 1), arguments)])


@cache
def tool(name: str, device: torch.device) -> launch.Kernel:
    """Return a kernel of kernels/tools.cu, loaded for `device`."""
    return launch.Kernel(compile_source("tools", launch.arch_of(device), {}), name, device)


def _event_pair() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

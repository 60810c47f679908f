"""A host with slow memory, emulated by delays: real kernels and copies, both tiers in DRAM.

A kernel with operands in slow memory ends no earlier than that memory would let it: it spins until
max(its time in DRAM, bytes read / read rate + bytes written / write rate) has passed. Copies
between the tiers are copies, and end no earlier than their rates allow. All times are emulated.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch

from autotm.executor.calls import Capture, View
from autotm.executor.capture import capture
from autotm.executor.kernels import Kernel, kernel
from autotm.executor.profiling import Cache, profile
from autotm.executor.settling import settled
from autotm.executor.trying import operands
from autotm.graph import ENDS, Graph
from autotm.planner.formulations import FREE, Placement
from autotm.sim.tiers import Host

LEAST_RUNS, LEAST_SECONDS = 3, 5.0  # of the paper's measurements


@dataclass(frozen=True)
class Loaded:
    """A kernel with its operands."""

    kernel: Kernel
    outs: list[torch.Tensor | None]
    args: tuple[object, ...]
    kwargs: dict[str, object]

    def run(self) -> None:
        """Run it once; what is not written in place is dropped."""
        self.kernel.run(self.outs, self.args, self.kwargs)


class Emulated:
    """A module's training iteration on such a host. Raises CaptureError."""

    def __init__(
        self, module: torch.nn.Module, sample: tuple[torch.Tensor, ...], host: Host
    ) -> None:
        self.host = host
        began = time.perf_counter()
        found = settled(capture(module, sample, torch.nn.functional.cross_entropy))
        seconds = [each.seconds for each in profile(found, Cache())]
        self.profile_seconds = time.perf_counter() - began  # capturing counted in
        ops = (
            replace(op, seconds=took, placed=_placed(found.graph, op.index, took, host))
            for op, took in zip(found.graph.ops, seconds, strict=True)
        )
        self.graph = replace(found.graph, ops=tuple(ops))
        made: dict[int, torch.Tensor] = {}
        self._calls = [_loaded(found, index, made) for index in range(len(found.calls))]
        most = max(each.bytes for each in self.graph.tensors if each.kind in FREE)
        self._here, self._there = (torch.zeros(most, dtype=torch.uint8) for _ in range(2))

    def iteration(self, placement: Placement | None = None) -> float:
        """Seconds of one iteration; without a placement everything is in fast memory."""
        moves = [] if placement is None else list(_moves(placement))
        before: dict[int, list[tuple[int, float]]] = {}
        after: dict[int, list[tuple[int, float]]] = {}
        for tensor, at, out in moves:
            size = self.graph.tensors[tensor].bytes
            rate = self.host.copy_out if out else self.host.copy_in
            (after if out else before).setdefault(at, []).append((size, size / rate))
        began = time.perf_counter()
        with torch.no_grad():
            for op, call in zip(self.graph.ops, self._calls, strict=True):
                for size, least in before.get(op.index, ()):
                    self._copy(size, least)
                start = time.perf_counter()
                call.run()
                if placement is not None:
                    mask = placement.slow(self.graph, op.index)
                    _spin(start + _slow_seconds(self.graph, op.index, mask, self.host))
                for size, least in after.get(op.index, ()):
                    self._copy(size, least)
        return time.perf_counter() - began

    def measure(self, placement: Placement | None = None) -> list[float]:
        """Iterations until there are three and five seconds of them, after one that warms up."""
        self.iteration(placement)
        found: list[float] = []
        while len(found) < LEAST_RUNS or sum(found) < LEAST_SECONDS:
            found.append(self.iteration(placement))
        return found

    def _copy(self, size: int, least: float) -> None:
        start = time.perf_counter()
        self._there[:size].copy_(self._here[:size])
        _spin(start + least)


def _spin(until: float) -> None:
    while time.perf_counter() < until:
        pass


def _loaded(found: Capture, index: int, made: dict[int, torch.Tensor]) -> Loaded:
    """Call `index` with tensors that all calls share, as `profile` runs it."""
    call = found.calls[index]
    inside = {each.id for each in found.graph.tensors if each.kind not in ENDS}

    def tensor(view: View) -> torch.Tensor:
        return operands(view, found.device, made, found.hosted)

    return Loaded(
        kernel(call, lambda view: view.tensor in inside, found.device.type),
        [tensor(v) if v is not None and v.tensor in inside else None for v in call.outputs],
        operands(call.args, found.device, made, found.hosted),
        operands(call.kwargs, found.device, made, found.hosted),
    )


def _slow_seconds(graph: Graph, index: int, mask: int, host: Host) -> float:
    op = graph.ops[index]
    slow = [t for bit, t in enumerate(op.operands) if mask >> bit & 1]
    read = sum(graph.tensors[t].bytes for t in slow if t in op.inputs)
    written = sum(graph.tensors[t].bytes for t in slow if t in op.outputs)
    return read / host.slow_read + written / host.slow_write


def _placed(graph: Graph, index: int, took: float, host: Host) -> tuple[float, ...]:
    count = 2 ** len(graph.ops[index].operands)
    return tuple(max(took, _slow_seconds(graph, index, mask, host)) for mask in range(count))


def _moves(placement: Placement) -> list[tuple[int, int, bool]]:
    """Tensor, op, and whether it is copied out after that op, else back before it."""
    found = []
    for tensor, fast in placement.fast.items():
        users, stays, written = placement.users[tensor], placement.stays[tensor], not fast[0]
        for j in range(1, len(fast)):
            if not stays[j - 1] and not written:
                found.append((tensor, users[j - 1], True))
                written = True
            if fast[j] and not stays[j - 1]:
                found.append((tensor, users[j], False))
    return found

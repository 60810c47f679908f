"""Replays advice: before each outermost operator, prefetches what it will need.

Policies are the paper's: `none`, `object` (whole managed allocations), `tensor` (blocks). The
program must do the same as when it was profiled: operators, objects and tensors are counted again.

    with managed_pool() as memory, Replay(memory, advice, "tensor") as replay:
        model = Model().cuda()
        with replay.active():
            model(batch)

The profiling run is the same program with `advice=None`: `active` marks the region that the tool
uvm_advisor looks for. Nothing waits for a prefetch, and nothing is evicted or advised.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from accel_trace.region import region
from accel_trace.uvm.advice import REGION, THRESHOLD, Advice
from accel_trace.uvm.runtime import Runtime, driver_prefetch

POLICIES = ("none", "object", "tensor")
STREAMS = 3


class ReplayError(RuntimeError):
    """The replay cannot run; one sentence with what helps."""


class Pieces(Protocol):
    """Managed allocations by number (uvm/managed.py, Allocator)."""

    @property
    def inside_address(self) -> int: ...
    def pieces(self) -> int: ...
    def any_piece(self, number: int) -> tuple[int, int, bool] | None: ...


class Hooks(Protocol):
    """Operators and tensors by number (handlers/torch_native.py, Hooks)."""

    def operators(self, *, backward: bool = True) -> None: ...
    def allocator(self) -> bool: ...
    def listen(self, call: Any) -> None: ...
    def number(self, inside: int | None) -> None: ...
    def piece(self, number: int) -> tuple[int, int] | None: ...


@dataclass
class ReplayReport:
    """What a replay did. `asked_bytes` counts every call's whole range, moved or not.

    `gone` are pieces that were no longer there, `strangers` those of another size than in the
    advice, `mismatches` operators of another name: with any of these, the program differs.
    """

    policy: str
    driver_prefetch: int | None
    groups: int = 0
    prefetches: int = 0
    asked_bytes: int = 0
    gone: int = 0
    strangers: int = 0
    mismatches: int = 0


class Replay:
    """Counts pieces from `with` on, and prefetches in `active`. Raises ReplayError."""

    def __init__(
        self,
        memory: Pieces,
        advice: Advice | None = None,
        policy: str = "none",
        *,
        device: int = 0,
        hooks: Hooks | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        if policy not in POLICIES:
            raise ReplayError(f"prefetch policy {policy!r}: choose of {', '.join(POLICIES)}")
        if policy != "none" and advice is None:
            raise ReplayError(f"policy {policy} needs advice; record with the tool uvm_advisor")
        self.report = ReplayReport(policy, driver_prefetch())
        self._memory = memory
        self._advice = advice
        self._device = device
        self._hooks = hooks
        self._runtime = runtime
        self._streams: list[Any] = []
        self._objects: list[int] = []  # numbers of the large objects among all pieces
        self._looked = 0
        self._failed: Exception | None = None

    def __enter__(self) -> Replay:
        if self._hooks is None:
            self._hooks = _loaded_hooks()
        self._hooks.operators()
        if not self._hooks.allocator():
            raise ReplayError("CUDA has not started; enter managed_pool() first")
        self._hooks.number(self._memory.inside_address)
        if self.report.policy != "none":
            self._runtime = self._runtime or Runtime()
            self._streams = [self._runtime.stream() for _ in range(STREAMS)]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._hooks is not None
        self._hooks.number(None)
        while self._streams and self._runtime is not None:
            self._runtime.destroy(self._streams.pop())

    @contextmanager
    def active(self) -> Iterator[ReplayReport]:
        """Count operators from here, and prefetch for them; the region of the profiling run."""
        assert self._hooks is not None
        name = self._advice.region if self._advice is not None else REGION
        self._hooks.listen(self._operator)
        try:
            with region(name):
                yield self.report
        finally:
            self._hooks.listen(None)
        if self._failed is not None:
            raise ReplayError(f"prefetching stopped: {self._failed}") from self._failed

    def _operator(self, start: int, name: bytes, index: int) -> None:
        """Called at the outermost operators, from C, on their thread."""
        if not start or self._failed is not None:
            return
        self.report.groups += 1
        if self._advice is None:
            return
        try:
            groups = self._advice.groups
            if index >= len(groups) or groups[index].operator != name.decode("utf-8", "replace"):
                self.report.mismatches += 1
            else:
                self._fetch(index)
        except Exception as error:  # noqa: BLE001  # nothing may be raised into an operator
            self._failed = error

    def _fetch(self, index: int) -> None:
        assert self._advice is not None
        group = self._advice.groups[index]
        if self.report.policy == "object":
            for number in group.objects:
                self._prefetch(self._object(number), self._advice.objects[number])
        elif self.report.policy == "tensor":
            assert self._hooks is not None
            for number in group.tensors:
                self._prefetch(self._hooks.piece(number), self._advice.tensors[number])

    def _prefetch(self, piece: tuple[int, int] | None, size: int) -> None:
        if piece is None:
            self.report.gone += 1
        elif piece[1] != size:
            self.report.strangers += 1
        else:
            assert self._runtime is not None
            stream = self._streams[self.report.prefetches % STREAMS]
            self._runtime.prefetch(*piece, self._device, stream)
            self.report.prefetches += 1
            self.report.asked_bytes += size

    def _object(self, number: int) -> tuple[int, int] | None:
        """The large object of a number; small managed allocations do not count."""
        threshold = self._advice.threshold if self._advice is not None else THRESHOLD
        while self._looked < self._memory.pieces():
            found = self._memory.any_piece(self._looked)
            if found is not None and found[1] > threshold:
                self._objects.append(self._looked)
            self._looked += 1
        if number >= len(self._objects):
            return None
        found = self._memory.any_piece(self._objects[number])
        return found[:2] if found is not None and found[2] else None


def _loaded_hooks() -> Hooks:
    from accel_trace.builds import BuildError
    from accel_trace.handlers import torch_native

    try:
        return torch_native.load(importlib.import_module("torch"))
    except BuildError as error:
        raise ReplayError(f"the replay counts operators by native hooks: {error}") from error

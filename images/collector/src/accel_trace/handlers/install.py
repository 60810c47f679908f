"""Installs the handlers that ACCEL_TRACE_HANDLERS names, in the target, at two moments.

At the start of Python: `cupti`, `stacks`. When PyTorch has been imported: `torch` (tensors),
`operators`, and, if named, `memory_history`, `storages`, `dispatch` (also by ACCEL_TRACE_ARGS=1).
`sanitizer` names the
injection library, which is not Python's to install. What fails becomes a note; the target goes on.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from accel_trace.handlers import library
from accel_trace.handlers.sink import log_sink, note

if TYPE_CHECKING:
    from accel_trace.handlers.torch_native import Hooks

Installer = Callable[[frozenset[str]], None]


def names() -> frozenset[str]:
    """The handlers that are asked for."""
    given = os.environ.get("ACCEL_TRACE_HANDLERS", "")
    return frozenset(name.strip() for name in given.split(",") if name.strip())


def at_start() -> None:
    """Install what needs no framework; called by sitecustomize."""
    _install({"cupti": _cupti, "stacks": _stacks})


def after_torch() -> None:
    """Install what needs PyTorch; called when it has been imported."""
    _install(
        {
            "torch": _tensors,
            "operators": _operators,
            "memory_history": _memory_history,
            "storages": _storages,
            "dispatch": _dispatch,
            "stacks": _stacks,
        }
    )


def _install(table: dict[str, Installer]) -> None:
    wanted = names()
    if os.environ.get("ACCEL_TRACE_ARGS") == "1":
        wanted |= {"dispatch"}
    for name, install in table.items():
        if name in wanted:
            try:
                install(wanted)
            except Exception as error:  # noqa: BLE001  # the target must run as without us
                note(2, f"handler {name} is off: {error}")


def _torch() -> ModuleType:
    return sys.modules["torch"]


def _native(wanted: frozenset[str]) -> bool:
    """Whether the injection library is, or will be, there to report to."""
    return library.find() is not None or "sanitizer" in wanted


def has_gpu() -> bool:
    """Whether the machine has an NVIDIA GPU; the driver is not started to find out."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _tensors(wanted: frozenset[str]) -> None:
    if not has_gpu() or not _torch().version.cuda:
        _storages(wanted)
        return
    if not _native(wanted):
        _memory_history(wanted)
        return
    from accel_trace.builds import BuildError
    from accel_trace.handlers import torch_native

    try:
        hooks = torch_native.load(_torch())
    except BuildError as error:
        note(2, f"tensors come from the allocator's history, without their order to launches, "
                f"so that working sets are those of whole objects: {error}")  # fmt: skip
        _memory_history(wanted)
        return

    def attach() -> None:
        try:
            if not hooks.allocator():
                note(2, "tensors are not followed: PyTorch had no allocator for GPUs yet")
        except RuntimeError as error:
            note(2, f"tensors cannot be followed with this allocator: {error}")
        _check_at_exit(hooks)

    torch_native.when_cuda_starts(_torch(), attach)


def _check_at_exit(hooks: Hooks) -> None:
    """Compare the sizes that were followed with PyTorch's own totals, when the process ends."""

    def check() -> None:
        torch = _torch()
        for device in range(torch.cuda.device_count()):
            seen = hooks.totals(device)
            if seen is None:
                continue
            own = torch.cuda.memory_stats(device).get("active_bytes.all.current", 0)
            if seen.surprises or own != seen.allocated:
                note(2, f"sizes of tensors on GPU {device} are estimates: {seen.surprises} entries "
                        f"did not fit, {seen.allocated} bytes counted where PyTorch counts {own}; "
                        "an allocator setting is not followed")  # fmt: skip

    def guarded() -> None:
        try:
            check()
        except Exception as error:  # noqa: BLE001  # CUDA may be gone by now
            note(1, f"tensors were not checked against PyTorch's totals: {error}")

    atexit.register(guarded)


def _operators(wanted: frozenset[str]) -> None:
    if not _native(wanted):
        if "storages" in wanted or ("torch" in wanted and not has_gpu()):
            return  # the tracker of storages reports operators itself
        note(2, "operators are reported only with the sanitizer handler or with storages")
        return
    from accel_trace.handlers import torch_native

    torch_native.load(_torch()).operators()


def _memory_history(_: frozenset[str]) -> None:
    from accel_trace.handlers import memory_history, torch_native

    target = log_sink("" if library.find() is None else "history")
    if target is None:
        return
    torch = _torch()
    torch_native.when_cuda_starts(torch, lambda: memory_history.record(torch, target))


_on: set[str] = set()


def _storages(wanted: frozenset[str]) -> None:
    if "storages" in _on:
        return
    _on.add("storages")
    from accel_trace.handlers.sink import sink
    from accel_trace.handlers.storages import StorageTracker

    target = sink()
    if target is not None:
        hooked = "operators" in wanted and _native(wanted)
        # For the whole run of the program: never left.
        StorageTracker(target, operators=not hooked).__enter__()


def _dispatch(_: frozenset[str]) -> None:
    from accel_trace.handlers.dispatch import ArgumentBytes

    ArgumentBytes.for_process(os.environ["ACCEL_TRACE_OUT"]).__enter__()


def _cupti(wanted: frozenset[str]) -> None:
    from accel_trace.handlers import cupti

    if "sanitizer" in wanted:
        raise RuntimeError(cupti.ONE_CLIENT)
    target = log_sink()
    if target is not None:
        cupti.start(target, managed=os.environ.get("ACCEL_TRACE_MANAGED") == "1")


def _stacks(_: frozenset[str]) -> None:
    if "stacks" in _on:
        return
    found = library.find()
    if found is None:
        return  # it may come with CUDA; tried again when PyTorch has been imported
    from accel_trace.handlers import stacks

    stacks.install(found)
    _on.add("stacks")

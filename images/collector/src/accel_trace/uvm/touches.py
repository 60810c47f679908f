"""What CPU and GPU did to managed memory in a recorded process, in one order of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accel_trace.contexts.symbols import plain
from accel_trace.cpu import recorded as cpu
from accel_trace.events import MEMORY_FLAGS, Alloc, Free, Launch, Memcpy, Memset, Stack, Sync
from accel_trace.session import Process
from accel_trace.uvm.sharing import CPU, GPU, Touches
from accel_trace.values import raw
from accel_trace.values.accesses import WRITE
from accel_trace.values.recorded import calls

_WORDS = {cpu.READ: "CPU read", cpu.WRITE: "CPU write", cpu.READ | cpu.WRITE: "CPU page fault"}
_MANAGED = MEMORY_FLAGS["managed"]
FOREVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Managed:
    """A managed allocation: its bytes, where the program made it, and its life in ns."""

    address: int
    size: int
    name: str
    born: int = 0
    freed: int = FOREVER

    def lived(self, times: NDArray[np.int64]) -> bool:
        """Whether at one of these times it was there."""
        return bool(((times >= self.born) & (times < self.freed)).any())


@dataclass(frozen=True, eq=False)
class Timeline:
    """All accesses to managed memory; `paths` are the calling contexts of Touches.context.

    `bytes_known` is false where the CPU's accesses tell their pages alone.
    """

    touches: Touches
    paths: tuple[tuple[str, ...], ...]
    objects: tuple[Managed, ...]
    bytes_known: bool = True
    gaps: tuple[str, ...] = ()


@dataclass
class _Calls:
    """What the log says of a process."""

    objects: list[Managed] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)  # times at which a window ends, ns
    launches: dict[int, tuple[int, str]] = field(default_factory=dict)  # time and name
    stacks: dict[int, tuple[str, ...]] = field(default_factory=dict)
    copies: list[tuple[int, int, int, bool, str]] = field(default_factory=list)
    waited: int = 0  # copies that end a window, of which the recorder is not told


def timeline(process: Process, files: Mapping[str, Path] | None = None) -> Timeline:
    """The accesses of a process. Raises ValuesError and CpuError for records that are damaged.

    `files` are paths of programs by their names, to find names of functions in.
    """
    folder = process.readers[0].path.parent
    seen = cpu.read(folder, process.pid) if cpu.has_cpu(folder, process.pid) else None
    paths_of = dict(files or {})
    for stack in seen.stacks if seen else ():
        for frame in stack:
            if frame.startswith("native: "):
                path = Path(frame.rpartition(" ")[2])
                paths_of.setdefault(path.name, path)
    found = _calls(process)
    contexts: dict[tuple[str, ...], int] = {}
    parts = [_gpu(folder, process, found, paths_of, contexts), _copies(found, contexts)]
    gaps = []
    if seen is None:
        gaps.append("accesses of the CPU were not recorded")
    else:
        parts.append(_cpu(seen, paths_of, contexts))
        gaps += seen.gaps()
        if found.waited and seen.facts.get("mode") == "pages":
            gaps.append(
                f"{found.waited} copies that the program waits for end windows and close no page: "
                "accesses of the CPU after them, to pages that it had, are missing; take cpu=bytes"
            )
    columns = {
        name: np.concatenate([part[name] for part in parts])
        for name in ("side", "step", "address", "size", "write", "context")
    }
    inside = _inside(columns["address"], columns["size"], found.objects)
    columns = {name: values[inside] for name, values in columns.items()}
    order = np.argsort(columns["step"], kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    waits = np.sort(np.array(found.waits, np.int64))
    touches = Touches(window=np.searchsorted(waits, columns["step"], side="right"), **columns)
    known = seen is None or seen.facts.get("mode") not in ("pages", "faults")
    return Timeline(touches, tuple(contexts), tuple(found.objects), known, tuple(gaps))


def _calls(process: Process) -> _Calls:
    found = _Calls()
    names: dict[str, int] = {}
    live: dict[int, int] = {}  # address to its place among the objects
    busy = False  # whether the GPU may have work
    for event, context, _ in calls(process, Sync, Stack):
        if isinstance(event, Alloc) and event.flags & _MANAGED:
            names[context] = number = names.get(context, 0) + 1
            name = context if number == 1 else f"{context} #{number}"
            live[event.address] = len(found.objects)
            found.objects.append(Managed(event.address, event.size, name, event.ns))
        elif isinstance(event, Free) and event.address in live:
            place = live.pop(event.address)
            found.objects[place] = replace(found.objects[place], freed=event.ns)
        elif isinstance(event, Launch):
            found.launches[event.launch] = event.ns, context
            busy = True
        elif isinstance(event, Stack):
            found.stacks[event.launch] = tuple(reversed(event.text.splitlines()))
        elif isinstance(event, Sync) and busy:  # with nothing to wait for it ends nothing
            found.waits.append(event.ns)
            busy = False
        elif isinstance(event, Memset):
            fill = f"fill: {context}"
            found.copies.append((event.ns, event.address, event.size, True, fill))
            busy = True
        elif isinstance(event, Memcpy):
            for address, write in ((event.source, False), (event.destination, True)):
                found.copies.append((event.ns, address, event.size, write, f"copy: {context}"))
            busy = bool(event.asynchronous)
            if not busy:
                found.waits.append(event.ns + 1)
                found.waited += 1
    return found


_Columns = dict[str, NDArray[np.generic]]


def _gpu(
    folder: Path, process: Process, found: _Calls, files: Mapping[str, Path],
    contexts: dict[tuple[str, ...], int],
) -> _Columns:  # fmt: skip
    if not raw.recorded(folder, process.pid):
        return _columns(GPU, 0)
    accesses, _ = raw.read(folder, process.pid)
    inside = _inside(
        accesses.address.astype(np.int64), accesses.size.astype(np.int64), found.objects
    ) & np.isin(accesses.launch, list(found.launches))
    accesses = accesses.take(inside)
    write = (accesses.flags & WRITE) != 0
    keys, row = np.unique(
        np.stack([accesses.launch, accesses.pc, write.astype(np.uint32)]), axis=1,
        return_inverse=True,
    )  # fmt: skip
    context, when = [], []
    for launch, pc, wrote in keys.T:
        ns, name = found.launches[int(launch)]
        stack = tuple(plain(frame, dict(files)) for frame in found.stacks.get(int(launch), ()))
        site = accesses.sites[int(pc)] if accesses.sites else ""
        path = (*stack, f"kernel: {name}", f"{site} GPU {'write' if wrote else 'read'}".strip())
        context.append(contexts.setdefault(path, len(contexts)))
        when.append(ns)
    row = row.ravel()
    return {
        "side": np.full(len(accesses), GPU, np.uint8), "step": np.array(when, np.int64)[row],
        "address": accesses.address.astype(np.int64), "size": accesses.size.astype(np.int64),
        "write": write, "context": np.array(context, np.int64)[row],
    }  # fmt: skip


def _copies(found: _Calls, contexts: dict[tuple[str, ...], int]) -> _Columns:
    """Copies and fills of the driver, taken as the GPU's."""
    columns = _columns(GPU, len(found.copies))
    for at, (ns, address, size, write, place) in enumerate(found.copies):
        context = contexts.setdefault((place,), len(contexts))
        for name, value in (
            ("step", ns), ("address", address), ("size", size), ("write", write),
            ("context", context),
        ):  # fmt: skip
            columns[name][at] = value
    return columns


def _cpu(
    seen: cpu.CpuAccesses, files: Mapping[str, Path], contexts: dict[tuple[str, ...], int]
) -> _Columns:
    columns = _columns(CPU, len(seen))
    keys, row = np.unique(np.stack([seen.stack, seen.flags]), axis=1, return_inverse=True)
    numbers = []
    for stack, flags in keys.T:
        frames = tuple(plain(frame, dict(files)) for frame in seen.stacks[int(stack)])
        path = (*frames, _WORDS[int(flags)])
        numbers.append(contexts.setdefault(path, len(contexts)))
    return columns | {
        "step": seen.ns.astype(np.int64), "address": seen.address.astype(np.int64),
        "size": np.maximum(seen.size, 1).astype(np.int64), "write": seen.writes,
        "context": np.array(numbers, np.int64)[row.ravel()],
    }  # fmt: skip


def _columns(side: int, length: int) -> _Columns:
    return {
        "side": np.full(length, side, np.uint8), "step": np.zeros(length, np.int64),
        "address": np.zeros(length, np.int64), "size": np.zeros(length, np.int64),
        "write": np.zeros(length, bool), "context": np.zeros(length, np.int64),
    }  # fmt: skip


def _inside(
    address: NDArray[np.int64], size: NDArray[np.int64], objects: list[Managed]
) -> NDArray[np.bool_]:
    """Whether accesses begin on a page that managed memory has, or reach into one."""
    if not objects:
        return np.zeros(len(address), bool)
    pairs = sorted((o.address // 4096 * 4096, -(-(o.address + o.size) // 4096) * 4096)
                   for o in objects)  # fmt: skip
    starts = np.array([start for start, _ in pairs])
    ends = np.maximum.accumulate(np.array([end for _, end in pairs]))
    at = np.searchsorted(starts, address + np.maximum(size, 1) - 1, side="right") - 1
    found: NDArray[np.bool_] = (at >= 0) & (address < ends[np.maximum(at, 0)])
    return found

"""Tensors from PyTorch's own record of its CUDA allocator: no native code, but no exact order.

`torch.cuda.memory._record_memory_history` is the recorder behind PyTorch's memory viewer. What it
kept is read at the end of the process and written as TensorAlloc and TensorFree, in the order of
its clock (us), with running totals per device. Launches are not in that clock, so that working
sets are those of whole objects. A TensorFree stands at `free_completed`, as in torch_hooks.cc.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from accel_trace.events import Dropped, Event, Fact, Note, TensorAlloc, TensorFree
from accel_trace.handlers.blocks import Blocks
from accel_trace.handlers.sink import LogSink

MAX_ENTRIES = 5_000_000  # per device; some 200 bytes each without stacks
_SEGMENT = {"segment_alloc": False, "segment_map": True}
_GONE = ("segment_free", "segment_unmap")


@dataclass(frozen=True)
class _Entry:
    us: int
    action: str
    address: int
    size: int
    device: int
    stream: int


def record(torch: ModuleType, sink: LogSink, max_entries: int = MAX_ENTRIES) -> None:
    """Start recording; at the end of the process write the events to `sink`. Never raises."""
    try:
        torch.cuda.memory._record_memory_history(
            enabled="all", context=None, stacks="python", max_entries=max_entries
        )
    except Exception as error:  # noqa: BLE001  # the target goes on without
        sink.note(2, f"PyTorch does not record its allocator's history: {error}")
        return

    def finish() -> None:
        shift = time.monotonic_ns() - time.time_ns()
        for event in parse(torch.cuda.memory._snapshot(), max_entries, shift):
            sink.write(event)

    sink.before_close(finish)


def parse(
    snapshot: Mapping[str, Any], max_entries: int = MAX_ENTRIES, shift_ns: int = 0
) -> Iterator[Event]:
    """Events of a snapshot of the documented shape, in the order of time over all devices.

    `shift_ns` is added to its Unix times. Where a device's record is full (`max_entries`), its
    first entries are lost: a Dropped counts the blocks whose begin is missing (a lower bound), and
    totals are right all the same, counted back from the blocks that are there at the end.
    """
    segments = snapshot.get("segments", ())
    traces = snapshot.get("device_traces", ())
    yield Fact(name="tensors", value="allocator history, bytes of blocks; order by time only")
    entries = [list(_entries(trace, device, max_entries)) for device, trace in enumerate(traces)]
    trackers: dict[int, Blocks] = {}
    for device, own in enumerate(entries):
        trackers[device] = blocks = Blocks()
        lost = _start(blocks, own, [s for s in segments if _device(s) == device])
        if len(traces[device]) >= max_entries:
            yield Dropped(what=f"allocator history of GPU {device}", count=max(lost, 1))
    for entry in sorted((e for own in entries for e in own), key=lambda e: e.us):
        event = _event(entry, trackers[entry.device], entry.us * 1000 + shift_ns)
        if event is not None:
            yield event
    for device, blocks in trackers.items():
        yield from _check(device, blocks, [s for s in segments if _device(s) == device])


def _entries(trace: Sequence[Mapping[str, Any]], device: int, most: int) -> Iterator[_Entry]:
    for raw in trace[-most:]:
        yield _Entry(
            us=int(raw.get("time_us", 0)),
            action=str(raw.get("action", "")),
            address=int(raw.get("addr", 0)),
            size=int(raw.get("size", 0)),
            device=device,
            stream=int(raw.get("stream", 0)),
        )


def _device(segment: Mapping[str, Any]) -> int:
    return int(segment.get("device", 0))


def _blocks(segment: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Address and bytes of the blocks of a segment that are not free."""
    address = int(segment["address"])
    for block in segment.get("blocks", ()):
        here = int(block.get("address", address))
        if block["state"] != "inactive":
            yield here, int(block["size"])
        address = here + int(block["size"])


def _start(blocks: Blocks, own: Sequence[_Entry], segments: Sequence[Mapping[str, Any]]) -> int:
    """Put in what was there before the first entry; returns how many blocks that is."""
    began: set[int] = set()
    early: dict[int, int] = {}  # segments that the trace gives back without having brought them
    tensors: dict[int, int] = {}
    brought: set[int] = set()
    for entry in own:
        if entry.action in _SEGMENT:
            brought.add(entry.address)
        elif entry.action in _GONE and entry.address not in brought:
            early.setdefault(entry.address, entry.size)
        elif entry.action == "alloc":
            began.add(entry.address)
        elif entry.action == "free_completed" and entry.address not in began:
            tensors.setdefault(entry.address, entry.size)
    for segment in segments:
        if int(segment["address"]) not in brought:
            early[int(segment["address"])] = int(segment["total_size"])
        for address, size in _blocks(segment):
            if address not in began:
                tensors[address] = size
    for address, size in early.items():
        blocks.add(address, size)
    for address, size in tensors.items():
        if not blocks.live.get(address):
            blocks.take(address, size)
    blocks.surprises = 0
    return len(tensors)


def _event(entry: _Entry, blocks: Blocks, ns: int) -> Event | None:
    if entry.action in _SEGMENT:
        blocks.add(entry.address, entry.size, mapped=_SEGMENT[entry.action])
        return None
    if entry.action in _GONE:
        blocks.remove(entry.address, entry.size)
        return None
    if entry.action == "alloc":
        kind: type[TensorAlloc] | type[TensorFree] = TensorAlloc
        size = blocks.take(entry.address, entry.size)
    elif entry.action == "free_completed":
        kind, size = TensorFree, blocks.give(entry.address)
    else:  # free_requested, snapshot, oom: no block changes hands
        return None
    if not size:
        return None
    return kind(
        address=entry.address,
        size=size,
        allocated=blocks.allocated,
        reserved=blocks.reserved,
        device=entry.device,
        stream=entry.stream,
        ns=max(ns, 1),
    )


def _check(device: int, blocks: Blocks, segments: Sequence[Mapping[str, Any]]) -> Iterator[Event]:
    """Say where the totals do not end at what the snapshot holds."""
    allocated = sum(size for segment in segments for _, size in _blocks(segment))
    reserved = sum(int(segment["total_size"]) for segment in segments)
    if blocks.surprises or (blocks.allocated, blocks.reserved) != (allocated, reserved):
        yield Note(
            level=2,
            text=f"sizes of tensors on GPU {device} are estimates: {blocks.surprises} entries did "
            f"not fit; allocated ends at {blocks.allocated} bytes, PyTorch says {allocated}; "
            f"reserved at {blocks.reserved}, PyTorch says {reserved}",
        )

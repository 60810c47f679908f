"""Logs made up for tests: what an injected target would have written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from accel_trace.events import Alloc, Event, Free, Launch, TensorAlloc, TensorFree, Touched
from accel_trace.log_writer import LogWriter
from accel_trace.session import Session

MIB = 1 << 20


def launch(number: int, name: str, **fields: int | str) -> Launch:
    values = dict.fromkeys(
        ("device", "stream", "context", "thread", "grid_x", "grid_y", "grid_z", "block_x",
         "block_y", "block_z"), 1,
    )  # fmt: skip
    return Launch(
        **{"launch": number, "name": name, "analysed": 1, "operator": "", "region": ""}
        | values | {"device": 0} | fields
    )  # fmt: skip


def write(folder: Path, pid: int, events: Sequence[Event], part: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"trace-{pid}{part}.atl"
    with LogWriter(path, pid=pid) as writer:
        for event in events:
            writer.write(event)
    return path


def session(folder: Path, *events: Event, pid: int = 5) -> Session:
    """Write one process' log and open the folder."""
    write(folder, pid, events)
    return Session(folder)


def alloc(address: int, size: int, flags: int = 0, device: int = 0) -> Alloc:
    return Alloc(address=address, size=size, device=device, flags=flags, stream=0)


def free(address: int, device: int = 0) -> Free:
    return Free(address=address, size=0, device=device, flags=0, stream=0)


def tensor(address: int, size: int, allocated: int = 0, device: int = 0) -> TensorAlloc:
    return TensorAlloc(
        address=address, size=size, allocated=allocated, reserved=2 * allocated, device=device,
        stream=0,
    )  # fmt: skip


def tensor_free(address: int, size: int, allocated: int = 0, device: int = 0) -> TensorFree:
    return TensorFree(
        address=address, size=size, allocated=allocated, reserved=2 * allocated, device=device,
        stream=0,
    )  # fmt: skip


def touched(number: int, address: int, size: int, what: int = 1, flags: int = 0) -> Touched:
    return Touched(launch=number, address=address, size=size, what=what, flags=flags)

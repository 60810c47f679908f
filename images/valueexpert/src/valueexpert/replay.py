"""Runs a replay and writes what it did as accel-trace records it: a log, and values beside it."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from accel_trace.events import (
    Alloc,
    Event,
    Fact,
    Launch,
    Memcpy,
    Memset,
    RegionEnd,
    RegionStart,
)
from accel_trace.log_writer import LogWriter
from accel_trace.values.accesses import COLUMNS, Accesses, Contents, write_values

PID = 1
_RECORD = np.dtype([(name, kind) for name, kind in COLUMNS.items()])
_UPLOAD, _DOWNLOAD, _COPY = 2, 3, 4  # Memcpy.direction


class ReplayError(RuntimeError):
    """A replay that ended badly; one sentence."""


def run(program: Path, variant: str, size: int, folder: Path) -> dict[str, Any]:
    """Replay a variant, write its record into `folder`, and return what it printed of itself.

    Raises ReplayError when the program says that its result is wrong, or its input refused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as dump:
        done = subprocess.run(
            [str(program), variant, str(size), "1", dump],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ReplayError(f"{program.name} {variant}: {done.stderr.strip()}")
        _write(Path(dump), folder)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def _write(dump: Path, folder: Path) -> None:
    columns = np.fromfile(dump / "accesses.bin", _RECORD)
    sites = tuple((dump / "sites.txt").read_text().splitlines())
    accesses = Accesses(**{name: columns[name] for name in COLUMNS}, sites=sites)
    contents = Contents(
        np.fromfile(dump / "contents.bin", np.uint8), np.fromfile(dump / "ends.bin", np.uint64)
    )
    write_values(folder / f"values-{PID}.npz", accesses, contents)
    with LogWriter(folder / f"trace-{PID}.atl", pid=PID) as log:
        log.write(Fact(name="source", value="replay"))
        launches = 0
        for line in (dump / "events.txt").read_text().splitlines():
            kind, address, size, extra, where = line.split("\t")
            event = _event(kind, int(address), int(size), int(extra), where, launches)
            launches += kind == "launch"
            if kind != "launch":
                log.write(RegionStart(name=where))
            log.write(event)
            if kind != "launch":
                log.write(RegionEnd(name=where))


def _event(kind: str, address: int, size: int, extra: int, where: str, launches: int) -> Event:
    if kind == "alloc":
        return Alloc(address=address, size=size, device=0, flags=0, stream=0)
    if kind == "fill":
        return Memset(address=address, size=size, value=extra, element=1, asynchronous=0, stream=0)
    if kind == "launch":
        return Launch(
            launch=launches, name=where, device=0, stream=0, context=1, grid_x=size, grid_y=1,
            grid_z=1, block_x=extra, block_y=1, block_z=1, analysed=1, thread=PID, operator="",
            region="",
        )  # fmt: skip
    direction = {"upload": _UPLOAD, "download": _DOWNLOAD, "copy": _COPY}[kind]
    host = 0x1000
    destination, source = {
        "upload": (address, host), "download": (host, address), "copy": (address, extra),
    }[kind]  # fmt: skip
    return Memcpy(
        destination=destination, source=source, size=size, direction=direction, asynchronous=0,
        stream=0,
    )  # fmt: skip

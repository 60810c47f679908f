"""Runs a replay and writes what it did as accel-trace records it: a log, and values beside it."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from accel_trace.cpu.recorded import ACCESS, stem
from accel_trace.events import (
    MEMORY_FLAGS,
    Alloc,
    Event,
    Fact,
    Launch,
    Memcpy,
    Memset,
    RegionEnd,
    RegionStart,
    Sync,
)
from accel_trace.log_writer import LogWriter
from accel_trace.values.accesses import COLUMNS, Accesses, Contents, write_values

PID = 1
_RECORD = np.dtype([(name, kind) for name, kind in COLUMNS.items()])
_UPLOAD, _DOWNLOAD, _COPY = 2, 3, 4  # Memcpy.direction
_LINE = 1_000_000_000  # ns from one event to the next, and 1 ns from access to access


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
    own: dict[str, Any] = {name: columns[name] for name in COLUMNS}
    accesses = Accesses(**own, sites=sites)
    contents = Contents(
        np.fromfile(dump / "contents.bin", np.uint8), np.fromfile(dump / "ends.bin", np.uint64)
    )
    write_values(folder / f"values-{PID}.npz", accesses, contents)
    with LogWriter(folder / f"trace-{PID}.atl", pid=PID) as log:
        log.write(Fact(name="source", value="replay"))
        launches = 0
        turns: list[tuple[int, int, int, str]] = []
        for number, line in enumerate((dump / "events.txt").read_text().splitlines(), 1):
            kind, address, size, extra, where = line.split("\t")
            ns = number * _LINE
            if kind == "turn":
                turns.append((ns, int(size), int(extra), where))
                continue
            event = _event(kind, int(address), int(size), int(extra), where, launches)
            launches += kind == "launch"
            if kind != "launch":
                log.write(RegionStart(name=where, ns=ns))
            log.write(replace(event, ns=ns))
            if kind != "launch":
                log.write(RegionEnd(name=where, ns=ns))
    if turns:
        _write_turns(np.fromfile(dump / "host.bin", _RECORD), turns, folder)


def _write_turns(host: np.ndarray, turns: list[tuple[int, int, int, str]], folder: Path) -> None:
    """The CPU's turns, as the recorder of its accesses writes them; a line of source is a stack."""
    records = np.zeros(len(host), ACCESS)
    stacks: dict[str, int] = {}
    for ns, first, count, where in turns:
        for k in range(first, first + count):
            frame = f"{where}, line {host['pc'][k]}"
            stack = stacks.setdefault(frame, len(stacks) + 1)
            records[k] = (ns + k - first, host["address"][k], 0, host["size"][k], stack, 1,
                          host["flags"][k])  # fmt: skip
    base = stem(folder, PID)
    Path(f"{base}.records").write_bytes(records.tobytes())
    Path(f"{base}.stacks").write_text(
        "".join(f"stack {number}\nreplay({frame}+0x0) [0x0]\n" for frame, number in stacks.items())
    )
    Path(f"{base}.facts").write_text(f"mode bytes\naccesses {len(host)}\nthreads 1\n")


def _event(kind: str, address: int, size: int, extra: int, where: str, launches: int) -> Event:
    if kind == "alloc":
        return Alloc(address=address, size=size, device=0, flags=0, stream=0)
    if kind == "managed":
        flags = MEMORY_FLAGS["managed"]
        return Alloc(address=address, size=size, device=0, flags=flags, stream=0)
    if kind == "wait":
        return Sync(what=2, stream=0)
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

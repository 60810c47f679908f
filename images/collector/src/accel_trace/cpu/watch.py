"""Compiles the recorder of CPU accesses, and drives it on ordinary memory of this process.

`accel-trace run` preloads it, and the injection library names the managed allocations to it. In a
process that loads it late, a handler that the program installs afterwards takes its place, and
system calls on watched memory fail. Needs g++.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accel_trace.builds import BuildError
from accel_trace.cpu.recorded import CpuAccesses, read
from accel_trace.handlers.compiling import cached_build

_HERE = Path(__file__).parent
SOURCES = tuple(
    _HERE / name for name in ("watch.cc", "signals.cc", "record.cc", "calls.cc", "perf.cc")
)
MODES = {"pages": 1, "bytes": 2, "faults": 3}
VARIABLE = "ACCEL_TRACE_CPU"  # its mode, for a preloaded library


class WatchError(RuntimeError):
    """Memory cannot be watched; one sentence."""


def build() -> Path:
    """The compiled recorder. Raises BuildError."""

    def command(output: Path, compiler: str) -> list[str]:
        flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-Wall", "-fvisibility=hidden"]
        return [compiler, *flags, *map(str, SOURCES), "-o", str(output), "-ldl", "-pthread"]

    headers = "".join(
        (_HERE / name).read_text() for name in ("watch.h", "record.h", "signals.h", "perf.h")
    )
    return cached_build("cpu", SOURCES, headers, command)


class Watch:
    """The recorder in this process: a preloaded one, or loaded now. Raises WatchError."""

    def __init__(self, path: Path | None = None) -> None:
        every = ctypes.CDLL(None)
        try:
            loaded = hasattr(every, "accel_trace_cpu_watch")
            self._library = every if loaded else ctypes.CDLL(str(path or build()), os.RTLD_GLOBAL)
        except (OSError, BuildError) as error:
            raise WatchError(str(error)) from error
        self._library.accel_trace_cpu_start.argtypes = [ctypes.c_char_p, ctypes.c_int]
        self._library.accel_trace_cpu_watch.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
        self._library.accel_trace_cpu_unwatch.argtypes = [ctypes.c_uint64]
        self._library.accel_trace_cpu_count.restype = ctypes.c_uint64

    def watch(self, address: int, size: int) -> None:
        """Record accesses to these bytes from now on. Raises WatchError."""
        why = self._library.accel_trace_cpu_watch(address, size)
        if why:
            raise WatchError(f"{size} bytes at {address:#x} cannot be watched: {os.strerror(why)}")

    def unwatch(self, address: int) -> None:
        """Leave memory alone again."""
        self._library.accel_trace_cpu_unwatch(address)

    def window(self) -> None:
        """Mode pages: first accesses count anew."""
        self._library.accel_trace_cpu_window()

    @property
    def count(self) -> int:
        """Accesses so far."""
        return int(self._library.accel_trace_cpu_count())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is seen in here: for what touches the memory in the kernel, or on a GPU."""
        self._library.accel_trace_cpu_pause()
        try:
            yield
        finally:
            self._library.accel_trace_cpu_resume()

    def start(self, folder: Path, mode: str = "bytes") -> None:
        """Begin to record into a folder. Raises WatchError, or ValueError for no mode of MODES."""
        if mode not in MODES:
            raise ValueError(f"mode '{mode}' is not known; choose of {', '.join(MODES)}")
        why = self._library.accel_trace_cpu_start(os.fsencode(folder), MODES[mode])
        if why:
            raise WatchError(f"{folder}: cannot be recorded into: {os.strerror(why)}")

    def finish(self, folder: Path) -> CpuAccesses:
        """Stop, leave all memory open, and read what was recorded into the folder."""
        self._library.accel_trace_cpu_finish()
        return read(folder, os.getpid())

"""What the tests of the native part share: builds, scenarios on a synthetic driver.

Builds are kept in the tests' cache, named by what went into them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
from accel_trace import build, toolchain
from accel_trace import events as ev
from accel_trace.log import LogReader

COLLECTOR = Path(__file__).resolve().parents[1]
NATIVE = COLLECTOR / "native"
TESTING = NATIVE / "testing"
_DRIVER = (
    "calls", "clock", "device", "driver", "kernels", "meanwhile", "sanitizer", "streams", "warp",
)  # fmt: skip
READ, WRITE, SYSTEM, PREFETCH = 1, 2, 4, 8  # flags of an access
E = TypeVar("E", bound=ev.Event)


def need_tools() -> toolchain.Toolchain:
    """The compilers and headers; without them the test fails in CI, and is skipped elsewhere."""
    try:
        return toolchain.find_toolchain()
    except build.BuildError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have what the native part is built with: {error}")
        pytest.skip(str(error))


def built(name: str, make: Any, *parts: object) -> Path:
    """A folder that `make(folder)` filled, once for the same sources and parts."""
    digest = hashlib.sha256(repr(parts).encode())
    for path in sorted([*NATIVE.iterdir(), *TESTING.iterdir()]):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return _once(f"{name}-{digest.hexdigest()[:16]}", make)


def _once(name: str, make: Any) -> Path:
    root = Path(os.environ["AE_TEST_CACHE"]) / "collector"
    root.mkdir(parents=True, exist_ok=True)
    folder = root / name
    with (root / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            (folder / "done").touch()
    return folder


@cache
def oldest_sanitizer() -> toolchain.Toolchain:
    """The same compilers with the oldest Sanitizer that is supported, which pip fetches once."""
    tools, lock = need_tools(), COLLECTOR / "requirements-oldest.txt"

    def fetch(folder: Path) -> None:
        done = subprocess.run(
            [
                sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes",
                "--upgrade", "--target", folder, "--requirement", lock,
            ],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(done.stderr)

    made = _once(f"sanitizer-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}", fetch)
    home = made / "nvidia" / "cu13"
    library = home / "lib" / "libsanitizer-public.so"
    return replace(tools, sanitizer_include=home / "include", sanitizer_library=library)


def _compile(tools: toolchain.Toolchain, *arguments: object) -> None:
    done = subprocess.run(
        [tools.cxx, "-std=c++17", "-pthread", "-Wall", "-Wextra", *map(str, arguments)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@cache
def program(name: str, sources: tuple[str, ...], sanitize: str = "") -> Path:
    """A test program of testing/ and some of the library's sources."""
    tools = need_tools()
    flags = ("-g1", "-O1", f"-fsanitize={sanitize}") if sanitize else ("-O2",)

    def make(folder: Path) -> None:
        paths = [TESTING / f"{name}.cc", *(NATIVE / f"{source}.cc" for source in sources)]
        _compile(tools, *flags, *tools.defines(), *tools.includes(), *paths, "-o", folder / name)

    return built(name, make, sanitize, tools) / name


@dataclass(frozen=True)
class Bench:
    """The injection library, the synthetic driver, and the program that plays scenarios."""

    folder: Path
    features: Mapping[str, bool]
    sanitize: str

    @property
    def library(self) -> Path:
        return self.folder / build.LIBRARY

    @property
    def driver(self) -> Path:
        return self.folder / "libsanitizer-public.so"

    @property
    def scenario(self) -> Path:
        return self.folder / "scenario"


@cache
def bench(sanitize: str = "", oldest: bool = False) -> Bench:
    """Builds all three; `sanitize` names g++'s sanitizers for all of them.

    `oldest`: with the headers of the oldest Sanitizer that is supported.
    """
    tools = oldest_sanitizer() if oldest else need_tools()
    flags = ["-g1", "-O0", f"-fsanitize={sanitize}"] if sanitize else ["-O1"]

    def make(folder: Path) -> None:
        driver = [TESTING / f"{name}.cc" for name in _DRIVER]
        _compile(
            tools, *flags, "-fPIC", "-shared", *tools.defines(), *tools.includes(), f"-I{NATIVE}",
            '-DAT_LANES="testing/warp.h"', *driver, "-x", "c++", NATIVE / "patches.cu", "-ldl",
            "-o", folder / "libsanitizer-public.so",
        )  # fmt: skip
        build.build_library(tools, folder / build.LIBRARY, sanitize)
        # A sanitized library cannot be preloaded alone: then the program is linked with it.
        linked = ["-Wl,--no-as-needed", f"-L{folder}", "-lacceltrace"] if sanitize else []
        _compile(
            tools, *flags, TESTING / "scenario.cc", TESTING / "crowds.cc", *linked,
            f"-L{folder}", "-lsanitizer-public", f"-Wl,-rpath,{folder}", "-ldl",
            "-o", folder / "scenario",
        )  # fmt: skip

    folder = built("bench", make, sanitize, tools)
    return Bench(folder, tools.features(), sanitize)


@dataclass(frozen=True)
class Log:
    """One log: its events in order, the status beside it, and whether it ends as it should."""

    path: Path
    pid: int
    events: list[ev.Event]
    status: dict[str, Any]
    whole: bool

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def facts(self) -> dict[str, str]:
        return {fact.name: fact.value for fact in self.of(ev.Fact)}

    def notes(self) -> str:
        return "\n".join(note.text for note in self.of(ev.Note))


def parse(path: Path) -> Log:
    """Reads a log with the reader that users have."""
    reader = LogReader(path)
    found = list(reader)
    assert not reader.unknown
    status = path.with_suffix(".status")
    text = status.read_text() if status.exists() else "{}"
    return Log(path, reader.pid, found, json.loads(text), not reader.damage)


@dataclass(frozen=True)
class Run:
    """How a scenario ended, and the logs that it left, the first process's first."""

    returncode: int
    stdout: str
    stderr: str
    folder: Path
    logs: list[Log]

    @property
    def log(self) -> Log:
        (only,) = self.logs
        return only


def play(
    script: str | Iterable[str],
    folder: Path,
    mode: str = "touch",
    *,
    sanitize: str = "",
    oldest: bool = False,
    program: Sequence[str] | None = None,
    ok: bool = True,
    timeout: float = 60,
    preexec: Any = None,
    **settings: object,
) -> Run:
    """Plays a scenario with the tool; settings are ACCEL_TRACE_* without the prefix, or in full."""
    made = bench(sanitize, oldest)
    out = folder / f"out-{mode}-{len(list(folder.iterdir()))}"
    out.mkdir()
    env = {
        **os.environ, "ACCEL_TRACE_OUT": str(out), "ACCEL_TRACE_MODE": mode,
        "ACCEL_TRACE_SANITIZER": str(made.driver), "ACCEL_TRACE_PATCHES": str(made.scenario),
        "TSAN_OPTIONS": "halt_on_error=1 exitcode=66", "ASAN_OPTIONS": "detect_leaks=0",
    }  # fmt: skip
    if not sanitize:
        env["LD_PRELOAD"] = str(made.library)
    for name, value in settings.items():
        env[name if name.isupper() else f"ACCEL_TRACE_{name.upper()}"] = str(value)
    done = subprocess.run(
        program or [str(made.scenario)],
        input=script if isinstance(script, str) else "\n".join(script),
        capture_output=True, text=True, env=env, timeout=timeout, check=False, preexec_fn=preexec,
    )  # fmt: skip
    if ok:
        assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    paths = sorted(out.glob("*.atl"), key=lambda path: path.stat().st_ctime_ns)
    return Run(done.returncode, done.stdout, done.stderr, out, [parse(path) for path in paths])


START = ["context 1 0", "module 1 1", "stream 1 1"]


def launch(*accesses: str, stream: int = 1, module: int = 1, name: str = "kernel") -> list[str]:
    """The lines of one launch."""
    return [f"launch {stream} {module} {name}", *(f"access {a}" for a in accesses), "go"]


def touched(log: Log, launch_number: int, what: int = 0) -> list[tuple[int, int]]:
    """(address, size) of what a launch touched: objects (0) or tensors (1)."""
    return [
        (t.address, t.size)
        for t in log.of(ev.Touched)
        if t.launch == launch_number and t.what == what
    ]


def killed(run: Run) -> int:
    """The signal that ended a run."""
    return signal.Signals(-run.returncode)

"""Stand-ins for what these tests cannot have: the injection library, and Python programs to run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import accel_trace
from accel_trace.events import Event
from accel_trace.log import LogReader

PACKAGE = Path(accel_trace.__file__).parent
SITE = PACKAGE / "handlers" / "site"
COMPILER = shutil.which("g++")
# Writes a line for every call to $ACCEL_TRACE_OUT/calls-<pid>.txt; `test_launch` is a launch.
_LIBRARY = r"""
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void say(const char* format, ...) __attribute__((format(printf, 1, 2)));
#include <stdarg.h>
static void say(const char* format, ...) {
  char path[4096];
  const char* folder = getenv("ACCEL_TRACE_OUT");
  if (!folder) return;
  snprintf(path, sizeof path, "%s/calls-%d.txt", folder, (int)getpid());
  FILE* file = fopen(path, "a");
  va_list words;
  va_start(words, format);
  vfprintf(file, format, words);
  va_end(words);
  fclose(file);
}
int accel_trace_ready(void) { return 1; }
void accel_trace_tensor(int alloc, uint64_t address, uint64_t size, uint64_t allocated,
                        uint64_t reserved, int device, uint64_t stream) {
  say("tensor %d %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %d %" PRIu64 "\n", alloc, address,
      size, allocated, reserved, device, stream);
}
void accel_trace_operator(int start, const char* name) { say("operator %d %s\n", start, name); }
void accel_trace_region(int start, const char* name) { say("region %d %s\n", start, name); }
void accel_trace_stack(uint64_t launch, const char* t) { say("stack %" PRIu64 " %s\n", launch, t); }
void accel_trace_note(int level, const char* text) { say("note %d %s\n", level, text); }
void accel_trace_fact(const char* name, const char* value) { say("fact %s %s\n", name, value); }
uint64_t accel_trace_launches(void) { return 3; }
void accel_trace_step(void) { say("step\n"); }
void accel_trace_flush(void) { say("flush\n"); }
static void (*callback)(uint64_t);
void accel_trace_set_stack_callback(void (*call)(uint64_t)) { callback = call; }
void test_launch(uint64_t launch) { if (callback) callback(launch); }
"""


def compile_c(folder: Path, name: str, source: str, *flags: str, suffix: str = "c") -> Path:
    """Compile a shared library from text."""
    file = folder / f"{name}.{suffix}"
    file.write_text(source)
    output = folder / f"lib{name}.so"
    compiler = COMPILER if suffix == "cc" else (shutil.which("gcc") or "cc")
    subprocess.run(
        [str(compiler), "-O1", "-fPIC", "-shared", str(file), "-o", str(output), *flags],
        check=True, timeout=120,
    )  # fmt: skip
    return output


def fake_library(folder: Path) -> Path:
    """The stand-in for the injection library."""
    return compile_c(folder, "acceltrace", _LIBRARY)


def run_python(
    code: str, out: Path, *, environ: Mapping[str, str] | None = None, preload: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program as accel-trace would: its folder first on PYTHONPATH, ours nowhere else."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("ACCEL_TRACE_")}
    given = dict(environ or {})
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SITE), given.pop("PYTHONPATH", "")]))
    env["ACCEL_TRACE_OUT"] = str(out)
    env.setdefault("ACCEL_TRACE_CACHE", str(build_cache()))
    if preload is not None:
        env["LD_PRELOAD"] = str(preload)
    return subprocess.run(
        [sys.executable, "-c", code],
        env=env | given,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@cache
def build_cache() -> Path:
    """One folder of compiled hooks for all tests of a run, and for later runs."""
    base = Path(os.environ.get("ACCEL_TRACE_CACHE") or f"{os.environ['AE_TEST_CACHE']}/hooks")
    base.mkdir(parents=True, exist_ok=True)
    return base


def events_of(folder: Path) -> dict[str, list[Event]]:
    """The events of every log in a folder, by file name; all logs must be whole."""
    found = {}
    for path in sorted(folder.glob("trace-*.atl")):
        reader = LogReader(path)
        found[path.name] = list(reader)
        assert not reader.damage, reader.damage
    return found


def lines_of(folder: Path) -> list[str]:
    """What the stand-in for the library was told, all processes."""
    files = sorted(folder.glob("calls-*.txt"))
    return [line for file in files for line in file.read_text().splitlines()]

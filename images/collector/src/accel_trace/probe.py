"""Whether kernels can be patched here: patches a tiny one and compares its counts with the truth.

A child process runs a vector addition through the CUDA driver (PTX, no toolkit needed) with the
library in it, in mode count: n elements are 2n reads and n writes of 4 bytes. Source:
docs/papers/pasta.md, 6.2.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from accel_trace.events import Counts, Module
from accel_trace.launch import Filters, environment
from accel_trace.session import Session
from accel_trace.tools.base import Needs

DRIVER = "libcuda.so.1"
ELEMENTS = 1000
_SECONDS = 120
_OLDER = (
    "where the Sanitizer is newer than the driver, build with an older toolkit, named in "
    "ACCEL_TRACE_TOOLKIT"
)
_ENTRY = b"accel_trace_probe"
# Newest first: the driver compiles PTX of an older GPU for any newer one.
_TARGETS = (("6.4", "sm_75"), ("6.0", "sm_50"))
_PTX = """
.version {version}
.target {target}
.address_size 64
.visible .entry accel_trace_probe(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{{
  .reg .pred %p<2>;
  .reg .b32 %r<6>;
  .reg .f32 %f<4>;
  .reg .b64 %d<9>;
  ld.param.u64 %d1, [a];
  ld.param.u64 %d2, [b];
  ld.param.u64 %d3, [c];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.u32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra DONE;
  cvta.to.global.u64 %d1, %d1;
  cvta.to.global.u64 %d2, %d2;
  cvta.to.global.u64 %d3, %d3;
  mul.wide.u32 %d4, %r5, 4;
  add.u64 %d5, %d1, %d4;
  add.u64 %d6, %d2, %d4;
  add.u64 %d7, %d3, %d4;
  ld.global.f32 %f1, [%d5];
  ld.global.f32 %f2, [%d6];
  add.f32 %f3, %f1, %f2;
  st.global.f32 [%d7], %f3;
DONE:
  ret;
}}
"""


class DriverError(RuntimeError):
    """A call of the CUDA driver failed; the text names call and code."""


def driver_problem() -> str:
    """Return "" where a CUDA driver can be loaded here, else why not. Starts no context."""
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return "no NVIDIA driver: libcuda.so.1 is not here"
    return ""


def probe(library: Path) -> str:
    """Return "" when a patched kernel ran and was counted rightly, else one sentence why not.

    `library` is the folder of the built library.
    """
    with tempfile.TemporaryDirectory(prefix="accel-trace-probe-") as name:
        folder = Path(name)
        needs = Needs(mode="count", handlers=("sanitizer",), classes=("global",))
        env = environment(os.environ, needs, Filters(), folder, library)
        # Only this package's own folders: the probe must work in any environment.
        env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        argv = [sys.executable, "-m", "accel_trace.probe"]
        try:
            done = subprocess.run(
                argv, check=False, capture_output=True, text=True, env=env, timeout=_SECONDS
            )
        except subprocess.TimeoutExpired:
            return f"a tiny patched kernel did not end within {_SECONDS} s"
        return judge(done.returncode, done.stderr, Session(folder))


def judge(exit_code: int, errors: str, session: Session) -> str:
    """Return "" when the child ended well and its log shows the right counts, else why not."""
    last = (errors.strip().splitlines() or [""])[-1]
    if exit_code < 0:
        return f"a tiny patched program was killed by signal {-exit_code}"
    if exit_code:
        return last.removeprefix("probe: ") or f"a tiny patched program ended with {exit_code}"
    problems = [*session.coverage.warnings, *session.coverage.damage]
    if not session.processes:
        why = problems[0] if problems else "it wrote no log, so it was not loaded"
        return f"the library does not work in a tiny program: {why}"
    counts: list[Counts] = []
    for _, event in session.events((Counts, Module)):
        if isinstance(event, Module) and event.loaded and not event.patched:
            problems.append(f"patching a module gave code {event.result}")
        elif isinstance(event, Counts):
            counts.append(event)
    seen = [(event.global_reads, event.global_writes) for event in counts]
    if (2 * ELEMENTS, ELEMENTS) in seen:
        return ""
    if not any(reads or writes for reads, writes in seen):
        why = problems[0] if problems else "its accesses were not seen"
        return f"the runtime refuses patching ({why}); {_OLDER}"
    return (
        f"a tiny patched kernel was counted wrongly: {seen[-1][0]} reads and {seen[-1][1]} writes "
        f"instead of {2 * ELEMENTS} and {ELEMENTS}"
    )


class _Driver:
    """The few calls of the CUDA driver that a vector addition needs."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(DRIVER)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver. Raises DriverError."""
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            shown = (text.value or b"").decode() or "unknown"
            raise DriverError(f"{name} gave {code} ({shown})")


def add_vectors(n: int = ELEMENTS) -> list[float]:
    """Add two vectors of `n` floats on the first GPU and return the sum. Raises DriverError."""
    driver = _Driver()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    driver.call("cuInit", 0)
    driver.call("cuDeviceGet", ctypes.byref(device), 0)
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver.call("cuCtxSetCurrent", context)
    module, function = _load(driver), ctypes.c_void_p()
    driver.call("cuModuleGetFunction", ctypes.byref(function), module, _ENTRY)
    size = ctypes.c_size_t(4 * n)
    vectors = [ctypes.c_uint64() for _ in range(3)]
    hosts = [(ctypes.c_float * n)(*values) for values in (range(n), range(0, 2 * n, 2), [0] * n)]
    for vector, host in zip(vectors, hosts, strict=True):
        driver.call("cuMemAlloc_v2", ctypes.byref(vector), size)
        driver.call("cuMemcpyHtoD_v2", vector, host, size)
    _launch(driver, function, vectors, n)
    driver.call("cuMemcpyDtoH_v2", hosts[2], vectors[2], size)
    for vector in vectors:
        driver.call("cuMemFree_v2", vector)
    driver.call("cuModuleUnload", module)
    driver.call("cuDevicePrimaryCtxRelease_v2", device)
    return list(hosts[2])


def _load(driver: _Driver) -> ctypes.c_void_p:
    module = ctypes.c_void_p()
    for number, (version, target) in enumerate(_TARGETS, 1):
        text = _PTX.format(version=version, target=target).encode()
        try:
            driver.call("cuModuleLoadData", ctypes.byref(module), text)
        except DriverError:
            if number == len(_TARGETS):
                raise
        else:
            break
    return module


def _launch(
    driver: _Driver, function: ctypes.c_void_p, vectors: Sequence[ctypes.c_uint64], n: int
) -> None:
    count = ctypes.c_uint32(n)
    values = [*vectors, count]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    threads = 128
    grid = -(-n // threads)
    driver.call("cuLaunchKernel", function, grid, 1, 1, threads, 1, 1, 0, None, pointers, None)
    driver.call("cuCtxSynchronize")


def main() -> int:
    """Run the addition in this process; 0 when its result is right."""
    try:
        result = add_vectors()
    except OSError:
        print("probe: no NVIDIA driver", file=sys.stderr)
        return 1
    except DriverError as error:
        words = "no GPU can be used" if str(error).startswith("cuInit") else "the driver failed"
        print(f"probe: {words}: {error}", file=sys.stderr)
        return 1
    if result != [3.0 * number for number in range(ELEMENTS)]:
        print("probe: a tiny patched kernel gave a wrong result", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

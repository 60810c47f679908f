"""CUDA source to machine code by NVRTC: about a second a kernel, no GPU and no C++ build needed.

Compiled code is kept in a folder keyed by the hash of all that defines it. What a kernel costs
(registers, spills, shared memory) is read from the assembler's own report.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

NO_NVRTC = "fix: pip install cuda-bindings nvidia-cuda-nvrtc"

_REPORT = {
    "registers": re.compile(r"Used (\d+) registers"),
    "shared_bytes": re.compile(r"(\d+) bytes smem"),
}
_INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


class CompileError(RuntimeError):
    """A kernel does not compile, or there is no compiler: one sentence with a fix."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a kernel takes, as the assembler reports it. `registers` are per thread, the rest is
    in bytes: stack frame (local memory) and spills per thread, static shared memory per block."""

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """Machine code of one source for one architecture, and the usage of every kernel in it."""

    arch: str  # as "sm_90"
    cubin: bytes
    usage: Mapping[str, Usage]
    compiler: str  # as "NVRTC 13.0"


def compile_source(
    source: str, arch: str, macros: Mapping[str, object], register_cap: int = 0
) -> Compiled:
    """Compile `kernels/<source>.cu` for `arch` ("sm_90") with `macros`.

    A `register_cap` above 0 limits the registers per thread of this one source (OptMT,
    docs/papers/dlrm.md, 3.2). Raises CompileError when the compiler is missing or refuses.
    """
    text = read_source(source)
    # What NVRTC takes out of a cache of its own comes without the assembler's report.
    options = [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v", "--no-cache"]
    options += [f"-D{name}={value}" for name, value in sorted(macros.items())]
    if register_cap:
        options.append(f"--maxrregcount={register_cap}")
    compiler = compiler_name()
    key = hashlib.sha256("\0".join([compiler, source, text, *options]).encode()).hexdigest()[:32]
    found = _read_cache(key, arch, compiler)
    if found is None:
        cubin, log = _run_nvrtc(f"{source}.cu", text, options)
        found = Compiled(arch=arch, cubin=cubin, usage=read_report(log), compiler=compiler)
        _write_cache(key, found)
    return found


def read_source(source: str) -> str:
    """Return the text of `kernels/<source>.cu`, what it includes in place."""
    folder = resources.files(__package__) / "kernels"

    def read(name: str) -> str:
        text = (folder / name).read_text("utf-8")
        return _INCLUDE.sub(lambda found: read(found[1]), text)

    return read(f"{source}.cu")


def read_report(log: str) -> dict[str, Usage]:
    """Return every kernel's usage from the assembler's verbose report."""
    usage: dict[str, Usage] = {}
    parts = _ENTRY.split(log)
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        stack = _STACK.search(body)
        registers = _REPORT["registers"].search(body)
        shared = _REPORT["shared_bytes"].search(body)
        if stack is None or registers is None:
            raise CompileError(f"the assembler did not report what kernel '{name}' uses")
        usage[name] = Usage(
            registers=int(registers[1]),
            stack_bytes=int(stack[1]),
            spill_store_bytes=int(stack[2]),
            spill_load_bytes=int(stack[3]),
            shared_bytes=int(shared[1]) if shared else 0,
        )
    if not usage:
        raise CompileError("the assembler did not report what any kernel uses")
    return usage


@cache
def compiler_name() -> str:
    """Return the compiler's name and version, as `NVRTC 13.0`."""
    nvrtc = _import_nvrtc()
    major, minor = _checked(nvrtc, nvrtc.nvrtcVersion())
    return f"NVRTC {major}.{minor}"


def cache_folder() -> Path:
    """Return where compiled kernels are kept: $AE_KERNEL_CACHE, else the user's cache folder."""
    named = os.environ.get("AE_KERNEL_CACHE")
    if named:
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "dlrm_inference" / "kernels"


def _run_nvrtc(name: str, text: str, options: list[str]) -> tuple[bytes, str]:
    nvrtc = _import_nvrtc()
    program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), 0, [], []))
    try:
        words = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(words), words)
        size = _checked(nvrtc, nvrtc.nvrtcGetProgramLogSize(program))
        log = b" " * size
        _checked(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
        message = log.decode(errors="replace").strip("\0 \n")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"{name} does not compile with {' '.join(options)}:\n{message}")
        size = _checked(nvrtc, nvrtc.nvrtcGetCUBINSize(program))
        cubin = b" " * size
        _checked(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return cubin, message


def _import_nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise CompileError(f"the kernels need NVIDIA's run-time compiler; {NO_NVRTC}") from error
    return nvrtc


def _checked(nvrtc: Any, answer: tuple[Any, ...]) -> Any:
    """Return what a call of the bindings returned beside its status; raise when that is bad."""
    status, *values = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        text = nvrtc.nvrtcGetErrorString(status)[1].decode()
        raise CompileError(f"NVIDIA's run-time compiler failed: {text}; {NO_NVRTC}")
    return values[0] if len(values) == 1 else tuple(values)


def _read_cache(key: str, arch: str, compiler: str) -> Compiled | None:
    folder = cache_folder()
    try:
        facts = json.loads((folder / f"{key}.json").read_text())
        cubin = (folder / f"{key}.cubin").read_bytes()
        if hashlib.sha256(cubin).hexdigest() != facts["sha256"]:
            return None
        usage = {name: Usage(**fields) for name, fields in facts["usage"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not there, or cut short: compile again
    return Compiled(arch=arch, cubin=cubin, usage=usage, compiler=compiler)


def _write_cache(key: str, compiled: Compiled) -> None:
    facts = {
        "sha256": hashlib.sha256(compiled.cubin).hexdigest(),
        "usage": {name: asdict(usage) for name, usage in compiled.usage.items()},
    }
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / f"{key}.cubin", compiled.cubin)
        _replace(folder / f"{key}.json", json.dumps(facts).encode())
    except OSError:
        return  # a read-only home costs a second per kernel and process, nothing else


def _replace(target: Path, data: bytes) -> None:
    """Write a file so that a reader sees it whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.replace(temporary, target)

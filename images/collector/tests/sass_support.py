"""Machine code as tests read it: a run of the disassembler for all functions of a cubin."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from accel_trace.sass.disassembly import Function, _section, functions, parse


@cache
def listing(cubin: Path, nvdisasm: Path) -> str:
    """All of a cubin's code. A run for one function takes as long as a run for all."""
    command = [str(nvdisasm), "-c", "-g", str(cubin)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def disassembled(cubin: Path, nvdisasm: Path) -> dict[str, Function]:
    """Every function of a cubin by its mangled name: what `disassemble` returns for each."""
    text = listing(cubin, nvdisasm)
    return {name: parse(_section(text, name)) for name in functions(cubin.read_bytes())}

"""NVIDIA's disassembler, and its text as instructions.

nvdisasm comes with a CUDA toolkit, with the wheel nvidia-cuda-nvdisasm, and in Triton's wheel,
which PyTorch for CUDA needs. Code is that of compute capability 7.0 and later.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from accel_trace.toolchain import toolkit_homes

INSTALL = "pip install nvidia-cuda-nvdisasm"
_CODE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P[0-9T]+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_LABEL = re.compile(r"^(\.[\w$.]+):")
_LINE = re.compile(r'^\s*//## File "[^"]*", line (\d+)')
_TARGET = re.compile(r"`\(([^)]+)\)")
_SYMTAB, _FUNCTION = 2, 2


class DisassemblyError(RuntimeError):
    """Code that cannot be read; one sentence."""


@dataclass(frozen=True)
class Instruction:
    """One of a function; `offset` in bytes from its start."""

    offset: int
    guard: str  # @P0, or empty
    opcode: str  # with all its modifiers: LDG.E.64
    operands: tuple[str, ...]
    line: int = 0  # of the source, where the code says it

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The opcode and its modifiers, a word each."""
        return tuple(self.opcode.split("."))


@dataclass(frozen=True)
class Function:
    """Instructions in their order, and where control goes after each of them."""

    instructions: tuple[Instruction, ...]
    after: tuple[tuple[int, ...], ...]  # indices

    @cached_property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """From where control comes."""
        found: list[list[int]] = [[] for _ in self.instructions]
        for index, targets in enumerate(self.after):
            for target in targets:
                found[target].append(index)
        return tuple(map(tuple, found))

    @cached_property
    def at(self) -> dict[int, int]:
        """Indices of instructions by offset."""
        return {one.offset: index for index, one in enumerate(self.instructions)}


def find_nvdisasm() -> Path | None:
    """The disassembler: of a toolkit or wheel, on PATH, or Triton's; None where there is none."""
    places = [home / "bin" / "nvdisasm" for home in toolkit_homes()]
    on_path = shutil.which("nvdisasm")
    places += [Path(on_path)] if on_path else []
    triton = importlib.util.find_spec("triton")
    for root in triton.submodule_search_locations or () if triton else ():
        places.append(Path(root) / "backends" / "nvidia" / "bin" / "nvdisasm")
    return next((place for place in places if os.access(place, os.X_OK)), None)


def disassemble(cubin: Path, name: str, nvdisasm: Path, timeout: float = 300) -> Function:
    """A function of a cubin, by its mangled name. Raises DisassemblyError."""
    index = functions(cubin.read_bytes()).get(name)
    if index is None:
        raise DisassemblyError(f"{cubin.name}: has no function {name}")
    command = [str(nvdisasm), "-c", "-g", "-fun", str(index), str(cubin)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DisassemblyError(f"{nvdisasm} does not run: {error}") from error
    if done.returncode:
        raise DisassemblyError(f"{cubin.name}: {nvdisasm}: {done.stderr.strip()[-300:]}")
    return parse(_section(done.stdout, name))


def functions(data: bytes) -> dict[str, int]:
    """Functions of an ELF file: name -> index of its symbol."""
    try:
        sections, size, count = struct.unpack_from("<Q10xHH", data, 40)
        heads = [struct.unpack_from("<IIQQQQIIQQ", data, sections + size * i) for i in range(count)]
        table = next(head for head in heads if head[1] == _SYMTAB)
        strings = heads[table[6]][4]
        found = {}
        for index in range(table[5] // 24):
            name, info = struct.unpack_from("<IB", data, table[4] + 24 * index)
            if info & 15 == _FUNCTION:
                start = strings + name
                found[data[start : data.index(b"\0", start)].decode()] = index
        return found
    except (struct.error, StopIteration, IndexError, ValueError) as error:
        raise DisassemblyError(f"is no cubin: {error}") from error


def _section(text: str, name: str) -> Iterator[str]:
    """The lines of one function's section."""
    inside = False
    for line in text.splitlines():
        if line.startswith(".text."):
            inside = line == f".text.{name}:"
        if inside:
            yield line


def parse(lines: Iterator[str]) -> Function:
    """Instructions of nvdisasm's text, and where control goes."""
    found: list[Instruction] = []
    labels: dict[str, int] = {}
    line = 0
    for text in lines:
        label, code, source = _LABEL.match(text), _CODE.search(text), _LINE.match(text)
        if label or (text and text[0] not in " \t." and text.endswith(":")):
            labels[label[1] if label else text[:-1]] = len(found)
        elif source:
            line = int(source[1])
        elif code:
            operands = tuple(part.strip() for part in _split(code[4]))
            found.append(Instruction(int(code[1], 16), code[2] or "", code[3], operands, line))
    return Function(tuple(found), tuple(_after(found, labels)))


def _split(text: str) -> Iterator[str]:
    """Operands at the commas that are in no bracket."""
    depth, start = 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "[({") - (letter in "])}")
        if letter == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    if text[start:].strip():
        yield text[start:]


def _after(found: list[Instruction], labels: dict[str, int]) -> Iterator[tuple[int, ...]]:
    """Where control goes: a subroutine returns to after any of the calls."""
    returns = {index + 1 for index, one in enumerate(found) if one.words[0] == "CALL"}
    for index, one in enumerate(found):
        word = one.words[0]
        guarded = one.guard not in ("", "@PT")
        targets: set[int] = set()
        if word in {"BRA", "CALL", "JMP", "BRX", "JMX"}:
            names = _TARGET.findall(" ".join(one.operands))
            targets = {labels[name] for name in names if name in labels}
            falls = guarded or word == "CALL" or len(one.operands) > 1
        elif word == "RET":
            targets, falls = set(returns), guarded
        else:
            falls = guarded or word not in {"EXIT", "KILL"}
        if falls:
            targets.add(index + 1)
        yield tuple(sorted(target for target in targets if target < len(found)))

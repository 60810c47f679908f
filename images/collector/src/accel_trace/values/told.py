"""Types of recorded elements: by the opcodes of the kernel's code, else by a hint of the user.

The Sanitizer tells an access' bytes and not its type. The code that the injection library kept
does, for most instructions (see `accel_trace.sass`). Of those that it does not, nothing is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from accel_trace.events import Launch
from accel_trace.moved import Code as Place
from accel_trace.sass.disassembly import (
    INSTALL,
    DisassemblyError,
    disassemble,
    find_nvdisasm,
)
from accel_trace.sass.effects import width_of
from accel_trace.sass.types import Code
from accel_trace.session import Process
from accel_trace.values.accesses import WRITE, Accesses
from accel_trace.values.elements import CODE_OF, CODES, ELEMENTS
from accel_trace.values.names import kernel_name

OPCODE, HINT, NOBODY = "opcode", "hint", ""


@dataclass(frozen=True)
class Site:
    """An instruction and its type: who told it, and where it lies (empty where nobody knows)."""

    kernel: str
    place: str  # offset and opcode
    direction: str
    size: int
    type: str
    source: str
    accesses: int


def hinted(text: str) -> dict[int, str]:
    """Types by bytes from words as in `f32,i64`. Raises ValueError."""
    found: dict[int, str] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        element = ELEMENTS.get(word)
        if element is None:
            raise ValueError(f"'{word}' is no type; choose of {', '.join(ELEMENTS)}")
        if element.size in found:
            raise ValueError(f"'{found[element.size]}' and '{word}' have the same size; give one")
        found[element.size] = word
    return found


class Listing:
    """The code of a process' recorded kernels, looked up by address."""

    def __init__(self, process: Process) -> None:
        self._folder, self._pid = process.readers[0].path.parent, process.pid
        places = [event for event in process.events((Place,)) if isinstance(event, Place)]
        self._places = sorted(places, key=lambda place: place.address)
        self._nvdisasm: Path | None = find_nvdisasm() if places else None
        self._codes: dict[tuple[int, str], Code | None] = {}
        self.problems: list[str] = []
        if places and self._nvdisasm is None:
            self._say(f"nvdisasm is missing, so types are not read from the code; `{INSTALL}`")

    def _say(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def find(self, pc: int) -> tuple[Code, int] | None:
        """The code that lies there and the index of its instruction; None where it is not known."""
        around = [p for p in self._places if p.address <= pc < p.address + p.size]
        if len(around) != 1:  # two: a module went, and another came in its place
            return None
        (place,) = around
        code = self._code(place)
        index = code.function.at.get(pc - place.address) if code else None
        return None if code is None or index is None else (code, index)

    def _code(self, place: Place) -> Code | None:
        key = (place.file, place.function)
        if key not in self._codes and self._nvdisasm is not None:
            self._codes[key] = None
            cubin = self._folder / f"code-{self._pid}-{place.file}.cubin"
            try:
                self._codes[key] = Code(disassemble(cubin, place.function, self._nvdisasm))
            except (DisassemblyError, OSError) as error:
                self._say(f"types are not read from some code: {error}")
        return self._codes.get(key)


def tell(
    process: Process, accesses: Accesses, hints: dict[int, str] | None = None
) -> tuple[Accesses, list[Site], list[str]]:
    """The same accesses with types where somebody tells them, their instructions, and problems."""
    if any(accesses.sources):
        return accesses, _sites(process, accesses, {}), []
    listing = Listing(process)
    element, unit = accesses.element.copy(), accesses.unit.copy()
    sources = [NOBODY] * len(accesses.sites)
    places: dict[int, str] = {}
    for pc, chosen in _by_pc(accesses):
        size = int(accesses.size[chosen[0]])
        found = listing.find(int(accesses.sites[pc], 16))
        name, own = NOBODY, size
        if found is not None:
            code, index = found
            one = code.function.instructions[index]
            fits = code.is_access(index) and width_of(one.words) == size
            places[pc] = f"+{one.offset:#x} {one.opcode}"
            told = code.told(index) if fits else None
            if told is not None:
                name, own, sources[pc] = told.element, told.size, OPCODE
        if not name and size in (hints or {}):
            name, sources[pc] = (hints or {})[size], HINT
        if name:
            element[chosen], unit[chosen] = CODE_OF[name], own
    known = replace(accesses, element=element, unit=unit, sources=tuple(sources))
    return known, _sites(process, known, places), listing.problems


def _by_pc(accesses: Accesses) -> list[tuple[int, np.ndarray]]:
    order = np.argsort(accesses.pc, kind="stable")
    numbers, starts = np.unique(accesses.pc[order], return_index=True)
    return list(zip(map(int, numbers), np.split(order, starts[1:]), strict=True))


def _sites(process: Process, accesses: Accesses, places: dict[int, str]) -> list[Site]:
    names = {
        event.launch: kernel_name(event.name)
        for event in process.events((Launch,))
        if isinstance(event, Launch)
    }
    found = []
    for pc, chosen in _by_pc(accesses):
        first = chosen[0]
        flags, element = int(accesses.flags[first]), CODES[accesses.element[first]]
        found.append(
            Site(
                names.get(int(accesses.launch[first]), ""), places.get(pc, accesses.sites[pc]),
                {WRITE: "write", WRITE | 1: "atomic"}.get(flags, "read"),
                int(accesses.size[first]), element.name if element else "unknown",
                accesses.sources[pc] if accesses.sources else NOBODY, len(chosen),
            )
        )  # fmt: skip
    return found

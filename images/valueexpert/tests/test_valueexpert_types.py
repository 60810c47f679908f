"""Types read from the mini-benchmarks' machine code, against those that their sources have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from accel_trace.sass.disassembly import find_nvdisasm
from accel_trace.sass.types import Code, Told
from accel_trace.values.accesses import READ, WRITE, read_values
from accel_trace.values.elements import CODES, Element
from native_support import need_tools
from sass_support import disassembled
from valueexpert import build, traces
from valueexpert.catalog import MINIS

Place = tuple[int, int]  # line of the source, READ or WRITE
# A value that is a constant, or that only passes, has no type in the code.
SILENT = {
    "srad": {(10, WRITE)}, "resnet_ones": {(7, WRITE)}, "bfs": {(29, WRITE)},
    "embedding": {(9, READ), (9, WRITE), (19, WRITE)}, "lammps": {(7, READ), (7, WRITE)},
}  # fmt: skip
STARTS = {("hotspot3d", 17): 16}  # a statement of two lines is in the code where it starts


def sources(name: str) -> dict[Place, set[Element]]:
    """The types of what each line reads and writes, as its replay did."""
    found: dict[Place, set[Element]] = {}
    with traces.opened(MINIS[name]) as folders:
        for folder in folders.values():
            accesses, _ = read_values(folder / "values-1.npz")
            rows = np.stack([accesses.pc, accesses.flags, accesses.element])
            for pc, flags, code in np.unique(rows, axis=1).T.tolist():
                line = int(accesses.sites[pc].rsplit(":", 1)[1])
                element = CODES[code]
                assert element is not None
                found.setdefault((STARTS.get((name, line), line), flags), set()).add(element)
    return found


def fits(told: Told, wanted: Element) -> bool:
    if told.name != "int":
        return told.name == wanted.name
    signed = {"i": True, "u": False}.get(wanted.kind)
    return told.size == wanted.size and signed is not None and told.signed in (None, signed)


@pytest.mark.parametrize("arch", ["80", "90"])
@pytest.mark.parametrize("name", MINIS)
def test_the_code_has_the_types_of_the_source(name: str, arch: str, tmp_path: Path) -> None:
    need_tools()
    nvdisasm = find_nvdisasm()
    assert nvdisasm is not None, "Triton's wheel, which the tests have, brings it"
    cubin = build.cubin(name, tmp_path, arch)
    wanted, silent, seen = sources(name), set(), set()
    for function in disassembled(cubin, nvdisasm).values():
        code = Code(function)
        for index in code.accesses():
            one = code.function.instructions[index]
            place = (one.line, READ if one.words[0].startswith("LD") else WRITE)
            told = code.told(index)
            if told is None:
                silent.add(place)
            elif place in wanted:  # else no replay came there
                seen.add(place)
                assert any(fits(told, element) for element in wanted[place]), (place, one, told)
    assert silent == SILENT.get(name, set())
    plain = {place for place in wanted if place[1] in (READ, WRITE)}
    assert seen | silent >= plain, "every line of the source is found in the code"

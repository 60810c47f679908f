"""Types of loads and stores, read from the machine code of kernels whose types are known."""

from __future__ import annotations

import json
import os
import re
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from accel_trace import tools
from accel_trace.reporting import make_report, open_sessions
from accel_trace.sass import disassembly
from accel_trace.sass.disassembly import (
    DisassemblyError,
    Function,
    disassemble,
    find_nvdisasm,
    functions,
    parse,
)
from accel_trace.sass.types import Code, Told
from accel_trace.session import Session
from accel_trace.tools.base import ToolError
from accel_trace.values import told
from accel_trace.values.accesses import from_rows
from accel_trace.values.elements import CODE_OF, ELEMENTS, bits_of, numbers_of
from accel_trace.values.recorded import _lent, replay
from native_support import READ, TESTING, built, launch, need_tools, play
from sass_support import disassembled

A, N = 0x7F0000000000, 64
PC = 0x1234  # of every access of the synthetic driver
# Of each kernel: what it loads and what it stores. A sign is told where the opcode has one.
TYPES = {
    "halves": ("f16", "f16"), "half_pairs": ("f16", "f16"), "half_to_float": ("f16", "f32"),
    "brain": ("bf16", "bf16"), "brain_vectors": ("bf16", "bf16"), "float_vectors": ("f32", "f32"),
    "relu": ("f32", "f32"), "looped": ("f32", "f32"), "divided": ("f32", "f32"),
    "double_vectors": ("f64", "f64"), "double_divided": ("f64", "f64"),
    "double_to_float": ("f64", "f32"), "integers": ("int32", "int32"),
    "integers_to_floats": ("int32 signed", "f32"), "unsigned_to_floats": ("int32 unsigned", "f32"),
    "bytes": ("int8", "int8"), "shorts": ("int16 signed", "int32"),
    "long_index": ("int64", "int32"), "longs": ("int64", "int64"),
    "matrix_half": ("f16", "f32"), "matrix_brain": ("bf16", "f32"), "matrix_tf32": ("f32", "f32"),
    "matrix_bytes": ("int8 signed", "int32 signed"), "matrix_double": ("f64", "f64"),
    # What only passes, or is a constant, has no type.
    "copied": ("nobody", "nobody"), "zeroed": (None, "nobody"), "through_shared": ("nobody", "f32"),
}  # fmt: skip


def nvdisasm() -> Path:
    """That of Triton's wheel; without it the test fails in CI, and is skipped elsewhere."""
    found = find_nvdisasm()
    if found is None and os.environ.get("CI") != "true":
        pytest.skip("there is no nvdisasm, which Triton's wheel brings")
    assert found is not None, "CI must have nvdisasm"
    return found


@cache
def cubin(arch: str) -> Path:
    tools_ = need_tools()

    def make(folder: Path) -> None:
        subprocess.run(
            [str(tools_.nvcc), "-cubin", "-std=c++17", "-O3", f"-arch=sm_{arch}",
             f"-ccbin={tools_.cxx}", *tools_.includes(), str(TESTING / "types.cu"),
             "-o", str(folder / "types.cubin")],
            check=True, timeout=300, capture_output=True,
        )  # fmt: skip

    return built(f"types-{arch}", make, tools_, arch) / "types.cubin"


def words(one: Told | None) -> str:
    if one is None:
        return "nobody"
    if one.name != "int":
        return one.name
    sign = {None: "", True: " signed", False: " unsigned"}[one.signed]
    return f"int{8 * one.size}{sign}"


@pytest.mark.parametrize("arch", ["80", "90", "90a"])
@pytest.mark.parametrize("name", TYPES)
def test_the_code_tells_the_types(arch: str, name: str) -> None:
    code = Code(disassembled(cubin(arch), nvdisasm())[name])
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for index in code.accesses():
        loads = code.function.instructions[index].words[0].startswith("LD")
        found[loads].add(words(code.told(index)))
    wanted = [set() if one is None else {one} for one in TYPES[name]]
    assert [found[True], found[False]] == wanted


@pytest.mark.parametrize("arch", ["80", "90", "90a"])
def test_a_function_alone_is_as_it_is_among_all(arch: str) -> None:
    every, index = disassembled(cubin(arch), nvdisasm()), functions(cubin(arch).read_bytes())

    def without_numbers(function: Function) -> str:
        return re.sub(r"\.L_x_\d+", ".L", repr(function))  # labels, counted through the file

    names = sorted(TYPES, key=index.__getitem__)
    for name in (names[0], names[len(names) // 2], names[-1], "double_divided"):
        alone = disassemble(cubin(arch), name, nvdisasm())
        assert len(alone.instructions) > 10
        assert without_numbers(alone) == without_numbers(every[name])


def test_a_subroutine_returns_to_where_it_was_called() -> None:
    code = parse(iter([
        "k:", " /*0000*/ LDG.E R4, [R2.64] ;", " /*0010*/ CALL.REL.NOINC `(helper) ;",
        " /*0020*/ STG.E [R2.64], R6 ;", " /*0030*/ EXIT ;", "helper:",
        " /*0040*/ @!P0 FADD R6, R4, R4 ;", " /*0050*/ RET.REL.NODEC R20 `(k) ;",
    ]))  # fmt: skip
    assert code.after[1] == (2, 4)
    assert code.after[5] == (2,)
    told_ = Code(code)
    assert [words(told_.told(i)) for i in (0, 2)] == ["f32", "f32"]


def test_two_words_that_nobody_tells_apart_from_one_long_are_not_guessed() -> None:
    code = Code(parse(iter([
        " /*0000*/ LDG.E.64 R4, [R2.64] ;", " /*0010*/ IADD3 R4, R4, 0x1, RZ ;",
        " /*0020*/ IADD3 R5, R5, 0x1, RZ ;", " /*0030*/ STG.E.64 [R2.64], R4 ;", " /*0040*/ EXIT ;",
    ])))  # fmt: skip
    assert code.told(0) is None
    assert code.told(3) is None


def test_what_is_no_code_is_said_to_be(tmp_path: Path) -> None:
    nothing = tmp_path / "code.cubin"
    nothing.write_bytes(b"no elf at all")
    with pytest.raises(DisassemblyError, match="is no cubin"):
        disassemble(nothing, "relu", nvdisasm())
    with pytest.raises(DisassemblyError, match="has no function other"):
        disassemble(cubin("90"), "other", nvdisasm())
    nothing.write_bytes(cubin("90").read_bytes()[:-900])
    with pytest.raises(DisassemblyError):
        disassemble(nothing, "relu", nvdisasm())


def test_brain_floats_are_the_upper_half_of_floats() -> None:
    numbers = np.array([1.0, -2.5, 0.0, 3e38], np.float32)
    bits = bits_of(numbers, ELEMENTS["bf16"])
    assert numbers_of(bits, ELEMENTS["bf16"])[:3].tolist() == [1.0, -2.5, 0.0]
    assert ELEMENTS["bf16"].words == "bfloat16"


def offset_of(name: str, opcode: str) -> int:
    function = disassemble(cubin("90"), name, nvdisasm())
    return next(one.offset for one in function.instructions if one.opcode.startswith(opcode))


def recorded(tmp_path: Path, name: str, start: int, *, wide: int = 4, **settings: object):
    """The synthetic driver runs a kernel of the cubin that loads zeros and then ones."""
    script = ["context 1 0", f"module 1 1 - {cubin('90')}", "stream 1 1",
              f"memory {A:#x} {wide * N} 63", f"alloc 1 {A:#x} {wide * N}",
              *launch(f"global {READ} {wide} {A:#x} {wide} {N}", name=name)]  # fmt: skip
    return play(script, tmp_path, "values", SYNTHETIC_PC=start, **settings)


def test_the_tool_tells_types_by_opcode(tmp_path: Path) -> None:
    run = recorded(tmp_path, "relu", PC - offset_of("relu", "LDG"))
    assert sorted(path.suffix for path in run.folder.glob("code-*")) == [".cubin"]
    tool = tools.find("value_patterns")({}, tmp_path)
    report = make_report(tool, open_sessions(run.folder))
    assert "types of 1 instructions: 1 by their opcodes" in report.text
    assert "single value at relu, read" in report.text
    assert "taken as" not in report.text
    (table,) = [path for path in report.files if path.name.startswith("types-")]
    assert table.read_text().splitlines()[1] == "relu,+0xc0 LDG.E,read,4,f32,opcode,64".replace(
        "0xc0", f"{offset_of('relu', 'LDG'):#x}"
    )
    counts = {r.labels["told_by"]: r.samples for r in report.records if r.metric == "types"}
    assert counts == {"opcode": (1,)}
    hinted = tools.find("value_patterns")({"hint": "i32"}, tmp_path)
    report = make_report(hinted, open_sessions(run.folder))
    assert "1 by their opcodes" in report.text, "an opcode knows better than a hint"


@pytest.mark.parametrize(
    ("name", "start", "why"),
    [("copied", None, "the value only passes"), ("relu", 8, "no instruction lies there"),
     ("double_to_float", None, "the access is of another size")],
)  # fmt: skip
def test_what_the_code_does_not_tell_is_hinted_or_tried(
    tmp_path: Path, name: str, start: int | None, why: str
) -> None:
    run = recorded(tmp_path, name, start or PC - offset_of(name, "LDG"))
    for hint, text in (("", "1 by nobody"), ("f32,i64", "1 by the hint"), ("i64", "1 by nobody")):
        tool = tools.find("value_patterns")({"hint": hint}, tmp_path)
        report = make_report(tool, open_sessions(run.folder)).text
        assert f"types of 1 instructions: {text}" in report, why
        assert ("taken as float32 by the hint" in report) == (hint == "f32,i64")
    for hint, words_ in (("float", "is no type"), ("f32,i32", "have the same size")):
        tool = tools.find("value_patterns")({"hint": hint}, tmp_path)
        with pytest.raises(ToolError, match=words_):
            make_report(tool, open_sessions(run.folder))


def test_without_a_disassembler_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(tmp_path, "relu", PC - offset_of("relu", "LDG"))
    monkeypatch.setattr(told, "find_nvdisasm", lambda: None)
    report = make_report(tools.find("value_patterns")({}, tmp_path), open_sessions(run.folder))
    assert "nvdisasm is missing" in report.text
    assert "pip install nvidia-cuda-nvdisasm" in report.text
    assert "1 by nobody" in report.text
    monkeypatch.setattr(disassembly, "toolkit_homes", list)
    monkeypatch.setattr(disassembly.shutil, "which", lambda _: None)
    monkeypatch.setattr(disassembly.importlib.util, "find_spec", lambda _: None)
    assert find_nvdisasm() is None


def test_types_of_a_vector_split_it(tmp_path: Path) -> None:
    """Sixteen bytes are two doubles, not four words."""
    run = recorded(tmp_path, "double_vectors", PC - offset_of("double_vectors", "LDG"), wide=16)
    (process,) = Session(run.folder).processes
    (view,) = replay(process).views
    assert (view.items.element.name, len(view.items), view.source) == ("f64", 2 * N, "opcode")


def test_code_of_kernels_that_were_not_recorded_is_not_kept(tmp_path: Path) -> None:
    run = recorded(tmp_path, "relu", 8, kernels="other")
    assert not list(run.folder.glob("code-*"))
    assert json.loads(next(run.folder.glob("*.status")).read_text())


def test_where_the_sanitizer_does_not_know_the_place_it_is_said(tmp_path: Path) -> None:
    script = ["context 1 0", f"module 1 1 - {cubin('90')}", "stream 1 1", f"alloc 1 {A:#x} 256",
              f"memory {A:#x} 256 1", *launch(f"global {READ} 4 {A:#x} 4 64", name="relu"),
    ]  # fmt: skip
    run = play(script, tmp_path, "values")
    assert "where the code of a kernel lies is not known" in run.log.notes()
    assert not list(run.folder.glob("code-*"))


@pytest.mark.parametrize(
    ("told", "lent"), [(["f32", ""], ["f32", "f32"]), (["f32", "i32", ""], ["f32", "i32", ""])]
)
def test_a_type_is_lent_where_the_others_agree(told: list[str], lent: list[str]) -> None:
    """A store of zeros to an object that the kernel reads as float32 is one of float32."""
    rows = [
        {"pc": pc, "size": 4, "unit": 4, "flags": READ, "element": CODE_OF.get(name, 0),
         "address": A + 4 * pc}
        for pc, name in enumerate(told)
    ]  # fmt: skip
    found = _lent(from_rows(rows))
    assert found.element.tolist() == [CODE_OF.get(name, 0) for name in lent]

"""Call stacks across Python and C++, asked for by C code, with the GIL and without."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from accel_trace.handlers import stacks
from accel_trace.handlers.library import StackCallback
from torch_support import COMPILER, compile_c, fake_library, lines_of, run_python

_LAUNCHER = r"""
#include <cstdint>
#include <thread>
namespace deep {
__attribute__((noinline)) void launch(void (*call)(uint64_t), uint64_t number) {
  call(number);
  asm volatile("");  // no tail call
}
}
extern "C" void from_here(void (*call)(uint64_t), uint64_t number) {
  deep::launch(call, number);
  asm volatile("");
}
extern "C" void from_a_thread(void (*call)(uint64_t), uint64_t number) {
  std::thread([=] { deep::launch(call, number); asm volatile(""); }).join();
}
"""


class _Library:
    def __init__(self) -> None:
        self.stacks: dict[int, list[str]] = {}
        self.callback: object = None

    def stack(self, launch: int, text: str) -> None:
        self.stacks[launch] = text.splitlines()

    def set_stack_callback(self, callback: object) -> None:
        self.callback = callback


@pytest.fixture
def launcher(tmp_path: Path) -> ctypes.CDLL:
    if COMPILER is None:
        pytest.skip("needs g++")
    return ctypes.CDLL(str(compile_c(tmp_path, "launcher", _LAUNCHER, "-pthread", suffix="cc")))


@pytest.fixture
def library() -> _Library:
    found = _Library()
    stacks.install(found)  # type: ignore[arg-type]
    return found


def test_native_frames_come_first_then_python_innermost_first(
    launcher: ctypes.CDLL, library: _Library
) -> None:
    def inner() -> None:
        launcher.from_here(library.callback, ctypes.c_uint64(7))

    def outer() -> None:
        inner()

    outer()
    lines = library.stacks[7]
    assert lines[0].startswith("native: deep::launch(void (*)(unsigned long), unsigned long) ")
    assert lines[1].startswith("native: from_here ")
    python = [line for line in lines if line.startswith("python: ")]
    assert lines[-len(python) :] == python  # all after the native ones
    assert [line.split()[1].rsplit(".", maxsplit=1)[-1] for line in python[:3]] == [
        "inner", "outer",
        "test_native_frames_come_first_then_python_innermost_first",
    ]  # fmt: skip
    assert __file__ in python[0]
    native = lines[: -len(python)]
    assert not any("Py" in line.split()[1] for line in native)  # the interpreter's are left out


def test_a_thread_without_python_gives_its_native_frames(
    launcher: ctypes.CDLL, library: _Library
) -> None:
    launcher.from_a_thread(library.callback, ctypes.c_uint64(8))  # ctypes gives the GIL up
    lines = library.stacks[8]
    assert lines[0].startswith("native: deep::launch(")
    assert not any(line.startswith("python: ") for line in lines)


def test_frames_of_the_tool_and_the_bridge_are_left_out() -> None:
    raw = [
        "/usr/bin/python3(_PyEval_EvalFrameDefault+0x1) [0x1]",
        "/x/_ctypes.cpython-311.so(+0x2) [0x2]",
        "/lib/libffi.so.8(+0x3) [0x3]",
        "/opt/libacceltrace.so(+0x4) [0x4]",
        "/opt/libsanitizer-public.so(+0x5) [0x5]",
        "/lib/libcuda.so.1(cuLaunchKernel+0x6) [0x6]",
        "/home/accel_trace/model.so(_Z6kernelPf+0x7) [0x7]",
        "no parentheses at all [0x8]",
        "/usr/bin/python3(PyObject_Call+0x9) [0x9]",
        "/lib/libc.so.6(__libc_start_main+0xa) [0xa]",
    ]
    assert stacks.native_lines(raw, "/usr/bin/python3") == [
        "native: cuLaunchKernel /lib/libcuda.so.1",
        "native: kernel(float*) /home/accel_trace/model.so",
        "native: ? no parentheses at all",
    ]


@pytest.mark.parametrize(
    ("symbol", "name"),
    [("_Z3addii", "add(int, int)"), ("main", "main"), ("_Znonsense", "_Znonsense"), ("", "")],
)
def test_names_are_demangled(symbol: str, name: str) -> None:
    assert stacks.demangled(symbol) == name


def test_an_error_while_taking_a_stack_stays_inside(
    monkeypatch: pytest.MonkeyPatch, library: _Library
) -> None:
    def fail() -> list[str]:
        raise OSError("no backtrace")

    monkeypatch.setattr(stacks, "native_frames", fail)
    assert isinstance(library.callback, StackCallback)
    library.callback(9)
    assert library.stacks[9] == ["native: no stack could be taken: OSError('no backtrace')"]


def test_the_preloaded_library_gets_a_stack(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    preload = fake_library(tmp_path)
    code = """
import ctypes
def train():
    ctypes.CDLL(None).test_launch(ctypes.c_uint64(5))
train()
"""
    environ = {"ACCEL_TRACE_HANDLERS": "sanitizer,stacks"}
    result = run_python(code, out, environ=environ, preload=preload)
    assert (result.returncode, result.stderr) == (0, "")
    lines = lines_of(out)
    assert lines[0].startswith("stack 5 ")
    assert "python: train <string>:4" in lines

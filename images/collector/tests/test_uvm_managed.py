"""The allocator of managed memory against a stand-in for the CUDA runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from accel_trace.builds import BuildError
from accel_trace.handlers.compiling import cuda_headers
from accel_trace.uvm import managed
from accel_trace.uvm.managed import ManagedError
from torch_support import COMPILER, build_cache, compile_c

# A card of $TEST_TOTAL bytes: plain memory that others take is $TEST_OTHERS, and managed memory
# counts as used once it is resident, half of it here.
_CARD = r"""
#include <stdlib.h>
#include <stdio.h>
static size_t held, device;
static size_t number(const char* name) { return strtoul(getenv(name), 0, 10); }
int cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  *total = number("TEST_TOTAL");
  *free_bytes = *total - number("TEST_OTHERS") - held / 2;
  return 0;
}
int cudaGetDevice(int* out) { *out = (int)device; return 0; }
int cudaSetDevice(int to) { device = (size_t)to; fprintf(stderr, "device %d\n", to); return 0; }
static size_t sizes[64];
static void* places[64];
int cudaMallocManaged(void** out, size_t size, unsigned flags) {
  if (flags != 1) return 1;
  for (int i = 0; i < 64; ++i) if (!places[i]) {
    *out = places[i] = malloc(size); sizes[i] = size; held += size; return 0;
  }
  return 2;
}
int cudaFree(void* memory) {
  for (int i = 0; i < 64; ++i) if (places[i] == memory) {
    held -= sizes[i]; places[i] = 0; free(memory); return 0;
  }
  return 1;
}
"""
MIB = 1 << 20


@pytest.fixture(scope="module")
def allocator(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The compiled allocator, and the stand-in for the card."""
    if COMPILER is None:
        pytest.skip("needs g++")
    for cuda in ("13.0", "12.8"):
        try:
            cuda_headers(cuda)
        except BuildError:
            continue
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ACCEL_TRACE_CACHE", str(build_cache()))
            path = managed.build(cuda)
        return path, compile_c(tmp_path_factory.mktemp("card"), "card", _CARD)
    pytest.skip("needs CUDA's headers: a toolkit, or the wheel nvidia-cuda-runtime")


def run(allocator: tuple[Path, Path], code: str, *, others: int = 0) -> list[str]:
    """Run Python with the allocator as `memory` on a card of 100 MiB; returns its lines."""
    path, card = allocator
    program = f"""
import ctypes, os
from pathlib import Path
from accel_trace.uvm.managed import Allocator
MIB = 1 << 20
memory = Allocator(Path({str(path)!r}))
take = memory.library.accel_trace_managed_alloc
take.restype, take.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
give = memory.library.accel_trace_managed_free
give.restype = None
give.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
memory.limit(10 * MIB)
{code}
"""
    env = os.environ | {
        "LD_PRELOAD": str(card), "TEST_TOTAL": str(100 * MIB), "TEST_OTHERS": str(others),
    }  # fmt: skip
    said = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    return said.stdout.splitlines()


def test_no_more_is_handed_out_than_the_card_has_free(allocator: tuple[Path, Path]) -> None:
    code = """
a, b = take(60 * MIB, 0, None), take(20 * MIB, 0, None)
print(a is not None, b is not None)
print(take(11 * MIB, 0, None), memory.refused())
c = take(10 * MIB, 0, None)
print(c is not None, take(1, 0, None))
give(a, 60 * MIB, 0, None)
print(take(60 * MIB, 0, None) is not None)
"""
    assert run(allocator, code) == [
        "True True", f"None ({11 * MIB}, {10 * MIB})", "True None", "True",
    ]  # fmt: skip


def test_what_others_have_is_not_handed_out(allocator: tuple[Path, Path]) -> None:
    code = """
print(take(60 * MIB, 0, None) is None, take(50 * MIB, 0, None) is not None)
os.environ["TEST_OTHERS"] = str(60 * MIB)  # others take 20 MiB more
ctypes.CDLL(None).setenv(b"TEST_OTHERS", os.environ["TEST_OTHERS"].encode(), 1)
print(take(MIB, 0, None))
"""
    # Of the drop, what may be our own resident pages is not charged to others.
    assert run(allocator, code, others=40 * MIB) == ["True True", "None"]


def test_with_leave_the_limit_is_off(allocator: tuple[Path, Path]) -> None:
    code = """
memory.limit(10 * MIB, unlimited=True)
print(take(300 * MIB, 0, None) is not None)
"""
    assert run(allocator, code) == ["True"]


def test_pieces_have_numbers_and_bounds(allocator: tuple[Path, Path]) -> None:
    code = """
a, b = take(4 * MIB, 0, None), take(2 * MIB, 0, None)
print(memory.pieces(), memory.piece(0) == (a, 4 * MIB), memory.any_piece(2))
print([memory.inside(x) for x in (a - 1, a, a + 4 * MIB - 1, b + 2 * MIB)])
give(a, 4 * MIB, 0, None)
print(memory.piece(0), memory.any_piece(0) == (a, 4 * MIB, False), memory.inside(a))
give(a, 4 * MIB, 0, None)  # twice: nothing
print(memory.piece(1) == (b, 2 * MIB), memory.inside_address != 0)
print(take(0, 0, None), take(-5, 0, None))
"""
    assert run(allocator, code) == [
        "2 True None", "[False, True, True, False]", "None True False", "True True", "None None",
    ]  # fmt: skip


def test_without_a_runtime_nothing_is_handed_out(allocator: tuple[Path, Path]) -> None:
    path, _ = allocator
    code = f"""
import ctypes
memory = ctypes.CDLL({str(path)!r})
memory.accel_trace_managed_alloc.restype = ctypes.c_void_p
print(memory.accel_trace_managed_alloc(ctypes.c_ssize_t(512), 0, None))
"""
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout == "None\n"


@pytest.mark.torch
def test_without_a_gpu_one_sentence_says_so() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if torch.cuda.is_available():
        pytest.skip("is about machines without a GPU")
    with pytest.raises(ManagedError, match="needs a GPU"), managed.managed_pool():
        pass


def test_ballast_is_only_for_those_who_allow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(managed.ALLOW, raising=False)
    with pytest.raises(ManagedError, match=f"set {managed.ALLOW}=1"):
        managed.ballast(MIB)

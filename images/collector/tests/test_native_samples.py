"""The patches and the samples compile for two architectures; without nvcc, that fails in CI."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from accel_trace import build
from accel_trace.toolchain import Toolchain
from native_support import NATIVE, need_tools, oldest_sanitizer

SAMPLES = sorted(path.stem for path in (NATIVE / "samples").glob("*.cu"))


@pytest.mark.parametrize("find", [need_tools, oldest_sanitizer])
def test_the_patches_compile_for_two_architectures(
    tmp_path: Path, find: Callable[[], Toolchain]
) -> None:
    tools = find()
    out = tmp_path / build.PATCHES
    build.build_patches(tools, [80, 90], out)
    data = out.read_bytes()
    assert data[:4] == b"\x50\xed\x55\xba", "a fatbin's magic"
    for mode in ("touch", "count", "hot", "trace"):
        for what in ("global", "async", "bulk_load", "bulk_store", "bulk_reduce", "tensor"):
            assert f"at_{mode}_{what}".encode() in data
    assert b"at_count_shared" in data
    assert b"at_trace_local" in data
    assert b"at_empty_access" in data
    assert (b"at_touch_tensor_load" in data) == tools.features()["AT_TENSOR"]


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_compile_for_two_architectures(tmp_path: Path, name: str) -> None:
    tools = need_tools()
    command = [
        str(tools.nvcc), "-std=c++17", "-c", f"-ccbin={tools.cxx}", *tools.includes()[2:],
        "-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90",
        "-Werror", "all-warnings", str(NATIVE / "samples" / f"{name}.cu"),
        "-o", str(tmp_path / "sample.o"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_there_are_samples() -> None:
    assert {"vector_add", "accesses", "async_copy", "bulk_copy", "process"} <= set(SAMPLES)

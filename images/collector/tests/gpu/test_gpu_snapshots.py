"""Snapshots compared on a real GPU: what PyTorch's kernels leave as it was, hashes bit for bit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from accel_trace.events import Kept, Launch
from forks import by_turns, under
from native_support import program
from test_gpu_unseen import TURNS, goal, process_of, ratio, run, training

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.timeout(600)]
SIZE = 36 << 20  # it is compared in three parts

_PROGRAM = """
import torch
from accel_trace.region import region
x = torch.arange(SIZE // 4, device="cuda", dtype=torch.float32)
y = torch.zeros_like(x)
torch.cuda.synchronize()
works = {"same": lambda: x.mul_(1.0), "half": lambda: y[: SIZE // 8].fill_(3.0),
         "copy": lambda: torch.add(x, 0.0, out=y),
         "other": lambda: y.mul_(2.0)}
for name, work in works.items():
    with region(name):
        work()
torch.cuda.synchronize()
x.cpu().numpy().tofile("FOLDER/x"); y.cpu().numpy().tofile("FOLDER/y")
print(float(y.sum()))
"""


def test_what_kernels_of_pytorch_leave_as_it_was(tmp_path: Path) -> None:
    code = _PROGRAM.replace("SIZE", str(SIZE)).replace("FOLDER", str(tmp_path))
    session = run(tmp_path / "run", code, "--set", "contexts=1", tool="unchanged_writes")
    process = process_of(session)
    regions = {e.launch: e.region for e in process.events([Launch]) if isinstance(e, Launch)}
    found = [e for e in process.events([Kept]) if isinstance(e, Kept) and e.size == SIZE]
    of = {name: [e for e in found if regions[e.launch] == name] for name in
          ("same", "half", "copy", "other")}  # fmt: skip
    text = (tmp_path / "run" / "out" / "report.txt").read_text()
    assert [e.unchanged for e in of["same"]] == [SIZE], text
    # Zeros became 3.0, 0x40400000: two bytes in four are other ones, in half of the tensor.
    assert [e.unchanged for e in of["half"]] == [SIZE - SIZE // 4], text
    assert len({(e.hash_low, e.hash_high) for e in of["copy"]}) == 1, text
    assert len(of["copy"]) == 2
    check = program("check_compare", ())
    for name, event in (("x", of["same"][0]), ("y", of["other"][0])):
        path = tmp_path / name
        said = subprocess.run([check, path, path], capture_output=True, text=True, check=True)
        assert [event.hash_low, event.hash_high] == [int(w) for w in said.stdout.split()[2:]], name
    assert "hold the same as another piece" in text


_FREED = """
import ctypes, torch
torch.zeros(1, device="cuda")
cuda, to = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
assert cuda.cuMemAlloc_v2(ctypes.byref(to), ctypes.c_size_t(64 << 20)) == 0
for size in (64 << 20, 4096):
    at = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size)) == 0
    assert cuda.cuMemFree_v2(at) == 0
    print(cuda.cuMemcpyDtoDAsync_v2(to, at, ctypes.c_size_t(size), None), cuda.cuCtxSynchronize())
"""


def test_the_driver_refuses_to_copy_what_was_freed() -> None:
    """What comparing relies on: a call gives CUDA_ERROR_INVALID_VALUE, and the context goes on.

    A small piece may lie in a block that the driver keeps; then it is copied.
    """
    done = subprocess.run(
        [sys.executable, "-c", _FREED], capture_output=True, text=True, check=True, timeout=120
    )
    large, small = done.stdout.splitlines()
    assert large == "1 0"
    assert small in ("1 0", "0 0")


@pytest.mark.timed
def test_looking_at_a_step_costs_little(tmp_path: Path, say: Callable[[str], None]) -> None:
    """Of a training step of small launches one calling context in 64: at most 1.5 times native."""
    code = training(200, "pass")
    variants = {"native": (code, None), "looked": (code, lambda at: under("unchanged_writes", at))}
    times = by_turns(tmp_path, TURNS, variants, lambda steps: sum(steps[10:]), say)
    mean, low, high = ratio(times["looked"], times["native"])
    goal(f"unchanged_writes: {mean:.3f} [{low:.3f} {high:.3f}] of native", high, low, 1.5, say)

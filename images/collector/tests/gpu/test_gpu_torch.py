"""PyTorch's handlers on a real GPU: tensors, operators, history, CUPTI, working sets of one kernel.

Programs run in processes of their own, so that counts begin at nothing. The stand-in for the
injection library only writes calls down; where launches count, the real one is used.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
from accel_trace.events import (
    Alloc,
    Event,
    Fact,
    KernelTime,
    Launch,
    Note,
    RegionEnd,
    RegionStart,
    TensorAlloc,
    TensorFree,
    Touched,
)
from torch_support import events_of, fake_library, lines_of, run_python

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.timeout(600)]
MIB = 1 << 20

# Sizes of both pools, remainders that stay with a block, other streams, a cache that is emptied.
_CHURN = """
import json, random, sys, torch
from accel_trace.handlers import torch_native
sizes = (100, 3 << 20, 11 << 20) if EARLY else ()
early = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in sizes]
hooks = torch_native.load(torch)
torch.cuda.init()
assert hooks.allocator()
chance = random.Random(7)
other = torch.cuda.Stream()
held = []
for step in range(3000):
    if held and chance.random() < 0.5:
        held.pop(chance.randrange(len(held)))
    else:
        size = chance.randrange(1, chance.choice([3_000, 1 << 20, 9 << 20, 40 << 20]))
        x = torch.empty(size, dtype=torch.uint8, device="cuda")
        if chance.random() < 0.1:
            with torch.cuda.stream(other):
                x.add_(1)
            x.record_stream(other)
        held.append(x)
    if step % 500 == 499:
        torch.cuda.empty_cache()
torch.cuda.synchronize()
torch.empty(1, device="cuda")  # has the allocator look at its events
stats = torch.cuda.memory_stats()
seen = hooks.totals(0)
print(json.dumps({
    "allocs": [seen.allocs, stats["active.all.allocated"]],
    "frees": [seen.frees, stats["active.all.freed"]],
    "allocated": [seen.allocated, stats["active_bytes.all.current"]],
    "reserved": [seen.reserved, stats["reserved_bytes.all.current"]],
    "surprises": [seen.surprises, 0],
}))
"""


def _last_json(result: subprocess.CompletedProcess[str]) -> dict[str, list[int]]:
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_tensors_are_pytorchs_own_counts(settings: str, tmp_path: Path) -> None:
    environ = {"PYTORCH_CUDA_ALLOC_CONF": settings} if settings else {}
    found = _last_json(run_python(_CHURN.replace("EARLY", "0"), tmp_path, environ=_bare(environ)))
    for what, (ours, pytorchs) in found.items():
        assert ours == pytorchs, what
    assert found["allocs"][0] > 1000


def test_what_was_there_before_is_counted_too(tmp_path: Path) -> None:
    found = _last_json(run_python(_CHURN.replace("EARLY", "1"), tmp_path, environ=_bare({})))
    assert found["allocated"][0] == found["allocated"][1]
    assert found["reserved"][0] == found["reserved"][1]
    assert found["surprises"][0] == 0


def _bare(environ: Mapping[str, str]) -> dict[str, str]:
    """With the package importable and no handler installed by itself."""
    return {"ACCEL_TRACE_HANDLERS": "none", **environ}


_MODEL = """
import torch
torch.manual_seed(0)
layer = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 64))
layer.cuda()
x = torch.randn(128, 512, device="cuda")
for _ in range(2):
    layer(x).sum().backward()
torch.cuda.synchronize()
"""


def test_operators_of_both_directions_reach_the_library(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    environ = {"ACCEL_TRACE_HANDLERS": "sanitizer,torch,operators"}
    result = run_python(_MODEL, out, environ=environ, preload=fake_library(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")
    lines = lines_of(out)
    starts = [line.split(maxsplit=2)[2] for line in lines if line.startswith("operator 1")]
    ends = [line.split(maxsplit=2)[2] for line in lines if line.startswith("operator 0")]
    assert sorted(starts) == sorted(ends)
    assert starts.count("aten::linear") == 4
    assert starts.count("aten::gelu") == 2
    assert starts.count("aten::gelu_backward") == 2
    tensors = [line for line in lines if line.startswith("tensor")]
    # The first operator on the GPU comes before its tensor: order holds without a synchronisation.
    assert lines.index(tensors[0]) > 0
    assert not [line for line in lines if line.startswith("note")], "sizes must not be estimates"


def test_the_history_equals_the_tracker(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    environ = {"ACCEL_TRACE_HANDLERS": "sanitizer,torch,memory_history"}
    result = run_python(_MODEL, out, environ=environ, preload=fake_library(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")
    online = [
        (line.split()[1] == "1", *map(int, line.split()[2:6]))
        for line in lines_of(out)
        if line.startswith("tensor")
    ]
    (events,) = events_of(out).values()
    history = [
        (isinstance(e, TensorAlloc), e.address, e.size, e.allocated, e.reserved)
        for e in events
        if isinstance(e, TensorAlloc | TensorFree)
    ]
    assert len(online) > 50
    # The history ends with the snapshot; what the end of the process frees comes after it.
    assert history == online[: len(history)]
    assert len(online) - len(history) < 50
    assert not [e for e in events if isinstance(e, Note)]


def run_tool(tool: str, code: str, folder: Path, *options: str) -> Path:
    """Run a program under a tool of the real collector; returns the folder that it wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "program.py"
    program.write_text(code)
    out = folder / "out"
    call = [sys.executable, "-m", "accel_trace", "run", "--tool", tool, "--out", str(out)]
    call += [*options, "--", sys.executable, str(program)]
    said = subprocess.run(call, capture_output=True, text=True, timeout=500, check=False)
    assert said.returncode == 0, said.stderr
    return out


def record(tool: str, code: str, folder: Path, *options: str) -> list[Event]:
    """The events of the only log with launches of a program that ran under a tool."""
    logs = [
        events
        for events in events_of(run_tool(tool, code, folder, *options)).values()
        if any(isinstance(e, Launch) for e in events)
    ]
    assert len(logs) == 1
    return logs[0]


_ONE = """
import torch
torch.backends.cudnn.enabled = False
torch.backends.cuda.matmul.allow_tf32 = False
from accel_trace.region import region
a = torch.randn(1024, 1024, device="cuda")
b = torch.randn(1024, 2048, device="cuda")
image = torch.randn(1, 16, 256, 256, device="cuda")
weight = torch.randn(32, 16, 3, 3, device="cuda")
def work():
    WORK
work()
torch.cuda.synchronize()
with region("one"):
    keep = work()
torch.cuda.synchronize()
"""
# Operator, and the bytes of each tensor that its kernels must touch between them.
_WORKS = {
    "return torch.mm(a, b)": (4 * MIB, 8 * MIB, 8 * MIB),
    "return torch.add(a, a)": (4 * MIB, 4 * MIB),
    # im2col writes columns of 16*3*3 x 65536 floats, and the product reads them.
    "return torch.conv2d(image, weight, padding=1)": (4 * MIB, 36 * MIB, 8 * MIB, 18432),
}


@pytest.mark.parametrize("work", _WORKS)
def test_the_working_set_of_one_operator_is_its_tensors(work: str, tmp_path: Path) -> None:
    events = record("working_set", _ONE.replace("WORK", work), tmp_path, "--region", "one")
    inside = False
    launches = set()
    for event in events:
        if isinstance(event, RegionStart | RegionEnd):
            inside = isinstance(event, RegionStart)
        elif isinstance(event, Launch) and inside:
            assert event.region == "one"
            assert event.analysed == 1
            launches.add(event.launch)
    assert launches
    touched = {
        (e.address, e.size)
        for e in events
        if isinstance(e, Touched) and e.launch in launches and e.what == 1
    }
    sizes = sorted(size for _, size in touched)
    expected = sorted(-(-size // 512) * 512 for size in _WORKS[work])
    for size in expected:
        assert size in sizes, (size, sizes)
        sizes.remove(size)
    # What is left can only be the workspace of the matrix library.
    assert len(sizes) <= 1, sizes
    elsewhere = [e for e in events if isinstance(e, Touched) and (e.address, e.size) == (0, 0)]
    assert not [e for e in elsewhere if e.launch in launches]


def test_regions_and_operators_are_said_with_each_launch(tmp_path: Path) -> None:
    code = _ONE.replace("WORK", "return torch.mm(a, b)")
    events = record("event_trace", code, tmp_path)
    launches = [e for e in events if isinstance(e, Launch)]
    assert {e.region for e in launches} == {"", "one"}
    assert {e.operator for e in launches if e.region} == {"aten::mm"}


def test_cupti_counts_the_kernels_that_the_sanitizer_counts(tmp_path: Path) -> None:
    launches = [
        e for e in record("event_trace", _MODEL, tmp_path / "sanitizer") if isinstance(e, Launch)
    ]
    out = tmp_path / "cupti"
    out.mkdir()
    cupti = find_spec("cupti")
    assert cupti is not None, "cupti-python is part of what the collector runs on"
    environ = {
        "ACCEL_TRACE_HANDLERS": "cupti",
        "PYTHONPATH": str(Path(str(cupti.origin)).parents[1]),
    }
    result = run_python(_MODEL, out, environ=environ)
    assert (result.returncode, result.stderr) == (0, "")
    (events,) = events_of(out).values()
    kernels = [e for e in events if isinstance(e, KernelTime)]
    assert [e.launch for e in kernels] == list(range(len(kernels)))
    assert len(kernels) == len(launches)
    assert [e.name for e in kernels] == [e.name for e in launches]
    assert all(e.end_ns > e.start_ns for e in kernels)
    allocs = [e for e in events if isinstance(e, Alloc)]
    assert any(e.size == 2 * MIB for e in allocs)  # PyTorch's segment of small blocks
    assert any(isinstance(e, Fact) and e.name == "cupti" for e in events)


def test_cupti_beside_the_sanitizer_is_refused_and_the_program_runs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    environ = {"ACCEL_TRACE_HANDLERS": "sanitizer,cupti"}
    result = run_python(_MODEL + "print('ran')", out, environ=environ)
    assert (result.returncode, result.stdout) == (0, "ran\n")
    (events,) = events_of(out).values()
    assert any(isinstance(e, Note) and "cannot both follow" in e.text for e in events)


def test_the_stack_of_a_launch_joins_python_and_cpp(tmp_path: Path) -> None:
    code = """
import torch
def forward(a):
    return torch.mm(a, a)
def main():
    a = torch.ones(64, 64, device="cuda")
    for _ in range(3):
        forward(a)
    torch.cuda.synchronize()
main()
"""
    out = run_tool("call_stack", code, tmp_path, "--set", "of=launches")
    report = (out / "report.txt").read_text()
    assert "python: forward " in report
    assert "python: main " in report
    assert "native:" in report

"""Filters, stacks, and everything that may happen to a process: the target is never disturbed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from accel_trace import events as ev
from accel_trace.session import Session
from native_support import START, bench, launch, parse, play, touched

A = 0x7F0000000000
READ = f"global 1 4 {A:#x} 4 1"
ALLOC = f"alloc 1 {A:#x} 4096"
MODES = ["events", "sync", "empty", "count", "touch", "hot", "trace"]
WORK = [*START, ALLOC, *launch(READ), "copy 1 0x10 0x20 64 2 1", "set 1 0x30 10 2 4 7", "sync 1",
        "sync_context 1", "lazy 1 3", "unload 1", f"free 1 {A:#x}"]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_reports_the_same_events(tmp_path: Path, mode: str) -> None:
    run = play([*WORK, "print done"], tmp_path, mode)
    assert (run.stdout, run.stderr) == ("done\n", "")
    log = run.log
    assert log.whole
    assert log.facts()["mode"] == mode
    patched = mode not in ("events", "sync")
    analysed = int(mode in ("count", "touch", "hot", "trace"))
    stream = log.of(ev.Launch)[0].stream
    context = log.of(ev.Context)[0].context
    module = log.of(ev.Module)[0].module
    expected: list[ev.Event] = [
        ev.Context(context=context, device=0, created=1),
        ev.Module(module=module, context=context, loaded=1, patched=patched, result=0, size=4242),
        ev.Alloc(address=A, size=4096, device=0, flags=0, stream=0),
        ev.Launch(
            launch=0, name="kernel", device=0, stream=stream, context=context, grid_x=3, grid_y=1,
            grid_z=1, block_x=32, block_y=1, block_z=1, analysed=analysed, thread=log.pid,
            operator="", region="",
        ),
        *([ev.LaunchEnd(launch=0)] if mode not in ("events", "empty") else []),
        ev.Memcpy(
            destination=0x10, source=0x20, size=64, direction=2, asynchronous=1, stream=stream,
        ),
        ev.Memset(address=0x30, size=80, value=7, element=4, asynchronous=1, stream=stream),
        ev.Sync(what=1, stream=stream),
        ev.Sync(what=2, stream=0),
        ev.Module(module=module, context=context, loaded=0, patched=patched, result=0, size=4242),
        ev.Free(address=A, size=4096, device=0, flags=0, stream=0),
    ]  # fmt: skip
    kinds = (*(type(event) for event in expected), ev.LaunchEnd)
    got = [event for event in log.events if isinstance(event, kinds)]
    for event, want in zip(got, expected, strict=True):
        plain = {name: getattr(event, name) for name in event.__dataclass_fields__}
        assert plain | {"clock": 0, "ns": 0} == {
            name: getattr(want, name) for name in want.__dataclass_fields__
        }
    clocks = [event.clock for event in log.events]
    assert clocks == list(range(1, len(clocks) + 1)), "every event advances the clock by one"
    assert log.facts()["lazy_functions"] == "3"
    assert {t.stage for t in log.of(ev.Timer)} == {"collection", "transfer", "analysis"}


def test_modes_that_wait_for_each_launch_and_those_that_do_not(tmp_path: Path) -> None:
    script = [*START, ALLOC, *launch(READ) * 10]
    waits = {}  # mode touch sends the page table once, and waits once, at the end
    for mode in ("events", "empty", "sync", "trace", "touch"):
        timers = play(script, tmp_path, mode).log.of(ev.Timer)
        waits[mode] = next(timer.count for timer in timers if timer.stage == "collection")
    assert waits == {"events": 0, "empty": 0, "sync": 10, "trace": 10, "touch": 2}


def test_allocations_that_are_not_the_programs_are_left_out(tmp_path: Path) -> None:
    script = [
        *START, "alloc 1 0x7f0000000000 0", "alloc 1 0x7f0000001000 512 0x40",
        "alloc 1 0x7f0000002000 512 0x1", "alloc 1 0x7f0000003000 512 0 host",
        "alloc 1 0x7f0000004000 512 0 async", "free 1 0x7f0000004000 512 0 async",
        "free 1 0x7f0000004000 512 0 async_done", "free 1 0x7f0000001000 512 0x40",
        "free 1 0x7f0000009000", "destroy 1",
    ]  # fmt: skip
    log = play(script, tmp_path).log
    assert [(a.address & 0xFFFF, a.flags) for a in log.of(ev.Alloc)] == [
        (0x2000, 1), (0x3000, 8), (0x4000, 0)]  # fmt: skip
    assert [f.address & 0xFFFF for f in log.of(ev.Free)] == [0x4000, 0x2000, 0x3000]


FILTERED = [
    *START, ALLOC, *launch(READ, name="_Z4gemmPf"), "region start outer", "region start warm",
    *launch(READ, name="relu"), "operator start aten::mm", *launch(READ, name="_Z4gemmPf"),
    "operator start aten::copy_", "operator end", "region end warm", *launch(READ, name="relu"),
    "operator end", "region end outer", *launch(READ, name="_Z4gemmPf"), *launch(READ, name="relu"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "analysed"),
    [
        ({}, [1, 1, 1, 1, 1, 1]),
        ({"range": "1:3"}, [0, 1, 1, 0, 0, 0]),
        ({"range": "4:"}, [0, 0, 0, 0, 1, 1]),
        ({"range": ":1"}, [1, 0, 0, 0, 0, 0]),
        ({"kernels": r"gemm\(float"}, [1, 0, 1, 0, 1, 0]),
        ({"kernels": "^_Z4"}, [1, 0, 1, 0, 1, 0]),
        ({"region": "warm"}, [0, 1, 1, 0, 0, 0]),
        ({"region": "outer"}, [0, 1, 1, 1, 0, 0]),
        ({"sample": 3}, [1, 0, 0, 1, 0, 0]),
        ({"sample": 2, "kernels": "relu"}, [0, 1, 0, 0, 0, 1]),
        ({"region": "outer", "range": "2:"}, [0, 0, 1, 1, 0, 0]),
    ],
)
@pytest.mark.parametrize("mode", ["touch", "trace"])
def test_filters(
    tmp_path: Path, mode: str, settings: dict[str, object], analysed: list[int]
) -> None:
    log = play(FILTERED, tmp_path, mode, **settings).log
    launches = log.of(ev.Launch)
    assert [x.analysed for x in launches] == analysed
    assert {t.launch for t in log.of(ev.Touched)} == {i for i, a in enumerate(analysed) if a}
    assert [x.region for x in launches] == ["", "warm", "warm", "outer", "", ""]
    assert [x.operator for x in launches] == ["", "", "aten::mm", "aten::mm", "", ""]
    assert [(o.name, o.index) for o in log.of(ev.OperatorEnd)] == [
        ("aten::copy_", 1),
        ("aten::mm", 0),
    ]


def test_the_stack_of_a_launch(tmp_path: Path) -> None:
    script = [*START, *launch() * 3]
    log = play(script, tmp_path, "events", handlers="sanitizer,stacks", stack_launch=1).log
    (native,) = log.of(ev.Stack)
    assert native.launch == 1
    frames = native.text.split("\n")
    assert all(frame.startswith("native:") for frame in frames)
    assert any(
        "synthetic::launch" in frame and "libsanitizer-public.so" in frame for frame in frames
    )
    assert "libacceltrace" not in native.text


def test_a_callback_writes_the_stack_itself(tmp_path: Path) -> None:
    script = [*START, "callback", *launch() * 3]
    log = play(script, tmp_path, "events", handlers="sanitizer,stacks", stack_launch=1).log
    (stack,) = log.of(ev.Stack)
    assert (stack.launch, stack.text) == (1, "python:train.py:7 step")


def test_a_rank_of_a_distributed_job_is_known_by_its_number(tmp_path: Path) -> None:
    run = play([*START, *launch()], tmp_path, "events", RANK=3)
    assert run.log.facts()["RANK"] == "3"
    assert Session(run.log.path.parent).processes[0].label == "3"


def test_tensors_and_facts_from_handlers(tmp_path: Path) -> None:
    script = [
        "fact torch 2.13",
        "region start step",
        f"tensor {A:#x} 512",
        f"untensor {A:#x}",
        "ready",
    ]
    run = play(script, tmp_path, "events", handlers="torch,operators")
    assert run.stdout == "ready 1 launches 0\n"
    assert run.log.facts()["torch"] == "2.13", "what came before the first event is kept"
    (alloc,), (free,) = run.log.of(ev.TensorAlloc), run.log.of(ev.TensorFree)
    assert (alloc.size, alloc.allocated, free.size, free.allocated) == (512, 512, 512, 0)
    assert [r.name for r in run.log.of(ev.RegionStart)] == ["step"]
    assert "sanitizer" not in run.log.facts(), "that handler was not asked for"


@pytest.mark.parametrize(
    ("end", "code", "whole"),
    [("exit 7", 7, True), ("leave 9", 9, True), ("abort", -signal.SIGABRT, False),
     ("kill", -signal.SIGKILL, False)],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["events", "touch"])
def test_ends_of_a_process(tmp_path: Path, mode: str, end: str, code: int, whole: bool) -> None:
    run = play([*WORK, "print out", "pause 30", "sync 1", end], tmp_path, mode, ok=False)
    assert (run.returncode, run.stdout) == (code, "out\n")
    log = run.log
    assert log.whole == whole
    assert log.status["state"] == ("closed" if whole else "open")
    assert len(log.of(ev.Launch)) == 1, "what happened before the end was written"
    if mode == "touch" and whole:
        assert touched(log, 0) == [(A, 4096)]


@pytest.mark.parametrize("mode", ["events", "touch", "trace"])
def test_forks(tmp_path: Path, mode: str) -> None:
    """A child has a log of its own from its own first event on, and leaves the parent's alone."""
    script = [
        "fork", "print early", "joined",
        *START, ALLOC, *launch(READ), "region start r",
        "fork", "print child", "context 1 0", "module 1 1", "stream 1 1", f"alloc 1 {A:#x} 512",
        *launch(READ, name="in_child"), "ready", "exit 4", "joined",
        "fork", "leave 6", "joined", "vfork", "joined",
        *launch(READ, name="after"), "ready",
    ]  # fmt: skip
    run = play(script, tmp_path, mode)
    assert run.stdout.split("\n") == [
        "early", "child 0", "child", "ready 1 launches 1", "child 4", "child 6", "child 5",
        "ready 1 launches 2", "",
    ]  # fmt: skip
    child, parent = sorted(run.logs, key=lambda log: len(log.of(ev.Launch)))
    assert [x.name for x in parent.of(ev.Launch)] == ["kernel", "after"]
    assert [(x.name, x.launch, x.region) for x in child.of(ev.Launch)] == [("in_child", 0, "r")]
    assert parent.whole
    assert child.whole
    assert parent.pid != child.pid
    if mode != "events":
        assert touched(parent, 1) == [(A, 4096)]
        assert touched(child, 0) == [(A, 512)]


def test_a_program_without_cuda_leaves_nothing(tmp_path: Path) -> None:
    run = play("", tmp_path, program=[sys.executable, "-c", "print('plain')"])
    assert (run.stdout, run.stderr) == ("plain\n", "")
    assert list(run.folder.iterdir()) == []


def test_exec_keeps_the_process_number_and_gets_another_log(tmp_path: Path) -> None:
    made = bench()
    (tmp_path / "script").write_text("\n".join(WORK))
    command = (
        f"{made.scenario} < {tmp_path / 'script'}; exec {made.scenario} < {tmp_path / 'script'}"
    )
    run = play("", tmp_path, program=["/bin/sh", "-c", command])
    assert len(run.logs) == 2
    assert all(log.whole for log in run.logs)
    # The same number twice, as after an exec of a program that had used CUDA.
    first = run.logs[0].path
    env = {**os.environ, "ACCEL_TRACE_OUT": str(run.folder), "LD_PRELOAD": str(made.library),
           "ACCEL_TRACE_SANITIZER": str(made.driver)}  # fmt: skip
    code = (
        "import os, shutil, sys\n"
        f"shutil.copy('{first}', '{run.folder}/trace-%d.atl' % os.getpid())\n"
        f"os.dup2(os.open('{tmp_path / 'script'}', os.O_RDONLY), 0)\n"
        f"os.execv('{made.scenario}', ['scenario'])\n"
    )
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
    (second,) = run.folder.glob("trace-*.2.atl")
    assert parse(second).whole


@pytest.mark.parametrize("mode", ["touch", "count"])
def test_a_drain_beside_callbacks(tmp_path: Path, mode: str) -> None:
    """The driver holds a lock of its own around callbacks, and wants it for what a drain asks."""
    script = [*START, f"alloc 1 {A:#x} 512", *launch(READ)[:-1], "flushes 2000"]
    log = play(script, tmp_path, mode, SYNTHETIC_LOCKS="1").log
    assert [x.analysed for x in log.of(ev.Launch)] == [1] * 2000
    assert [n.text for n in log.of(ev.Note) if "tensor map" not in n.text] == []


def test_many_threads(tmp_path: Path) -> None:
    for mode in ("touch", "trace"):
        log = play([*START, "threads 4 120"], tmp_path, mode, workers=2).log
        launches = log.of(ev.Launch)
        assert len(launches) == 480
        assert sorted(x.launch for x in launches) == list(range(480))
        assert all(x.analysed and x.operator == "op" for x in launches)
        of_thread: dict[int, int] = {}
        for x in launches:
            kernel = int(x.name.removeprefix("kernel"))
            i = of_thread.get(kernel, 0)
            of_thread[kernel] = i + 1
            base = A + kernel * 0x1000000 + i % 3 * 0x100000
            assert touched(log, x.launch) == [(base, 65536)]
        assert of_thread == dict.fromkeys(range(4), 120)
        assert len(log.of(ev.Free)) == 480


def test_only_the_interface_is_seen_from_outside() -> None:
    """Preloaded, anything else would stand before the target's own functions."""
    done = subprocess.run(
        ["nm", "-D", "--defined-only", str(bench().library)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    names = {line.split()[-1] for line in done.stdout.splitlines()}
    assert {n for n in names if not n.startswith("accel_trace_")} == {
        "InitializeInjection", "_exit", "_Exit", "abort"}  # fmt: skip
    assert {n.removeprefix("accel_trace_") for n in names if n.startswith("accel_trace_")} == {
        "ready", "tensor", "operator", "region", "step", "stack", "note", "fact", "launches",
        "flush", "set_follow_callback", "set_stack_callback"}  # fmt: skip

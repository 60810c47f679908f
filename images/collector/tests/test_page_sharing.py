"""The tool page_sharing: real faults of the CPU beside a synthetic GPU's accesses; the report."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from accel_trace import tools
from accel_trace.cpu.recorded import has_cpu, read
from accel_trace.cpu.watch import build
from accel_trace.events import ManagedCounter, Stack
from accel_trace.launch import Filters, LaunchError, environment
from accel_trace.reporting import make_report, open_sessions
from accel_trace.session import Session
from accel_trace.tools.base import Needs, Report
from accel_trace.uvm.sharing import CPU, GPU, SIZES, Windows, windows_of
from accel_trace.uvm.sharing_map import page
from accel_trace.uvm.touches import Managed, timeline
from collector_logs import session
from native_support import START, WRITE, Run, bench, launch, play

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="steps x86-64 only")
A = 0x200000000000  # on a page of 2 MiB of its own
PAGE = 4096
MANAGED = 2


def gpu_writes(address: int, count: int = 1, name: str = "update") -> list[str]:
    return [*launch(f"global {WRITE} 4 {address:#x} 4 {count}", name=name), "sync 1"]


def memory(address: int, size: int, where: str) -> list[str]:
    return [f"memory {address:#x} {-(-size // PAGE) * PAGE} 0", f"region start {where}",
            f"alloc 1 {address:#x} {size} {MANAGED}", f"region end {where}"]  # fmt: skip


# Cells that alternate sides on two pages; one page with a number that both write; and one that the
# CPU has alone. Three rounds.
ROUND = [
    f"cpu w 4 {A + 8:#x}", f"cpu w 4 {A + PAGE + 8:#x}", f"cpu r 8 {A + 2 * PAGE:#x}",
    f"cpu w 8 {A + 3 * PAGE:#x}",
    *launch(f"global {WRITE} 4 {A:#x} {PAGE} 2", name="update"),
    *launch(f"global {WRITE} 4 {A + 2 * PAGE + 4:#x} 4 1", name="sum"), "sync 1",
]  # fmt: skip
PROGRAM = [*START, *memory(A, 2 * PAGE, "cells"), *memory(A + 2 * PAGE, PAGE, "total"),
           *memory(A + 3 * PAGE, PAGE, "private"), *ROUND * 3]  # fmt: skip


def watched(script: list[str], folder: Path, cpu: str = "bytes", **settings: object) -> Run:
    preload = f"{bench().library}:{build()}"
    return play(script, folder, "values", LD_PRELOAD=preload, cpu=cpu, stack_launch="all",
                handlers="sanitizer,stacks,cpu", **settings)  # fmt: skip


def report(run: Run, out: Path, **settings: object) -> Report:
    tool = tools.find("page_sharing")({"driver": False, **settings}, out)
    return make_report(tool, open_sessions(run.folder))


def test_pages_are_told_apart_and_faults_counted(tmp_path: Path) -> None:
    run = watched(PROGRAM, tmp_path)
    made = report(run, tmp_path / "report")
    found = {
        (r.metric, r.labels["page"], r.labels.get("kind") or r.labels.get("side")): r.samples[0]
        for r in made.records
        if "page" in r.labels
    }
    assert {k: v for k, v in found.items() if v and k[1] == PAGE} == {
        ("pages", PAGE, "false"): 2, ("pages", PAGE, "true"): 1, ("pages", PAGE, "cpu"): 1,
        ("faults", PAGE, "cpu"): 3 * 3 + 1, ("faults", PAGE, "gpu"): 3 * 3,
    }  # fmt: skip
    for size in SIZES[1:]:  # all lie on one page: one fault a turn
        assert (found["pages", size, "true"], found["faults", size, "cpu"]) == (1, 3)
        assert found["faults", size, "gpu"] == 3
    assert (
        "cells: falsely shared, 12 of 19 estimated faults (63%); give what the CPU and" in made.text
    )
    assert "total: truly shared, 6 of 19 estimated faults (32%); keep it on one side" in made.text
    assert "not seen" not in made.text
    rows = list(csv.DictReader(made.files[0].read_text().splitlines()))
    assert {(r["objects"], r["kind"], r["cpu_faults"], r["gpu_faults"]) for r in rows[:4]} == {
        ("cells", "false", "3", "3"), ("total", "true", "3", "3"), ("private", "cpu", "1", "0"),
    }  # fmt: skip


def test_one_tree_has_the_callers_of_both_sides(tmp_path: Path) -> None:
    """The host's function that makes the CPU's accesses is the caller of the launches, too."""
    run = watched(PROGRAM, tmp_path)
    assert len(run.log.of(Stack)) == 6
    made = report(run, tmp_path)
    folded = next(path for path in made.files if path.suffix == ".folded").read_text()
    rows = [line.rpartition(" ")[0].split(";") for line in folded.splitlines()]
    ends = {row[-1].split()[-2] + " " + row[-1].split()[-1]: row for row in rows}
    assert set(ends) == {"CPU write", "CPU read", "GPU write"}
    kernels = {frame for row in rows for frame in row if frame.startswith("kernel: ")}
    assert kernels == {"kernel: update", "kernel: sum"}
    main = "native: main in scenario"
    play_ = [frame for frame in ends["CPU write"] if "::play(" in frame or "Player::play" in frame]
    assert main in ends["CPU write"]
    assert main in ends["GPU write"]
    assert play_
    assert play_[0] in ends["GPU write"], "one node has both"
    assert sum(int(line.rpartition(" ")[2]) for line in folded.splitlines()) == 19


def test_windows_end_where_the_program_waits(tmp_path: Path) -> None:
    """The CPU writes behind a wait what the GPU wrote before it: nothing is shared in a window."""
    script = [*START, *memory(A, PAGE, "moved"), *gpu_writes(A), f"cpu w 4 {A:#x}"]
    made = report(watched(script, tmp_path), tmp_path)
    assert "1 both, never in one window; estimated faults: 1 of the CPU, 1 of the GPU" in made.text
    assert "moved: both, never in one window, 2 of 2" in made.text


def test_mode_pages_sees_first_accesses_of_each_window(tmp_path: Path) -> None:
    script = [*START, *memory(A, 2 * PAGE, "cells")]
    for _ in range(2):
        script += [f"cpu w 4 {A + 8:#x}", f"cpu w 4 {A + 16:#x}", *gpu_writes(A)]
    run = watched(script, tmp_path, "pages")
    assert len(read(run.folder, run.log.pid)) == 2
    made = report(run, tmp_path)
    assert "1 shared, bytes not known; estimated faults: 2 of the CPU, 2 of the GPU" in made.text
    assert "see with cpu=bytes whether it is true sharing" in made.text


def test_mode_pages_says_where_a_copy_ends_a_window(tmp_path: Path) -> None:
    """The recorder is told of waits alone, so no page is closed behind a copy."""
    host = A + (1 << 20)
    script = [*START, f"memory {host:#x} {PAGE} 0", *memory(A, PAGE, "one"), f"cpu w 4 {A:#x}",
              f"copy 1 {host:#x} {A:#x} 64 3 0", f"cpu w 4 {A:#x}"]  # fmt: skip
    run = watched(script, tmp_path, "pages")
    assert len(read(run.folder, run.log.pid)) == 1
    assert "not seen: 1 copies that the program waits for end windows" in report(run, tmp_path).text
    assert "copies that" not in report(watched(script, tmp_path), tmp_path).text


def test_page_faults_of_the_kernels_own_count(tmp_path: Path) -> None:
    """Memory that is given back (its pages are new again) faults once a page, and is not closed."""
    script = [*START, f"memory {A:#x} {2 * PAGE} 0", f"memory {A:#x} {2 * PAGE} fresh",
              f"alloc 1 {A:#x} {2 * PAGE} {MANAGED}", f"cpu w 4 {A:#x}", f"cpu w 4 {A + 8:#x}",
              f"cpu w 4 {A + PAGE:#x}", *gpu_writes(A), f"cpu w 4 {A:#x}"]  # fmt: skip
    run = watched(script, tmp_path, "faults")
    if "cannot be protected" in run.log.notes():
        pytest.skip("perf's page faults are forbidden here")
    seen = read(run.folder, run.log.pid)
    assert [(int(a) - A, int(f)) for a, f in zip(seen.address, seen.flags, strict=True)] == [
        (0, 3), (PAGE, 3),
    ]  # fmt: skip
    text = report(run, tmp_path).text
    assert "1 shared, bytes not known" in text
    assert "CPU page fault" in text
    assert "perf tells page faults alone" in text


def test_memory_can_be_open_while_the_gpu_works(tmp_path: Path) -> None:
    """From a launch, copy or fill to the wait for it."""
    script = [*START, *memory(A, PAGE, "one"), f"cpu w 4 {A:#x}",
              *launch(f"global {WRITE} 4 {A:#x} 4 1"), f"cpu w 4 {A + 4:#x}", "sync 1",
              f"cpu w 4 {A + 8:#x}", f"set 1 {A:#x} 8 1 1 0", f"cpu w 4 {A + 12:#x}", "sync 1",
              f"cpu w 4 {A + 16:#x}"]  # fmt: skip
    run = watched(script, tmp_path, cpu_open=1)
    assert [int(a) - A for a in read(run.folder, run.log.pid).address] == [0, 8, 16]
    assert "not seen: while the GPU worked memory was open" in report(run, tmp_path).text
    needs = tools.find("page_sharing")({"open": True}, tmp_path).needs_of(1, [])
    assert needs.environment["ACCEL_TRACE_CPU_OPEN"] == "1"
    closed = watched(script, tmp_path)
    assert len(read(closed.folder, closed.log.pid)) >= 5


def test_memory_that_is_freed_is_left_alone(tmp_path: Path) -> None:
    script = [*START, *memory(A, PAGE, "one"), f"cpu w 4 {A:#x}", f"free 1 {A:#x}",
              f"cpu w 4 {A + 4:#x}", *memory(A, PAGE, "two"), f"cpu w 4 {A + 8:#x}"]  # fmt: skip
    run = watched(script, tmp_path)
    assert [int(a) - A for a in read(run.folder, run.log.pid).address] == [0, 8]


def test_faults_are_those_of_the_object_that_lived_then(tmp_path: Path) -> None:
    """Three objects at one address, one after another; nobody touches the second."""
    turn = [f"cpu w 4 {A + 8:#x}", *gpu_writes(A), f"cpu w 4 {A + 8:#x}", *gpu_writes(A)]
    gone = f"free 1 {A:#x}"
    script = [*START, *memory(A, PAGE, "first"), *turn, gone, *memory(A, PAGE, "idle"), gone,
              *memory(A, PAGE, "last"), *turn, *turn]  # fmt: skip
    made = report(watched(script, tmp_path), tmp_path)
    assert "  first: falsely shared, 4 of 12 estimated faults" in made.text
    assert "  last: falsely shared, 8 of 12 estimated faults" in made.text
    table, picture, _ = made.files
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert {row["objects"] for row in rows} == {"first and last"}
    assert "first, last" in picture.read_text()
    assert "idle" not in made.text + picture.read_text()


def test_memory_that_cannot_be_protected_is_said(tmp_path: Path) -> None:
    run = watched([*START, f"alloc 1 0x7e0000000000 {PAGE} {MANAGED}", *gpu_writes(0x7E0000000000)],
                  tmp_path)  # fmt: skip
    assert (
        "accesses of the CPU to 4096 managed bytes are not seen: they cannot be protected "
        "(Cannot allocate memory)"
    ) in run.log.notes()
    assert "1 GPU only" in report(run, tmp_path).text


def test_without_the_recorder_the_report_says_so(tmp_path: Path) -> None:
    run = play([*START, *memory(A, PAGE, "one"), *gpu_writes(A)], tmp_path, "values")
    assert not has_cpu(run.folder, run.log.pid)
    made = report(run, tmp_path)
    assert "not seen: accesses of the CPU were not recorded" in made.text
    plain = play([*START, f"memory {A:#x} 4096 0", f"alloc 1 {A:#x} 4096"], tmp_path, "values")
    assert "allocated no managed memory" in report(plain, tmp_path).text


def test_copies_and_fills_of_managed_memory_are_the_drivers(tmp_path: Path) -> None:
    script = [*START, *memory(A, 3 * PAGE, "one"), f"memory {A + (1 << 20):#x} 4096 0",
              f"cpu w 4 {A:#x}", f"set 1 {A:#x} {2 * PAGE} 1 1 0"]  # fmt: skip
    run = watched(script, tmp_path)
    (process,) = Session(run.folder).processes
    found = timeline(process)
    mine = found.touches.take(found.touches.side == GPU)
    assert (mine.address.tolist(), mine.size.tolist()) == ([A], [2 * PAGE])
    assert found.paths[int(mine.context[0])] == ("fill: after the start",)
    theirs = found.touches.take(found.touches.side == CPU)
    assert theirs.address.tolist() == [A], "the CPU's own access alone"


def test_the_drivers_counts_stand_beside_the_estimate(tmp_path: Path) -> None:
    """Pass 1 is CUPTI's, of a program in Python; here its log is made up."""

    def counter(what: str, value: int) -> ManagedCounter:
        return ManagedCounter(what=what, value=value, start_ns=1, end_ns=2, address=A, device=0)

    first = session(
        tmp_path / "pass-1", counter("CPU_PAGE_FAULT_COUNT", 3), counter("CPU_PAGE_FAULT_COUNT", 4),
        counter("GPU_PAGE_FAULT", 9), counter("THRASHING", 4096),
    )  # fmt: skip
    second = Session(watched(PROGRAM, tmp_path).folder)
    tool = tools.find("page_sharing")({}, tmp_path)
    assert [tool.needs_of(n, []).handlers for n in (0, 1)] == [
        ("cupti",), ("sanitizer", "stacks", "cpu"),
    ]  # fmt: skip
    made = make_report(tool, [first, second])
    assert (
        "the driver's own counts (CUPTI, in a run of its own): 7 CPU page faults, 9 GPU page "
        "faults, 1 thrashing"
    ) in made.text
    assert (
        "estimated over counted, pages of 4 KiB: 1.43 of the CPU's, 1.00 of the GPU's" in made.text
    )
    over = {(r.labels["page"], r.labels["side"]): r.samples[0] for r in made.records
            if r.metric == "estimate"}  # fmt: skip
    assert over[SIZES[2], "cpu"] == 3 / 7
    counts = {r.labels["counter"]: r.samples[0] for r in made.records if r.metric == "driver"}
    assert (counts["CPU_PAGE_FAULT_COUNT"], counts["REMOTE_MAP"]) == (7, 0)
    (tmp_path / "none").mkdir()
    assert (
        "the driver's own counts are not known"
        in make_report(tool, [Session(tmp_path / "none"), second]).text
    )


def test_the_recorder_is_preloaded_beside_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = tools.find("page_sharing")({"driver": False, "cpu": "pages"}).needs_of(0, [])
    env = environment({"LD_PRELOAD": f"mine.so {build()}"}, needs, Filters(), tmp_path, tmp_path)
    assert env["LD_PRELOAD"].split(":") == [
        "mine.so", str(tmp_path / "libacceltrace.so"), str(build().resolve()),
    ]  # fmt: skip
    assert (env["ACCEL_TRACE_CPU"], env["ACCEL_TRACE_STACK_LAUNCH"]) == ("pages", "all")
    assert str(build()) not in environment({}, Needs(), Filters(), tmp_path, tmp_path)["LD_PRELOAD"]
    monkeypatch.setenv("ACCEL_TRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "no-compiler")
    with pytest.raises(LaunchError, match=r"accesses of the CPU cannot be recorded: no C\+\+"):
        environment({}, needs, Filters(), tmp_path, tmp_path)


@pytest.mark.parametrize("count", [1, 5, 500, 3000])
def test_the_map_has_a_band_for_neighbours_with_one_history(count: int) -> None:
    """Beyond 1000 pages those of one side alone are counted and not drawn."""
    number = np.arange(count, dtype=np.int64)
    objects = [Managed(0, PAGE * count, "a <b>")]
    same = Windows(PAGE, number * 0, number, np.full(count, 8), number * 0)
    text = page([same], objects, "A & B")
    assert text.count("<i ") == 1
    assert "GPU only</span>" in text, "the legend has what is there"
    assert text.count("<rect") == (count <= 1000)
    assert ("3000 more pages that are not drawn" in text) == (count > 1000)
    assert ("a &lt;b&gt;" in text) == (count <= 1000)
    assert (f"({count})<title>" in text) == (1 < count <= 1000)
    assert "A &amp; B" in text
    in_turns = Windows(PAGE, number * 0, number, np.where(number % 2, 8, 2), number * 0)
    assert page([in_turns], objects, "").count("<rect") == (count if count <= 1000 else 0)
    assert page([windows_of(timeline_of_nothing()).at(SIZES[1])], [], "empty").count("<rect") == 0


def timeline_of_nothing():
    from accel_trace.uvm.sharing import Touches

    none = np.zeros(0, np.int64)
    return Touches(none.astype(np.uint8), none, none, none, none, none.astype(bool), none)


def test_the_command_runs_a_program_and_reports(tmp_path: Path) -> None:
    """The whole way by the command line, on the synthetic driver; output and exit code stay."""
    made = bench()
    (made.folder / "patches.fatbin").touch()
    done = subprocess.run(
        [sys.executable, "-m", "accel_trace", "run", "--tool", "page_sharing", "--set",
         "driver=false", "--no-probe", "--library", made.folder, "--out", tmp_path / "out", "--",
         made.scenario],
        input="\n".join([*PROGRAM, "print over"]), capture_output=True, text=True, check=False,
        env=os.environ | {"ACCEL_TRACE_SANITIZER": str(made.driver)}, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr
    assert "cells: falsely shared, 12 of 19 estimated faults (63%)" in done.stderr
    assert "native: main in scenario" in done.stderr
    again = subprocess.run(
        [sys.executable, "-m", "accel_trace", "report", tmp_path / "out"], capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert "total: truly shared, 6 of 19 estimated faults (32%)" in again.stdout

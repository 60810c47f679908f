"""The mini of shared pages: its replay, its real CPU accesses, and the program on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from accel_trace import tools
from accel_trace.cpu import recorded as cpu
from accel_trace.cpu.watch import build as recorder
from accel_trace.events import MEMORY_FLAGS, Alloc, Free, RegionEnd, RegionStart
from accel_trace.log_writer import LogWriter
from accel_trace.reporting import make_report, open_sessions
from accel_trace.session import Session
from accel_trace.uvm.sharing import CPU, GPU, KINDS, SIZES, faults_of, windows_of
from accel_trace.uvm.sharing_map import owners
from accel_trace.uvm.touches import Timeline, timeline
from accel_trace.values.accesses import read_values
from native_support import need_tools
from reprokit.records import RecordWriter
from valueexpert import build, traces
from valueexpert.catalog import KIND_OF, ROUNDS, SHARING
from valueexpert.cli import PROGRAM
from valueexpert.experiments import gains, sharing
from valueexpert.experiments.sharing import expected_faults
from valueexpert.replay import run

APART = 1_000_000  # and so many pages, 2 MiB apart


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.replay_program(SHARING.name, tmp_path_factory.mktemp("sharing"))


def test_a_replay_is_what_was_recorded(program: Path, tmp_path: Path) -> None:
    with traces.opened(SHARING) as folders:
        for variant, folder in folders.items():
            assert run(program, variant, SHARING.replay, tmp_path / variant) == traces.said(folder)
            recorded, _ = read_values(folder / "values-1.npz")
            again, _ = read_values(tmp_path / variant / "values-1.npz")
            for column in recorded.__dataclass_fields__:
                assert list(getattr(again, column)) == list(getattr(recorded, column)), column
            for end in ("records", "stacks", "facts"):
                name = f"cpu-1.{end}"
                assert (tmp_path / variant / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("size", [3, SHARING.replay, 40, APART + 5])
def test_kinds_and_faults_follow_from_how_it_is_written(
    size: int, program: Path, tmp_path: Path
) -> None:
    digests = set()
    for variant, wanted in KIND_OF.items():
        digests.add(run(program, variant, size, tmp_path / variant)["digest"])
        found = timeline(traces.process(tmp_path / variant))
        small = windows_of(found.touches)
        for page in SIZES:
            at = small.at(page)
            numbers, kinds = at.pages()
            names = [" and ".join(owners(int(n), page, found.objects)) for n in numbers]
            assert {(n, KINDS[k]) for n, k in zip(names, kinds, strict=True)} == set(wanted.items())
            faults = faults_of(found.touches, page)
            assert {side: faults.of(side) for side in (CPU, GPU)} == expected_faults(
                variant, Counter(names)
            )
            if variant == "before" and (page == SIZES[0] or size > APART):
                assert faults.of(CPU) == (size % APART + 2) * (ROUNDS + 1)
    assert len(digests) == 1


def add_object_before(folder: Path) -> None:
    """The same record with an object `idle` that was freed before the first one was made there."""
    (log,) = traces.process(folder).readers
    events = list(log)
    first = next(event for event in events if isinstance(event, Alloc))
    idle = Alloc(address=first.address, size=first.size, device=0, stream=0,
                 flags=MEMORY_FLAGS["managed"], ns=2)  # fmt: skip
    with LogWriter(log.path, pid=log.pid) as writer:
        for event in (
            RegionStart(name="idle", ns=1), idle, RegionEnd(name="idle", ns=3),
            Free(address=idle.address, size=idle.size, device=0, flags=idle.flags, stream=0, ns=4),
            *(replace(event, clock=0) for event in events),
        ):  # fmt: skip
            writer.write(event)


def test_pages_are_those_of_the_objects_that_lived_when_they_were_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sharing.tar.xz"
    with traces.opened(SHARING) as folders, tarfile.open(path, "w:xz") as archive:
        for variant, folder in folders.items():
            add_object_before(folder)
            archive.add(folder, variant)
    monkeypatch.setattr(traces, "opened", partial(traces.opened, source=tmp_path))
    sharing.run(PROGRAM.parse(["sharing"]), RecordWriter(tmp_path))
    found = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    right = [r["samples"] for r in found if r["metric"] in ("kinds_right", "faults_right")]
    assert right == [[1.0]] * len(SHARING.variants) * len(SIZES) * 3
    assert {r["labels"]["object"] for r in found if r["metric"] == "touched"} == {
        *KIND_OF["before"], *KIND_OF["after"],
    }  # fmt: skip


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="steps x86-64 only")
@pytest.mark.parametrize("variant", SHARING.variants)
def test_real_faults_of_the_cpu_are_the_replays_own_record(
    variant: str, program: Path, tmp_path: Path
) -> None:
    """The replay runs on memory without permissions: what the handler saw is what it did."""
    dump, out = tmp_path / "dump", tmp_path / "out"
    for folder in (dump, out):
        folder.mkdir()
    env = {"ACCEL_TRACE_OUT": str(out), "ACCEL_TRACE_CPU": "bytes", "LD_PRELOAD": str(recorder())}
    done = subprocess.run(
        [program, variant, str(SHARING.replay), "1", dump], capture_output=True, text=True,
        env=os.environ | env, check=True,
    )  # fmt: skip
    with traces.opened(SHARING) as folders:
        assert json.loads(done.stdout) == traces.said(folders[variant])
        wanted = cpu.read(folders[variant], 1)
    (records,) = out.glob("cpu-*.records")
    seen = cpu.read(out, int(records.stem.removeprefix("cpu-")))
    assert seen.gaps() == []
    shift = int(seen.address.min()) - int(wanted.address.min())
    for name in ("size", "flags"):
        assert np.array_equal(getattr(seen, name), getattr(wanted, name)), name
    assert np.array_equal(seen.address - np.uint64(shift), wanted.address)
    # Each line of the source is one calling context or more, and none is two lines.
    lines = {int(s): int(w) for s, w in zip(seen.stack, wanted.stack, strict=True)}
    assert all(lines[int(s)] == int(w) for s, w in zip(seen.stack, wanted.stack, strict=True))


def test_the_tool_reads_the_record(tmp_path: Path) -> None:
    tool = tools.find("page_sharing")({"driver": False}, tmp_path)
    with traces.opened(SHARING) as folders:
        text = make_report(tool, open_sessions(folders["before"])).text
    assert "cells: falsely shared, 102 of 136 estimated faults (75%)" in text
    assert "kernel: advance" in text
    assert "CPU's turn, line" in text


def test_cuda_compiles(tmp_path: Path) -> None:
    need_tools()
    assert build.cuda_program(SHARING.name, tmp_path).stat().st_size > 0


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gains.program(SHARING, tmp_path_factory.mktemp("cuda"))


def traced(out: Path, command: list[object], *settings: str) -> Timeline:
    """A running program's accesses."""
    words = [word for setting in ("driver=false", *settings) for word in ("--set", setting)]
    done = subprocess.run(
        [sys.executable, "-m", "accel_trace", "run", "--tool", "page_sharing", *words,
         "--out", out, "--", *map(str, command)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (process,) = Session(out).processes
    assert "cannot be protected" not in "".join(note.text for note in process.notes)
    (out / "said.txt").write_text(done.stdout)
    return timeline(process)


@pytest.mark.gpu
@pytest.mark.parametrize("setting", ["cpu=bytes", "open=true", "cpu=pages"])
@pytest.mark.parametrize("size", [SHARING.replay, APART + 16])
def test_the_running_program_has_the_replays_kinds_and_faults(
    size: int, setting: str, cuda: Path, program: Path, tmp_path: Path
) -> None:
    for variant, wanted in KIND_OF.items():
        said = run(program, variant, size, tmp_path / f"replay-{variant}")
        found = traced(tmp_path / variant, [cuda, variant, size, 1], setting)
        printed = json.loads((tmp_path / variant / "said.txt").read_text())
        assert printed["digest"] == said["digest"]
        known = setting != "cpu=pages"
        small = windows_of(found.touches, bytes_known=known)
        for page in SIZES:
            at = small.at(page)
            numbers, kinds = at.pages()
            names = [" and ".join(owners(int(n), page, found.objects)) for n in numbers]
            pairs = {(n, KINDS[k]) for n, k in zip(names, kinds, strict=True)}
            shown = {"true": "shared", "false": "shared"} if not known else {}
            assert pairs == {(name, shown.get(kind, kind)) for name, kind in wanted.items()}
            faults = faults_of(found.touches, page)
            assert {side: faults.of(side) for side in (CPU, GPU)} == expected_faults(
                variant, Counter(names)
            )


@pytest.mark.gpu
@pytest.mark.parametrize("variant", SHARING.variants)
def test_accesses_of_the_cpu_are_the_replays(variant: str, cuda: Path, tmp_path: Path) -> None:
    """Size, direction and place of each, in order: the source's, on the CPU beside the GPU."""
    found = traced(tmp_path / "out", [cuda, variant, SHARING.replay, 1])
    assert found.gaps == ()
    with traces.opened(SHARING) as folders:
        wanted = timeline(traces.process(folders[variant]))

    def rows(one: Timeline) -> list[tuple[str, int, int, bool]]:
        mine = one.touches.take(one.touches.side == CPU)
        starts = {o.name: o.address for o in one.objects}
        names = [owners(int(a) // SIZES[2], SIZES[2], one.objects)[0] for a in mine.address]
        return [(name, int(a) - starts[name], int(s), bool(w)) for name, a, s, w in
                zip(names, mine.address, mine.size, mine.write, strict=True)]  # fmt: skip

    assert rows(found) == rows(wanted)
    paths = [path for path in found.paths if path[-1].startswith("CPU")]
    assert any("main" in frame for path in paths for frame in path)

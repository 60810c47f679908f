"""On a GPU: the programs' results are the replays', and the values that are recorded are, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from accel_trace.session import Session
from accel_trace.values.compared import compared
from accel_trace.values.findings import coarse
from accel_trace.values.recorded import values_of
from accel_trace.values.told import OPCODE, tell
from reprokit.records import RecordWriter
from valueexpert import build, traces
from valueexpert.catalog import MINIS
from valueexpert.cli import PROGRAM
from valueexpert.experiments import operators as experiment
from valueexpert.experiments import slowdown, slowdown_training
from valueexpert.experiments.gains import run
from valueexpert.levels import LEVELS, library

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All programs, as an image has them or compiled once, and a collector that was tried."""
    library()
    if "VALUEEXPERT_PROGRAMS" in os.environ:
        return Path(os.environ["VALUEEXPERT_PROGRAMS"])
    folder = tmp_path_factory.mktemp("programs")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda name: build.cuda_program(name, folder), MINIS))
    return folder


def traced(out: Path, command: list[object], *options: str) -> Session:
    done = subprocess.run(
        [sys.executable, "-m", "accel_trace", "run", "--no-probe", "--tool", "value_patterns",
         *options, "--out", out, "--", *map(str, command)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    (out / "said.txt").write_text(done.stdout)
    return Session(out)


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", MINIS)
def test_results_are_the_replays_bit_by_bit(
    name: str, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VALUEEXPERT_PROGRAMS", str(programs))
    words = ["gains", "--device", "cuda", "--minis", name, "--size", "quick", "--repeats", "1"]
    run(PROGRAM.parse([*words, "--samples", "2"]), RecordWriter(tmp_path))
    found = records(tmp_path)
    same = {r["labels"]["variant"]: r["samples"] for r in found if r["metric"] == "same_bits"}
    assert same == {variant: [1.0] for variant in MINIS[name].variants}
    assert all(min(r["samples"]) > 0 for r in found if r["metric"] == "kernel_time")


@pytest.mark.parametrize("name", MINIS)
def test_the_tool_finds_the_same_in_the_running_program(
    name: str, programs: Path, tmp_path: Path
) -> None:
    """Compilers merge loads, and some types are not told: findings are compared, not bytes."""
    mini, wanted = MINIS[name], traces.labels()[name]
    program = programs / name
    for variant in mini.variants:
        out = tmp_path / variant
        facts = traced(out, [program, variant, mini.replay, 1]).processes[0].facts
        assert facts["values_lost"] == "0"
        _, found = traces.findings(out)
        score = traces.score(found, wanted[variant])
        assert (score.false, score.missed) == ((), ()), variant
        with traces.opened(mini) as folders:
            assert (
                json.loads((out / "said.txt").read_text())["digest"]
                == traces.said(folders[variant])["digest"]
            )


@pytest.mark.parametrize("name", MINIS)
def test_coarse_finds_copies_and_fills_without_a_patch(
    name: str, programs: Path, tmp_path: Path
) -> None:
    mini = MINIS[name]
    program = programs / name
    for variant in mini.variants:
        command = [program, variant, mini.replay, 1]
        (process,) = traced(tmp_path / variant, command, "--set", "level=coarse").processes
        found = compared(process)
        assert found.uncompared == 0
        told = {(f.name, f.context, f.thing) for f in coarse(found.shadow.effects)}
        assert told == traces.coarse_labels(name, variant), variant


def test_coarse_compares_castros_uploads_where_they_go(programs: Path, tmp_path: Path) -> None:
    """Three uploads and two downloads a run: none is left to the Sanitizer's functions."""
    command = [programs / "castro", "before", MINIS["castro"].full, 2]
    (process,) = traced(tmp_path, command, "--set", "level=coarse").processes
    assert process.facts["compared_by"] == "gpu 6, bus 4, sanitizer 0"


def test_a_sample_of_blocks_has_no_finding_that_is_false(programs: Path, tmp_path: Path) -> None:
    """castro: 400 cells in blocks of 256; a sample knows nothing of what memory holds."""
    command = [programs / "castro", "before", 400, 1]
    session = traced(tmp_path / "out", command, "--set", "blocks=2")
    _, found = traces.findings(session.folder)
    assert not {one.name for one in found} & {"dead_write", "redundant_download"}
    whole = MINIS["castro"].replay * 5
    kept = sum(len(values_of(process)[0]) for process in session.processes)
    assert 0 < kept < whole


_GRAPH = """
import torch
x = torch.zeros(1 << 20, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3):
        y = x * 2
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    z = x.clone() + 1
for _ in range(3):
    x.copy_(torch.ones(1 << 20))
    graph.replay()
torch.cuda.synchronize()
print(float(z.sum()))
"""


def test_coarse_leaves_a_capture_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    session = traced(
        tmp_path / "out", [sys.executable, "-c", _GRAPH], "--set", "level=coarse"
    )  # fmt: skip
    assert float((session.folder / "said.txt").read_text()) == 2 * (1 << 20)
    text = (session.folder / "report.txt").read_text()
    assert "redundant upload" in text


def test_types_are_told_by_the_code_that_runs(programs: Path, tmp_path: Path) -> None:
    """pathfinder and lavaMD compute with all that they load: nothing has to be guessed."""
    for name, wanted in (("pathfinder", {"i32"}), ("lavamd", {"f64"})):
        out = tmp_path / name
        command = [programs / name, "before", MINIS[name].replay, 1]
        (process,) = traced(out, command).processes
        sites = tell(process, values_of(process)[0])[1]
        assert {site.source for site in sites} == {OPCODE}, sites
        assert {site.type for site in sites} == wanted, sites


def times_of(folder: Path) -> dict[str, list[float]]:
    """Of every level, what its processes took."""
    times: dict[str, list[float]] = {}
    for record in records(folder):
        if record["metric"] == "run_time":
            times.setdefault(record["labels"]["level"], []).extend(record["samples"])
    return times


def told_of_fine(folder: Path, metric: str) -> list[float]:
    """Of every process of the level fine, what it says of its record."""
    return [r["samples"][0] for r in records(folder) if r["metric"] == metric]


@pytest.mark.timed
def test_every_level_measures_a_mini(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VALUEEXPERT_PROGRAMS", str(programs))
    # At its full size: at the quick one, at which it is measured so that all accesses find room,
    # patching and unpatching takes longer than the runs.
    words = ["slowdown", "--device", "cuda", "--repeats", "3"]
    slowdown.run(
        PROGRAM.parse([*words, "--samples", "10", "--minis", "castro"]), RecordWriter(tmp_path)
    )
    # Others' load only adds: of three processes in turns the least is the level's own.
    times = {level: min(found) for level, found in times_of(tmp_path).items()}
    assert set(times) == set(LEVELS)
    assert times["fine"] > times["every"] > times["native"] > 0
    assert min(told_of_fine(tmp_path, "values")) > 0


def test_a_small_mini_is_recorded_whole(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VALUEEXPERT_PROGRAMS", str(programs))
    words = ["slowdown", "--device", "cuda", "--size", "quick", "--repeats", "1"]
    slowdown.run(
        PROGRAM.parse([*words, "--samples", "10", "--minis", "castro"]), RecordWriter(tmp_path)
    )
    assert set(times_of(tmp_path)) == set(LEVELS)
    assert told_of_fine(tmp_path, "whole") == [1.0]


@pytest.mark.timed
def test_every_level_measures_a_training_step(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = ["slowdown_training", "--device", "cuda", "--repeats", "1", "--samples", "10"]
    slowdown_training.run(PROGRAM.parse(words), RecordWriter(tmp_path))
    times = {level: min(found) for level, found in times_of(tmp_path).items()}
    assert set(times) == set(LEVELS)
    assert times["fine"] > times["every"] > times["native"] > 0
    (kept,) = told_of_fine(tmp_path, "values")
    assert kept > 0


def test_the_control_of_the_operators_is_found(tmp_path: Path) -> None:
    """A sum into zeros, and beside it a lookup, of which nothing is for nothing."""
    pytest.importorskip("torch")
    experiment.look(["zeros_accumulate", "embedding"], library(), RecordWriter(tmp_path))
    told = {r["labels"]["operator"]: r["samples"] for r in records(tmp_path)
            if r["metric"] == "found"}  # fmt: skip
    assert told["zeros_accumulate"] == [1.0]
    assert told["embedding"] == [0.0]

"""On a GPU: the programs' results are the replays', and the values that are recorded are, too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from accel_trace.session import Session
from accel_trace.values.compared import compared
from accel_trace.values.findings import coarse
from reprokit.records import RecordWriter
from valueexpert import build, traces
from valueexpert.catalog import MINIS
from valueexpert.cli import PROGRAM
from valueexpert.experiments import slowdown, slowdown_training
from valueexpert.experiments.gains import run
from valueexpert.levels import LEVELS

pytestmark = pytest.mark.gpu


def traced(out: Path, command: list[object], *options: str) -> Session:
    done = subprocess.run(
        [sys.executable, "-m", "accel_trace", "run", "--tool", "value_patterns", *options,
         "--out", out, "--", *map(str, command)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (out / "said.txt").write_text(done.stdout)
    return Session(out)


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", MINIS)
def test_results_are_the_replays_bit_by_bit(name: str, tmp_path: Path) -> None:
    words = ["gains", "--device", "cuda", "--minis", name, "--size", "quick", "--repeats", "1"]
    run(PROGRAM.parse([*words, "--samples", "2"]), RecordWriter(tmp_path))
    found = records(tmp_path)
    same = {r["labels"]["variant"]: r["samples"] for r in found if r["metric"] == "same_bits"}
    assert same == {variant: [1.0] for variant in MINIS[name].variants}
    assert all(min(r["samples"]) > 0 for r in found if r["metric"] == "kernel_time")


@pytest.mark.parametrize("name", MINIS)
def test_the_tool_finds_the_same_in_the_running_program(name: str, tmp_path: Path) -> None:
    """Types are not told on a GPU, and compilers merge loads: findings are compared, not bytes."""
    mini, wanted = MINIS[name], traces.labels()[name]
    program = build.cuda_program(name, tmp_path)
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
def test_coarse_finds_copies_and_fills_without_a_patch(name: str, tmp_path: Path) -> None:
    mini = MINIS[name]
    program = build.cuda_program(name, tmp_path)
    for variant in mini.variants:
        command = [program, variant, mini.replay, 1]
        (process,) = traced(tmp_path / variant, command, "--set", "level=coarse").processes
        found = compared(process)
        assert found.uncompared == 0
        told = {(f.name, f.context, f.thing) for f in coarse(found.shadow.effects)}
        assert told == traces.coarse_labels(name, variant), variant


def test_a_sample_of_blocks_has_no_finding_that_is_false(tmp_path: Path) -> None:
    """castro: 400 cells in blocks of 256; a sample knows nothing of what memory holds."""
    program = build.cuda_program("castro", tmp_path)
    session = traced(tmp_path / "out", [program, "before", 400, 1], "--set", "blocks=2")
    _, found = traces.findings(session.folder)
    assert not {one.name for one in found} & {"dead_write", "redundant_download"}
    whole = MINIS["castro"].replay * 5
    kept = sum(path.stat().st_size for path in session.folder.glob("values-*.records")) // 48
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


def test_every_level_measures_a_mini_and_a_training_step(tmp_path: Path) -> None:
    words = ["--device", "cuda", "--size", "quick", "--repeats", "1", "--samples", "10"]
    slowdown.run(
        PROGRAM.parse(["slowdown", *words, "--minis", "castro"]), RecordWriter(tmp_path / "mini")
    )
    pytest.importorskip("torch")
    slowdown_training.run(
        PROGRAM.parse(["slowdown_training", *words]), RecordWriter(tmp_path / "step")
    )
    for folder in ("mini", "step"):
        found = records(tmp_path / folder)
        times = {r["labels"]["level"]: r["samples"][0] for r in found if r["metric"] == "run_time"}
        assert set(times) == set(LEVELS)
        assert times["fine"] > times["every"] > times["native"] > 0
        (kept,) = [r["samples"][0] for r in found if r["metric"] == "values"]
        assert kept > 0

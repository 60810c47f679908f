"""On a GPU: the programs' results are the replays', and the values that are recorded are, too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from accel_trace.session import Session
from reprokit.records import RecordWriter
from valueexpert import build, traces
from valueexpert.catalog import MINIS
from valueexpert.cli import PROGRAM
from valueexpert.experiments.gains import run

pytestmark = pytest.mark.gpu


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
        done = subprocess.run(
            [sys.executable, "-m", "accel_trace", "run", "--tool", "value_patterns", "--out", out,
             "--", program, variant, str(mini.replay), "1"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        facts = Session(out).processes[0].facts
        assert facts["values_lost"] == "0"
        _, found = traces.findings(out)
        score = traces.score(found, wanted[variant])
        assert (score.false, score.missed) == ((), ()), variant
        with traces.opened(mini) as folders:
            assert json.loads(done.stdout)["digest"] == traces.said(folders[variant])["digest"]

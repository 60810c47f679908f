"""A sixth paper needs no change in `ae/`: the toy goes from recipe to verdicts.

The workload is started as a plain child process here; engines have tests of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ae.claims.judge import Verdict, judge
from ae.claims.tables import load_claims
from ae.engines.base import SKIP_EXIT_CODE
from ae.errors import WorkloadError
from ae.model import Machine, Outcome, Plan, Point, Status
from ae.plan.planner import make_plan
from ae.plan.selection import Selection
from ae.recipe.load import load_recipe
from ae.records import files as records
from ae.records.folder import Run, RunStore
from ae.records.models import Provenance
from ae.records.results import load_run
from ae.report import chapter as figures
from tests.toy import make_toy

ROOT = Path(__file__).resolve().parent.parent
GENERAL = {"gpus", "mode", "plan", "case", "cap", "net", "batch", "model", "parallelism"}  # axes


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy(tmp_path_factory.mktemp("toy"))


def make(toy: Path, *experiments: str) -> Plan:
    selection = Selection(quick=True, experiments=experiments)
    return make_plan(load_recipe(toy, "toy"), selection, Machine(), toy, {"toy": "1"})


def start(point: Point, out: Path, toy: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *point.argv[1:]],
        env={"AE_OUT": str(out), "PYTHONPATH": str(toy / "images/toy/src"), **point.env},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A plain quick run of the toy, with one point that skips a part of itself."""
    plan = make(toy, "together", "apart", "partial")
    run = RunStore(tmp_path_factory.mktemp("results")).create(plan, Provenance())
    for point in plan.points:
        done = start(point, run.begin(point), toy)
        assert done.returncode == 0, done.stderr
        run.finish(point, Outcome(status=Status.DONE, exit_code=0, seconds=0.1))
    return run


def test_ae_knows_no_paper() -> None:
    """Nothing of any recipe: what a paper is about stands in its own folders."""
    papers = [path.parent.name for path in (ROOT / "recipes").glob("*/recipe.yaml")]
    assert papers
    axes = {axis for name in papers for axis in load_recipe(ROOT, name).axes}
    words = {"toy", "dataset", "embedding", "gurobi", *papers, *(axes - GENERAL)}
    found = re.compile(rf"\b({'|'.join(words)})s?\b", re.I)
    for path in (ROOT / "ae").rglob("*.py"):
        assert not found.findall(path.read_text()), path


def test_records_become_the_table(run: Run) -> None:
    results = load_run(run.path)
    table = records.frame(results.rows)
    together = table[table["experiment"] == "together"]
    assert sorted(zip(together["dataset"], together["variant"], strict=True)) == [
        ("ones", "fast"), ("ones", "slow"), ("ramp", "fast"), ("ramp", "slow"),
    ]  # fmt: skip
    assert set(map(len, together["samples"])) == {8}
    assert [skip.reason for skip in results.skips] == ["this machine has one abacus"]
    assert results.environment.gpu == ("Toy GPU 1",)


def test_the_figure_is_drawn(run: Run, toy: Path, tmp_path: Path) -> None:
    table = records.frame(load_run(run.path).rows)
    (drawn,) = figures.draw(toy / "recipes/toy", ["times"], table, {"gpu": "Toy GPU 1"}, tmp_path)
    assert not drawn.reason
    assert set(drawn.files) == {"pdf", "svg", "png", "csv"}
    for path in drawn.files.values():
        assert path.stat().st_size > 0


def test_every_verdict_occurs(run: Run, toy: Path) -> None:
    rows = [replace(row, reduced=()) for row in load_run(run.path).rows]
    judged = judge(load_claims(toy, "toy"), rows)
    assert {one.id: one.verdict.value for one in judged} == {
        "T1": "reproduced",
        "T2": "direction holds",
        "T3": "not reproduced",
        "T4": "not comparable",
        "T5": "not run",
        "T6": "not transcribed",
    }
    assert {one.verdict for one in judged} == set(Verdict) - {Verdict.UNDECIDED}


def test_a_quick_run_is_not_scored(run: Run, toy: Path) -> None:
    judged = judge(load_claims(toy, "toy"), load_run(run.path).rows)
    reasons = {one.id: one.reason for one in judged}
    assert reasons["T1"] == reasons["T3"] == "not at the paper's size: --quick"


@pytest.mark.parametrize(
    ("experiment", "code", "words"),
    [
        ("unfit", SKIP_EXIT_CODE, "this machine has no abacus"),
        ("broken", 1, "the abacus fell down"),
    ],
)
def test_bad_ends(toy: Path, tmp_path: Path, experiment: str, code: int, words: str) -> None:
    done = start(make(toy, experiment).points[0], tmp_path, toy)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1] == words


@pytest.mark.parametrize(
    ("experiment", "message"),
    [("malformed", "records.jsonl:2: not a JSON object"), ("future", "records.jsonl:1: 'schema'"),
     ("truncated", "records.jsonl:2: not a JSON object")],
)  # fmt: skip
def test_bad_records(toy: Path, tmp_path: Path, experiment: str, message: str) -> None:
    assert start(make(toy, experiment).points[0], tmp_path, toy).returncode == 0
    with pytest.raises(WorkloadError) as caught:
        records.read_point(tmp_path)
    assert message in caught.value.message


def test_stuck_ignores_a_friendly_stop(toy: Path, tmp_path: Path) -> None:
    point = make(toy, "stuck").points[0]
    child = subprocess.Popen(
        [sys.executable, *point.argv[1:]],
        env={"AE_OUT": str(tmp_path), "PYTHONPATH": str(toy / "images/toy/src")},
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "stuck\n"
        child.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.5)
    finally:
        os.killpg(child.pid, 9)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    assert len(records.read_point(tmp_path).records) == 1

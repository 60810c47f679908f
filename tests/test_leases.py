"""images/airgap/leases.py: leases one after another fill a reference set, and repeat nothing."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from ae.commands.asked import settle
from ae.errors import ExitCode
from ae.model import Machine
from ae.plan.selection import Selection
from ae.records.folder import RunStore
from ae.records.results import load_reference
from tests import h200
from tests.calling import Ae, caller
from tests.toy import make_toy

SCRIPT = Path(__file__).resolve().parents[1] / "images/airgap/leases.py"
RUN = ("run", "toy", "--engine", "local", "--seconds", "60", "--quick")


@pytest.fixture(scope="module")
def leases() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        yield importlib.import_module("leases")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with the toy alone, as a copy of a stated revision."""
    root = make_toy(tmp_path / "checkout")
    monkeypatch.setenv("AE_ROOT", str(root))
    monkeypatch.setenv("AE_LOCAL_PYTHON", sys.executable)
    monkeypatch.setenv("AE_REVISION", "a" * 40)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("AE_RESULTS", raising=False)
    return root


@pytest.fixture
def ae(root: Path, capsys: pytest.CaptureFixture[str]) -> Ae:
    return caller(capsys)


def done(root: Path) -> list[list[str]]:
    """The finished points of every run, oldest first."""
    runs = RunStore(root / "results").list("toy")
    return [sorted(status.id for status in run.finished().values()) for run in runs]


def test_leases_fill_a_set_and_repeat_nothing(leases: ModuleType, root: Path, ae: Ae) -> None:
    """Also where the runs of earlier leases are gone, and only the set is left."""
    two = (*RUN, "--repeat", "2")
    assert leases.main([*two, "--repeat", "1", "--experiment", "together"]) == 0
    assert done(root) == [["together-ones", "together-ramp"]]
    (run,) = RunStore(root / "results").list("toy")
    assert ae("keep", run.name, "--machine", "toy")[0] == 0
    run.path.rename(root / "gone")

    assert leases.main(list(two)) == 0
    second = Counter(name for names in done(root) for name in names)
    assert set(second.values()) == {1}
    assert len(second) == 12 - 2
    assert not {"together-ones", "together-ramp"} & second.keys()
    for run in RunStore(root / "results").list("toy"):
        assert ae("keep", run.name, "--machine", "toy")[0] == 0
    kept = load_reference(root / "results/reference/toy/toy")
    assert len(kept.points) == 12
    assert len(kept.origins) == len(done(root)) + 1
    ones = [row.process for row in kept.rows if row.point.startswith("together-ones")]
    assert len(set(ones)) == 2, "two processes of one point, each of its own lease"

    before = done(root)
    assert leases.main(list(two)) == 0
    assert done(root) == before, "nothing is left to run"
    source = root / "images/toy/src/toy/adding.py"
    source.write_text(source.read_text() + "# another image\n")
    assert leases.main([*two, "--experiment", "together"]) == 0
    (anew,) = done(root)[len(before) :]
    assert anew == ["together-ones", "together-ones-r1", "together-ramp", "together-ramp-r1"]


def test_what_decides_most_claims_runs_first(leases: ModuleType, root: Path) -> None:
    asked = settle("toy", Selection(quick=True, repeat=2), {})
    plan, budget = leases.wanted(asked, Machine())
    assert len(plan.points) == 12
    together = {"together-ones", "together-ramp", "together-ones-r1", "together-ramp-r1"}
    names = leases.fitting(budget, {}, 5.0)  # seconds, of points of one each
    assert set(names[:4]) == together
    assert len(names) == 5
    few = leases.fitting(replace(budget, points=budget.points[::-1]), {}, 1.0)
    assert len(few) == 1, "too little for any claim that needs both processes"
    assert set(few) < together
    rest = leases.fitting(budget, dict.fromkeys(names, 1.0), 100.0, lost={"apart-ramp-fast"})
    assert len(rest) == 12 - 5 - 1
    assert not {*names, "apart-ramp-fast"} & set(rest)


def test_leases_side_by_side_share_the_processes(
    leases: ModuleType, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each runs its part alone, whatever the other has done; together they run all."""
    for share in ("1/2", "2/2"):
        store = root / "results" / share[0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AE_RESULTS", str(store))
            assert leases.main([*RUN, "--repeat", "2", "--share", share]) == 0
    halves = [
        {key for run in RunStore(root / "results" / half).list("toy") for key in run.finished()}
        for half in "12"
    ]
    assert all(halves)
    assert not halves[0] & halves[1]
    assert len(halves[0] | halves[1]) == 12
    for word in ("0/2", "3/2", "half"):
        with pytest.raises(SystemExit):
            leases.main([*RUN, "--share", word])


def test_a_share_counts_what_it_adds_to_a_claim(leases: ModuleType, root: Path) -> None:
    asked = settle("toy", Selection(quick=True, repeat=2), {})
    plan, budget = leases.wanted(asked, Machine())
    parts = [leases.part(plan, budget, (which, 3)) for which in (1, 2, 3)]
    assert sorted(point.id for part, _ in parts for point in part.points) == sorted(
        point.id for point in plan.points
    )
    where = {leases.place(point) for point in plan.points}
    for part, _ in parts:
        assert len({leases.place(point) for point in part.points}) == len(part.points) < len(where)
    for one in {(point.experiment, point.repeat) for point in plan.points}:
        dealt = [sum((p.experiment, p.repeat) == one for p in part.points) for part, _ in parts]
        assert max(dealt) - min(dealt) <= 1
    for part, own in parts:
        names = {point.id for point in part.points}
        assert {point.id for point in own.points} == names
        assert own.needs == {c: need & names for c, need in budget.needs.items() if need & names}
        assert set(leases.fitting(own, {}, 100.0)) == names


def test_it_plans_with_the_gpus_that_are_given(leases: ModuleType, root: Path) -> None:
    words = leases.parse_gpus("device=1")
    asked = settle("toy", Selection(experiments=("gpu_only", "either"), gpus=words), {})
    plan, _ = leases.wanted(asked, h200.machine(2))
    assert len(plan.points) == 2 * leases.MANY
    for point in plan.points:
        assert point.needs.gpus is not None
        assert [device.index for device in point.needs.gpus.devices] == [1]


def test_how_many_processes(leases: ModuleType, root: Path) -> None:
    asked = settle("toy", Selection(experiments=("gpu_only", "together")), {})
    plan, _ = leases.wanted(asked, h200.machine(1))
    assert Counter(point.experiment for point in plan.points) == {"gpu_only": 5, "together": 2}
    point = next(point for point in plan.points if point.experiment == "gpu_only")
    assert leases.processes(replace(point, expected_s=120.0), asked.recipe) == 3
    once = asked.recipe.experiments["gpu_only"].model_copy(update={"processes": 1})
    recipe = asked.recipe.model_copy(update={"experiments": {"gpu_only": once}})
    assert leases.processes(point, recipe) == 1


@pytest.mark.parametrize(("experiment", "count"), [("slowdown_training", 1), ("sharing", 1)])
def test_a_point_that_starts_its_processes_itself_is_wanted_once(
    leases: ModuleType, experiment: str, count: int
) -> None:
    asked = settle("valueexpert", Selection(experiments=(experiment,)), {})
    plan, _ = leases.wanted(asked, h200.machine(1))
    assert len(plan.points) == count


def test_what_had_finished_is_kept_when_the_lease_ends(
    leases: ModuleType, root: Path, ae: Ae
) -> None:
    """`stuck` never ends and decides no claim, so it comes last."""
    words = ["run", "toy", "--engine", "local", "--seconds", "300", "--repeat", "1"]
    words += ["--experiment", "together", "--experiment", "stuck", "--set", "size=100"]
    lease = subprocess.Popen([sys.executable, SCRIPT, *words], env=os.environ)
    ends = time.monotonic() + 60
    while not list((root / "results/runs/toy").glob("*/points/.stuck.tmp/stdout.log")):
        assert time.monotonic() < ends
        assert lease.poll() is None
        time.sleep(0.05)
    lease.send_signal(signal.SIGTERM)
    assert lease.wait(60) == ExitCode.INTERRUPTED
    assert done(root) == [["together-ones", "together-ramp"]]
    (run,) = RunStore(root / "results").list("toy")
    assert ae("keep", run.name, "--machine", "toy")[0] == 0
    assert len(load_reference(root / "results/reference/toy/toy").points) == 2


def test_the_cross_check_measures_a_tenth_again(
    leases: ModuleType, root: Path, ae: Ae, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--engine", "local", "--quick", "--repeat", "2")
    assert leases.main(["again", "toy", *words]) == ExitCode.USAGE
    assert "is finished" in capsys.readouterr().err
    assert leases.main([*RUN, "--repeat", "2"]) == 0
    for run in RunStore(root / "results").list("toy"):
        ae("keep", run.name, "--machine", "toy")
    assert leases.main(["again", "toy", *words]) == 0
    first, second = done(root)[-1]  # one point of six, two processes more
    name = first.removesuffix("-r2")
    assert (first, second) == (f"{name}-r2", f"{name}-r3")
    newest = RunStore(root / "results").list("toy")[-1]
    assert name.split("-")[1] in ae("compare", "toy", "toy", newest.name)[1]
    ae("keep", newest.name, "--machine", "toy")
    kept = load_reference(root / "results/reference/toy/toy").points
    assert sum(one.status.id.startswith(name) for one in kept) == 4


def test_the_table_of_leases(
    leases: ModuleType, root: Path, ae: Ae, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leases.main([*RUN, "--repeat", "1", "--experiment", "together"]) == 0
    (run,) = RunStore(root / "results").list("toy")
    ae("keep", run.name, "--machine", "toy")
    capsys.readouterr()
    words = ["plan", "toy", "--machine", "toy", "--quick", "--repeat", "2", "--spent", "0"]
    assert leases.main([*words, "--minutes", "1"]) == 0
    _, _, row, _, _, command, _ = capsys.readouterr().out.splitlines()
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[:3] == ["toy", "0", "2 of 12"]
    assert cells[5].startswith("1: ")
    assert "reference_run.sh toy OUT minutes=1 -- --experiment together" in command
    assert leases.main(["plan", "toy", "--machine", "tyo"]) == ExitCode.USAGE

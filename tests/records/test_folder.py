"""The run folder store: unique, atomic, resumable, and never losing what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ae.errors import EnvironmentFault, ExitCode, UsageError
from ae.model import Machine, Outcome, Plan, Point, Status
from ae.plan.planner import make_plan
from ae.plan.selection import Selection
from ae.recipe.load import load_recipe
from ae.records.files import RecordsFault
from ae.records.folder import RESERVE_BYTES, Run, RunStore, results_dir
from ae.records.models import Host, Provenance, describe
from ae.records.results import load_run
from tests.toy import make_toy

DONE = Outcome(status=Status.DONE, exit_code=0, seconds=1.5, image_id="sha256:1")
FAILED = Outcome(status=Status.FAILED, exit_code=1, seconds=0.5, reason="the abacus fell down")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    root = make_toy(tmp_path / "toy")
    return make_plan(load_recipe(root, "toy"), Selection(), Machine(), root, {"toy": "1"})


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "results")


RECORD = '{"metric": "m", "unit": "s", "samples": [1.0], "labels": {}, "evidence": "measured"}\n'


def run_point(run: Run, point: Point, outcome: Outcome, text: str = RECORD) -> Path:
    (run.begin(point) / "records.jsonl").write_text(text)
    return run.finish(point, outcome)


def test_a_run_is_made_whole(store: RunStore, plan: Plan) -> None:
    run = store.create(plan, Provenance(host=Host(name="h")))
    assert run.path.parent == store.results / "runs" / "toy"
    assert len(run.name.partition("Z-")[2]) == 8
    assert run.record.provenance.host.name == "h"
    assert [point.id for point in run.record.plan.points] == [p.id for p in plan.points]
    assert run.record.recipe == "toy"
    assert run.record.plan.selection == Selection()
    assert Run(run.path).record == run.record


def test_names_are_unique_in_the_same_moment(
    store: RunStore, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ae.records.folder._now", lambda: "2026-01-02T03:04:05.000006+00:00")
    names = {store.create(plan, Provenance()).name for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("20260102T030405Z-") for name in names)


def test_a_point_has_its_name_only_when_it_has_ended(store: RunStore, plan: Plan) -> None:
    run, point = store.create(plan, Provenance()), plan.points[0]
    folder = run.begin(point)
    assert folder.name == f".{point.id}.tmp"
    assert list(folder.iterdir()) == []
    assert run.finished() == {}
    (folder / "records.jsonl").write_text(RECORD)
    final = run.finish(point, DONE)
    assert final == run.path / "points" / point.id
    assert not folder.exists()
    status = json.loads((final / "status.json").read_text())
    assert status["key"] == point.key
    assert status["attempt"] == 1
    assert status["started"] <= status["ended"]
    assert (status["status"], status["exit_code"], status["seconds"]) == ("done", 0, 1.5)
    assert status["labels"] == {"dataset": "ones"}
    assert run.finished()[point.key].id == point.id


def test_only_done_points_are_finished(store: RunStore, plan: Plan) -> None:
    run = store.create(plan, Provenance())
    for point, status in zip(plan.points, Status, strict=False):
        run_point(run, point, Outcome(status=status, exit_code=None, seconds=0.0))
    assert list(run.finished()) == [plan.points[0].key]
    assert run.statuses()[plan.points[2].id].status is Status.FAILED


def test_resume_keeps_what_failed(store: RunStore, plan: Plan) -> None:
    run, point = store.create(plan, Provenance()), plan.points[0]
    run_point(run, point, FAILED, "first\n")
    run.close()
    again = store.find("toy")
    assert point.key not in again.finished()
    run_point(again, point, FAILED, "second\n")
    final = run_point(again, point, DONE, "third\n")
    assert json.loads((final / "status.json").read_text())["attempt"] == 3
    attempts = run.path / "attempts" / point.id
    texts = [(attempts / n / "records.jsonl").read_text() for n in ("1", "2")]
    assert texts == ["first\n", "second\n"]
    assert json.loads((attempts / "1" / "status.json").read_text())["reason"] == FAILED.reason
    assert (final / "records.jsonl").read_text() == "third\n"


def test_another_key_is_not_finished(store: RunStore, plan: Plan) -> None:
    run, point = store.create(plan, Provenance()), plan.points[0]
    run_point(run, point, DONE)
    assert replace(point, key="other").key not in run.finished()


def test_what_a_killed_launcher_left_is_kept(store: RunStore, plan: Plan) -> None:
    run, point = store.create(plan, Provenance()), plan.points[0]
    (run.begin(point) / "records.jsonl").write_text("half\n")
    run.close()  # as if it had died here
    again = store.find("toy")
    folder = again.begin(point)
    assert list(folder.iterdir()) == []
    (folder / "records.jsonl").write_text(RECORD)
    kept = run.path / "attempts" / point.id / "1" / "records.jsonl"
    assert kept.read_text() == "half\n"
    again.finish(point, DONE)
    assert again.finished()[point.key].attempt == 2


def test_a_damaged_status_counts_as_not_run(store: RunStore, plan: Plan) -> None:
    run, point = store.create(plan, Provenance()), plan.points[0]
    (run_point(run, point, DONE) / "status.json").write_text("{")
    assert run.finished() == {}


@pytest.mark.parametrize("text", [None, "", "\n", RECORD[:-20]])
def test_a_done_point_without_records_is_not_finished(
    store: RunStore, plan: Plan, text: str | None
) -> None:
    run, point = store.create(plan, Provenance()), plan.points[0]
    path = run_point(run, point, DONE) / "records.jsonl"
    assert list(run.finished()) == [point.key]
    path.unlink() if text is None else path.write_text(text)
    assert run.finished() == {}
    (path.parent / "skipped.jsonl").write_text('{"labels": {}, "reason": "no such unit"}\n')
    assert list(run.finished()) == ([] if text == RECORD[:-20] else [point.key])


def test_two_launchers_do_not_write_one_run(store: RunStore, plan: Plan) -> None:
    run = store.create(plan, Provenance())
    run.begin(plan.points[0])
    code = (
        "import sys; from pathlib import Path; from ae.records.folder import Run\n"
        "from ae.errors import UsageError\n"
        "try:\n    Run(Path(sys.argv[1])).claim()\n"
        "except UsageError as error:\n    print(error.message)\n"
        "else:\n    print('mine')\n"
    )
    argv = [sys.executable, "-c", code, str(run.path)]
    other = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == f"another `ae run` is writing into {run.name}"
    run.close()
    other = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == "mine"


def test_latest_and_list(store: RunStore, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.latest("toy") is None
    moments = iter(f"2026-01-02T03:04:05.{n:06}+00:00" for n in (3, 1, 2, 4, 5))
    monkeypatch.setattr("ae.records.folder._now", lambda: next(moments))
    first, second, third = (store.create(plan, Provenance()) for _ in range(3))
    (store.results / "runs/toy" / "stray").mkdir()
    assert [run.name for run in store.list("toy")] == [second.name, third.name, first.name]
    assert store.latest("toy") is None  # no point of theirs was ever started
    with pytest.raises(UsageError, match="no run of toy has begun yet"):
        store.find("toy")
    second.begin(plan.points[0])
    assert store.find("toy").path == second.path
    first.begin(plan.points[0])
    latest = store.latest("toy")
    assert latest is not None
    assert latest.name == first.name


def test_a_run_that_cannot_be_read_is_still_a_run(
    store: RunStore, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    for second in (1, 2, 3):
        now = f"2026-01-02T03:04:0{second}.000006+00:00"
        monkeypatch.setattr("ae.records.folder._now", lambda now=now: now)
        runs.append(store.create(plan, Provenance()))
    for one in runs:
        run_point(one, plan.points[0], DONE)
    (runs[0].path / "run.json").write_text("{")
    assert store.find("toy").record.name == runs[2].name
    (runs[2].path / "run.json").write_text("{")
    assert [run.name for run in store.list("toy")] == [run.name for run in runs]
    latest = store.find("toy")
    assert latest.name == runs[2].name
    with pytest.raises(RecordsFault, match=f"{latest.name}/run.json: not a JSON object") as caught:
        _ = latest.record
    assert str(latest.path / "run.json") in caught.value.fix
    assert "writer" not in caught.value.fix


def test_find(store: RunStore, plan: Plan) -> None:
    with pytest.raises(UsageError, match="no run of toy has begun yet"):
        store.find("toy")
    run = store.create(plan, Provenance())
    run.begin(plan.points[0])
    assert store.find("toy").path == run.path
    assert store.find("toy", run.name).path == run.path
    assert store.find("toy", str(run.path)).path == run.path
    for word in (run.name, str(run.path)):
        with pytest.raises(UsageError, match="is a run of toy, not of other"):
            store.find("other", word)
    with pytest.raises(UsageError, match=f"did you mean '{run.name}'"):
        store.find("toy", run.name[:-1])
    assert store.find("*", run.name).path == store.find("*", str(run.path)).path == run.path
    with pytest.raises(UsageError, match="'1' is no run;"):
        store.find("*", "1")
    assert store.resumable("toy", ["toy"]).path == store.resumable(run.name, ["toy"]).path
    with pytest.raises(UsageError, match="no run of other has begun yet"):
        store.resumable("other", ["other", "toy"])
    with pytest.raises(UsageError, match=f"is no run or recipe; did you mean '{run.name}'"):
        store.resumable(run.name[:-1], ["toy"])
    with pytest.raises(UsageError, match=r"'h20' is no run or reference set .*mean 'h200'"):
        store.find("toy", "h20", {"h200"})
    with pytest.raises(UsageError, match=r"'x' is no run or reference set; known: .*h200/toy"):
        store.find("*", "x", {"h200/toy"})
    with pytest.raises(UsageError, match=r"; known: s10, s11, .*, s29 and 11 more$"):
        store.find("*", "x", {f"s{i}" for i in range(10, 30)} | {f"r{i}" for i in range(10)})


def test_a_run_of_another_schema(store: RunStore, plan: Plan) -> None:
    run = store.create(plan, Provenance())
    (run.path / "run.json").write_text('{"schema": 2}')
    with pytest.raises(RecordsFault, match="'schema': Input should be 1"):
        store.find("toy", run.name)
    assert store.list("toy") == [run]


def test_a_run_of_an_older_revision_is_read(store: RunStore, plan: Plan) -> None:
    run = store.create(replace(plan, reduced=("--quick",)), Provenance())
    data = json.loads((run.path / "run.json").read_text())
    data["plan"]["selection"] |= {"flavour": None}
    del data["plan"]["selection"]["figures"]
    data["plan"]["points"][0]["needs"] = {"gpus": {"count": 2, "devices": ["0", "GPU-b"]}}
    data |= {"unknown": 1, "resumed": [{"at": "2026", "provenance": {"gone": True}}]}
    (run.path / "run.json").write_text(json.dumps(data))
    record = store.find("toy", run.name).record
    assert record.plan.selection == Selection()
    assert [point.key for point in record.plan.points] == [point.key for point in plan.points]
    assert record.plan.reduced == ("--quick",)
    gpus = record.plan.points[0].needs.gpus
    assert gpus is not None
    assert gpus.count == 2
    assert record.resumed[0].at == "2026"


def test_run_json_holds_the_plan_whole_and_results_read_it(store: RunStore, plan: Plan) -> None:
    run = store.create(replace(plan, reduced=("--quick",)), Provenance())
    run.resume(replace(plan, reduced=("--quick",)), Provenance())
    written = json.loads((run.path / "run.json").read_text())["plan"]
    assert written == json.loads(json.dumps(describe(replace(plan, reduced=("--quick",)))))
    assert load_run(run.path).origins[0].reduced == ("--quick",)
    assert not list(run.path.glob(".run.json*"))


def test_a_resumed_run_follows_the_new_plan(store: RunStore, plan: Plan) -> None:
    run = store.create(plan, Provenance(ae="a"))
    run.resume(replace(plan, points=plan.points[:1]), Provenance(ae="b"))
    run.resume(replace(plan, points=plan.points[:2]), Provenance(ae="c"))
    assert [point.id for point in run.record.plan.points] == [p.id for p in plan.points[:2]]
    assert run.record.provenance == Provenance(ae="a")
    assert [entry.provenance for entry in Run(run.path).record.resumed] == [
        Provenance(ae="b"),
        Provenance(ae="c"),
    ]


def test_a_folder_that_cannot_be_written(tmp_path: Path, plan: Plan) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="cannot write") as caught:
        RunStore(tmp_path / "file" / "results").create(plan, Provenance())
    assert "AE_RESULTS" in caught.value.fix
    assert caught.value.exit_code == ExitCode.ENVIRONMENT


def test_room_is_held_for_the_status_of_a_point_that_runs(store: RunStore, plan: Plan) -> None:
    run, point = store.create(plan, Provenance()), plan.points[0]
    run.begin(point)
    assert (run.path / ".reserve").stat().st_blocks * 512 >= RESERVE_BYTES
    run.finish(point, DONE)
    assert not (run.path / ".reserve").exists()


def test_a_full_disk_leaves_no_half_status(
    store: RunStore, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, point = store.create(plan, Provenance()), plan.points[0]
    folder = run.begin(point)

    def full(self: Path, *_: object, **__: object) -> int:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(EnvironmentFault, match="No space left on device"):
        run.finish(point, DONE)
    assert folder.exists()
    assert not (run.path / "points" / point.id).exists()


def test_results_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AE_RESULTS", raising=False)
    assert results_dir(tmp_path) == tmp_path / "results"
    monkeypatch.setenv("AE_RESULTS", str(tmp_path / "elsewhere"))
    assert results_dir(tmp_path) == tmp_path / "elsewhere"

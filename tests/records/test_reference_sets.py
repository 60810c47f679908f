"""Reference sets: what `ae keep` adds and replaces, and whose provenance a point has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ae.errors import UsageError
from ae.records.files import RecordsFault
from ae.records.models import Provenance, Source
from ae.records.results import (
    Results,
    find_set,
    keep,
    load_reference,
    load_run,
    machine_of,
    reference_sets,
)
from ae.statistics import by_process

CLEAN = {"revision": "a" * 40, "dirty": False}

RECORD = (
    '{"metric": "time", "unit": "us", "samples": [1.0], "evidence": "measured", '
    '"labels": {"variant": "base"}}\n'
)


def run(folder: Path, name: str, *points: dict[str, Any], **facts: Any) -> Results:
    """A run's folder; a point is id, key, variants and what else differs, `time` its value."""
    folder = folder / "runs" / "toy" / name
    planned, created = [], f"2026-01-{name}"
    for point in points:
        place = folder / "points" / point["id"]
        place.mkdir(parents=True)
        planned.append(
            {"id": point["id"], "key": point["key"], "needs": {"gpus": facts.get("gpus")},
             "image": {"reference": "ae/toy:cuda", "content": "c" * 64}}
        )  # fmt: skip
        status = {
            "id": point["id"], "key": point["key"], "status": point.get("status", "done"),
            "seconds": 1.0, "ended": created, "experiment": "e", "labels": {},
            "variants": point.get("variants", ["base"]),
        }  # fmt: skip
        (place / "status.json").write_text(json.dumps(status))
        lines = [
            {"metric": "time", "unit": "us", "samples": [point["time"]], "evidence": "measured",
             "labels": {"variant": variant}, **point.get("more", {})}
            for variant in status["variants"]
        ]  # fmt: skip
        (place / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (place / "stdout.log").write_text("chatter")
        gpu = {"gpu": facts.get("gpu", "NVIDIA H200"), "gpu_uuid": facts.get("gpu_uuid", [])}
        (place / "environment.json").write_text(json.dumps(gpu))
    data = {
        "schema": 1, "recipe": "toy", "name": name, "created": created,
        "plan": {"recipe": "toy", "lane": "native", "flavour": "cuda", "quick": False,
                 "points": planned, "selection": {}, "reduced": facts.get("reduced", [])},
        "provenance": {"source": facts.get("source", CLEAN), "command": ["run", "toy"],
                       "host": {"name": facts.get("host", "")}},
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(data))
    return load_run(folder)


def point(name: str, key: str, time: float, *variants: str, **facts: Any) -> dict[str, Any]:
    return {"id": name, "key": key, "time": time, "variants": variants or ("base",), **facts}


def values(found: Results) -> dict[tuple[str, str], float]:
    return {(row.point, row.labels["variant"]): row.samples[0] for row in found.rows}


def test_every_point_of_every_run_is_a_process_of_its_device(tmp_path: Path) -> None:
    """Or several, where the workload says so. A point that runs twice is not one that is longer."""
    folder = tmp_path / "reference/h200/toy"
    rank = {"more": {"process": "rank0"}}
    keep(run(tmp_path, "01", point("a", "ka", 1.0), point("a-r1", "kb", 2.0), host="left"), folder)
    keep(run(tmp_path, "02", point("a-r2", "kc", 3.0, **rank), host="right"), folder)
    rows = load_reference(folder).rows
    assert by_process(map(vars, rows)) == {
        ("left", "01/a"): [1.0], ("left", "01/a-r1"): [2.0], ("right", "02/a-r2/rank0"): [3.0],
    }  # fmt: skip


def test_a_host_of_the_same_name_with_another_gpu_is_another_device(tmp_path: Path) -> None:
    folder = tmp_path / "reference/h200/toy"
    for at, uuid in enumerate(("GPU-a", "GPU-a", "GPU-b")):
        one = run(tmp_path, f"0{at}", point(f"p-r{at}", f"k{at}", 1.0), host="vm", gpu_uuid=[uuid])
        keep(one, folder)
    found = by_process(map(vars, load_reference(folder).rows))
    assert [device for device, _ in sorted(found)] == ["GPU-a", "GPU-a", "GPU-b"]


def test_a_set_is_the_union_of_its_runs(tmp_path: Path) -> None:
    folder = tmp_path / "reference/h200/toy"
    keep(run(tmp_path, "01", point("a", "ka", 1.0), point("b", "kb", 2.0)), folder)
    later = run(tmp_path, "02", point("b", "kb", 3.0), point("c", "kc", 4.0), reduced=["--quick"])
    assert keep(later, folder) == ["b"]
    found = load_reference(folder)
    assert values(found) == {("a", "base"): 1.0, ("b", "base"): 3.0, ("c", "base"): 4.0}
    assert [point.origin.run for point in found.points] == ["01", "02", "02"]
    assert {row.point: row.reduced for row in found.rows} == {
        "a": (), "b": ("--quick",), "c": ("--quick",),
    }  # fmt: skip
    assert [(one.run, list(one.points)) for one in found.origins] == [
        ("01", ["ka"]), ("02", ["kb", "kc"]),
    ]  # fmt: skip
    assert (found.name, found.recipe) == ("h200", "toy")
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    own = ("environment.json", "records.jsonl", "status.json")
    assert files == {f"points/{name}/{file}" for name in "abc" for file in own} | {
        "runs/01.json", "runs/02.json",
    }  # fmt: skip


def test_a_run_of_which_nothing_is_left_goes(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    keep(run(tmp_path, "01", point("a", "old", 1.0)), folder)
    again = run(tmp_path, "02", point("a", "new", 2.0, "base", "fast"))
    assert keep(again, folder) == ["a"]  # the same id, and no variant less
    assert values(load_reference(folder)) == {("a", "base"): 2.0, ("a", "fast"): 2.0}
    assert [path.name for path in (folder / "runs").iterdir()] == ["02.json"]
    assert keep(again, folder) == ["a"]
    assert len(load_reference(folder).points) == 1


def test_an_older_point_with_other_variants_stays_and_the_newer_record_counts(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "set"
    keep(run(tmp_path, "01", point("a", "k" * 8 + "1", 1.0, "base", "slow")), folder)
    assert keep(run(tmp_path, "02", point("a", "m" * 8 + "2", 2.0, "base", "fast")), folder) == []
    found = load_reference(folder)
    assert values(found) == {("a", "slow"): 1.0, ("a", "base"): 2.0, ("a", "fast"): 2.0}
    assert len(found.rows) == 3
    assert {path.name for path in (folder / "points").iterdir()} == {"a", "a-mmmmmmmm"}


def test_points_that_did_not_finish_are_not_kept(tmp_path: Path) -> None:
    made = run(tmp_path, "01", point("a", "ka", 1.0), point("b", "kb", 2.0, status="interrupted"))
    keep(made, tmp_path / "set")
    assert [point.status.id for point in load_reference(tmp_path / "set").points] == ["a"]
    with pytest.raises(UsageError, match="no finished point"):
        keep(run(tmp_path, "02", point("a", "k", 1.0, status="failed")), tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "source",
    [
        {}, {"revision": None, "dirty": None}, {"revision": "b" * 40, "dirty": True},
        {"revision": "b" * 8}, {"revision": "b" * 40, "stated_revision": "main"},
    ],
)  # fmt: skip
def test_a_run_of_no_clean_revision_is_refused(tmp_path: Path, source: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="clean revision"):
        keep(run(tmp_path, "01", point("a", "k", 1.0), source=source), tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_a_stated_revision_counts_and_no_difference_is_kept(tmp_path: Path) -> None:
    source = {"revision": "b" * 40, "dirty": True, "stated_revision": "c" * 40, "diff": "secret",
              "diff_sha256": "d", "new_files": {"x": "y"}}  # fmt: skip
    keep(run(tmp_path, "01", point("a", "k", 1.0), source=source), tmp_path / "set")
    (origin,) = load_reference(tmp_path / "set").origins
    assert origin.provenance == Provenance(source=Source(revision="c" * 40), command=("run", "toy"))
    assert origin.images == {"ae/toy:cuda": "c" * 64}
    assert "secret" not in (tmp_path / "set/runs/01.json").read_text()


@pytest.mark.parametrize(
    ("gpu", "count", "name"),
    [(None, None, "cpu"), ("NVIDIA H200", 1, "h200"), ("NVIDIA H200", 2, "h200x2"),
     ("NVIDIA A100-SXM4-40GB", 8, "a100-sxm4-40gbx8"),
     ("NVIDIA GeForce RTX 3060", 1, "geforce-rtx-3060")],
)  # fmt: skip
def test_machine_of(tmp_path: Path, gpu: str | None, count: int | None, name: str) -> None:
    gpus = {"count": count} if count else None
    made = run(tmp_path, "01", point("a", "k", 1.0), gpu=gpu, gpus=gpus)
    assert machine_of(made) == name


def test_results_are_found_by_machine_folder_and_run(tmp_path: Path) -> None:
    made = run(tmp_path, "01", point("a", "k", 1.0))
    folder = tmp_path / "results/reference/h200/toy"
    keep(made, folder)
    assert reference_sets(tmp_path, "toy") == {"h200": folder}
    assert reference_sets(tmp_path, "other") == {}
    for name in ("h200", str(folder)):
        assert find_set(tmp_path, "toy", name) == folder
    assert find_set(tmp_path, "toy", "a100") is None
    assert find_set(tmp_path, "dlrm", str(folder)) is None
    assert find_set(tmp_path, "toy", str(tmp_path / "results")) is None  # of no recipe


def test_sets_of_another_results_folder_stand_beside_those_of_the_recipes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, own = run(tmp_path, "01", point("a", "k", 1.0)), tmp_path / "own"
    for path in (tmp_path / "results", own):
        keep(made, path / "reference/cpu/toy")
    keep(made, tmp_path / "results/reference/h200/toy")
    monkeypatch.setenv("AE_RESULTS", str(own))
    assert find_set(tmp_path, "toy", "cpu") == own / "reference/cpu/toy"
    assert [*reference_sets(tmp_path, "toy")] == ["cpu", "h200"]


def test_a_point_of_no_run_is_one_sentence(tmp_path: Path) -> None:
    keep(run(tmp_path, "01", point("a", "k", 1.0)), tmp_path / "set")
    (tmp_path / "set/runs/01.json").unlink()
    with pytest.raises(RecordsFault, match=r"points/a is not what a run in .*/runs left there"):
        load_reference(tmp_path / "set")
    (tmp_path / "set/runs/01.json").write_text('{"recipe": 3}')
    with pytest.raises(RecordsFault, match=r"runs/01\.json: "):
        load_reference(tmp_path / "set")


@pytest.mark.parametrize(
    "change",
    [
        lambda point: (point / "records.jsonl").write_text(RECORD.replace("1.0", "0.9")),
        lambda point: (point / "records.jsonl").write_text(RECORD + RECORD),
        lambda point: (point / "skipped.jsonl").write_text('{"labels": {}, "reason": "slow"}\n'),
        lambda point: (point / "environment.json").unlink(),
        lambda point: point.rename(point.parent.parent / "gone"),
    ],
    ids=["another number", "a line more", "a file more", "a file less", "the point less"],
)
def test_a_point_that_was_changed_after_it_was_kept_is_refused(
    tmp_path: Path, change: Callable[[Path], Any]
) -> None:
    """And nothing is added to such a set."""
    folder, made = tmp_path / "set", run(tmp_path, "01", point("a", "ka", 1.0), point("b", "k", 2))
    keep(made, folder)
    assert (folder / "points/a/records.jsonl").read_text() == RECORD
    change(folder / "points/a")
    for read in (load_reference, lambda _: keep(made, folder)):
        with pytest.raises(RecordsFault, match=r"set/(points/a|ka) is not what a run in"):
            read(folder)

"""Record files: what is accepted, what is refused and where, and the table they become."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ae.errors import ExitCode, WorkloadError
from ae.records import files as records
from ae.records.files import Environment, RecordsFault, Row, read_point
from ae.records.results import load_run

GOOD: dict[str, Any] = {
    "metric": "kernel_time", "unit": "us", "samples": [1.0, 2], "labels": {"variant": "base"},
    "evidence": "measured",
}  # fmt: skip


def write_point(folder: Path, lines: list[Any], **files: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines)
    (folder / "records.jsonl").write_text(text)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def fail(folder: Path) -> RecordsFault:
    with pytest.raises(RecordsFault) as caught:
        read_point(folder)
    assert isinstance(caught.value, WorkloadError)
    assert caught.value.exit_code == ExitCode.WORKLOAD
    assert caught.value.fix
    return caught.value


def test_good_files(tmp_path: Path) -> None:
    full = GOOD | {"schema": 1, "warmup": 3, "note": "n"}
    folder = write_point(
        tmp_path / "p", [GOOD, "", full],
        skipped__jsonl=json.dumps({"labels": {"variant": "stock21"}, "reason": "no wheel"}),
        environment__json={"gpu": "NVIDIA H200"},
    )  # fmt: skip
    found = read_point(folder)
    assert [record.samples for record in found.records] == [(1.0, 2.0), (1.0, 2.0)]
    assert found.records[1].warmup == 3
    assert found.records[1].note == "n"
    assert found.skipped[0].reason == "no wheel"
    assert found.environment == Environment(gpu="NVIDIA H200")


def test_missing_files_are_empty(tmp_path: Path) -> None:
    assert read_point(tmp_path) == records.PointRecords()


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"samples": []}, "'samples'"),
        ({"samples": 3.0}, "'samples'"),
        ({"samples": [1.0, "2"]}, "'samples.1'"),
        ({"samples": [True]}, "'samples.0'"),
        ({"samples": [10**400]}, "'samples.0': Input should be a finite number"),
        ({"evidence": "mesured"}, "'evidence': Input should be 'measured', 'scaled'"),
        ({"evidence": ["measured"]}, "'evidence'"),
        ({"metric": ""}, "'metric'"),
        ({"unit": 3}, "'unit'"),
        ({"labels": {"dim": 128}}, "'labels.dim'"),
        ({"labels": ["x"]}, "'labels'"),
        ({"labels": {"median": "x"}}, "a label may not be called 'median'"),
        ({"labels": {"baseline": "x"}}, "a label may not be called 'baseline'"),
        ({"warmup": 1.5}, "'warmup'"),
        ({"sample": [1]}, "unknown key 'sample'; did you mean 'samples'?"),
        ({"schema": 2}, "'schema': Input should be 1"),
        ({"schema": "1"}, "'schema'"),
    ],
)
def test_bad_records(tmp_path: Path, change: dict[str, Any], place: str) -> None:
    error = fail(write_point(tmp_path / "point-a", [GOOD, GOOD | change]))
    assert error.message.startswith("point-a/records.jsonl:2: ")
    assert place in error.message


@pytest.mark.parametrize("key", ["metric", "unit", "samples", "labels", "evidence"])
def test_missing_keys(tmp_path: Path, key: str) -> None:
    line = {name: value for name, value in GOOD.items() if name != key}
    assert f"'{key}': Field required" in fail(write_point(tmp_path / "p", [line])).message


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_numbers_that_are_not_finite(tmp_path: Path, number: str) -> None:
    line = json.dumps(GOOD).replace("[1.0, 2]", f"[1.0, {number}]")
    assert "finite" in fail(write_point(tmp_path / "p", [line])).message


@pytest.mark.parametrize(
    "line",
    ["mean = 3.5", "[1]", "null", "{'a': 1}", "[" * 100_000, '{"samples": [' + "9" * 5000 + "]}"],
)
def test_lines_that_are_no_objects(tmp_path: Path, line: str) -> None:
    message = fail(write_point(tmp_path / "p", [GOOD, line, GOOD])).message
    assert message.startswith("p/records.jsonl:2: ")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    write_point(tmp_path, [])
    (tmp_path / "records.jsonl").write_bytes(b'{"metric": "\xff"}\n')
    assert "records.jsonl:1: not a JSON object" in fail(tmp_path).message


def test_a_truncated_file_keeps_its_good_lines(tmp_path: Path) -> None:
    write_point(tmp_path / ".p.tmp", [GOOD, GOOD])
    path = tmp_path / ".p.tmp" / "records.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    error = fail(tmp_path / ".p.tmp")
    assert error.message.startswith("p/records.jsonl:2: not a JSON object: Invalid JSON: EOF")
    (tmp_path / "run/points").mkdir(parents=True)
    (tmp_path / ".p.tmp").rename(tmp_path / "run/points/p")
    assert fail(tmp_path / "run/points/p").message.startswith("run/p/records.jsonl:2: not a JSON")
    path = tmp_path / "run/points/p/records.jsonl"
    assert error.fix.startswith("measure the point again (ae run RUN --resume)")
    assert path.read_bytes() == content[:-20]


def test_a_last_line_without_newline_is_whole(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text(json.dumps(GOOD))
    assert len(read_point(tmp_path).records) == 1


def test_a_later_schema_says_what_to_do(tmp_path: Path) -> None:
    assert "ae build" in fail(write_point(tmp_path, [GOOD | {"schema": 2}])).fix


@pytest.mark.parametrize("content", ["{", "[]", "\x00", '{"n": ' + "9" * 5000 + "}"])
def test_a_bad_environment(tmp_path: Path, content: str) -> None:
    folder = write_point(tmp_path / "p", [GOOD], environment__json=content)
    assert fail(folder).message.startswith("p/environment.json: not a JSON object")


@pytest.mark.parametrize("line", [{"labels": {}}, {"labels": {}, "reason": ""}, {"reason": 3}])
def test_a_bad_skip(tmp_path: Path, line: dict[str, Any]) -> None:
    folder = write_point(tmp_path / "p", [GOOD], skipped__jsonl=json.dumps(line))
    assert "skipped.jsonl:1: " in fail(folder).message


def test_sizes_are_bounded(tmp_path: Path) -> None:
    line = b'{"note": "' + b"x" * records.LINE_BYTES + b'"}\n'
    (tmp_path / "records.jsonl").write_bytes(json.dumps(GOOD).encode() + b"\n" + line)
    error = fail(tmp_path)
    assert ":2: a line larger than 16 MiB" in error.message
    with (tmp_path / "records.jsonl").open("wb") as file:
        file.truncate(records.FILE_BYTES + 1)  # takes no room on the disk
    assert "records.jsonl: larger than 512 MiB" in fail(tmp_path).message
    (tmp_path / "records.jsonl").unlink()
    (tmp_path / "environment.json").write_bytes(line)
    assert "environment.json: larger than 16 MiB" in fail(tmp_path).message


def make_run(folder: Path) -> Path:
    """A run with two done points in the plan's order, a failed, a skipped and an unfinished one."""
    ids = ["z-first", "a-second", "failed", "unfit"]
    (folder / "points").mkdir(parents=True)
    run = {
        "schema": 1, "recipe": "toy", "name": "r1", "created": "2026-01-01", "provenance": {},
        "plan": {
            "recipe": "toy", "lane": "native", "flavour": "cpu", "notes": ["left out: x"],
            "points": [
                {"id": i, "key": f"key of {i}", "image": {"reference": "i", "content": "c"}}
                for i in ids
            ],
            "quick": True, "selection": {}, "reduced": ["--quick"],
        },
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(run))
    for name, status in zip(ids, ["done", "done", "failed", "skipped"], strict=True):
        state = {
            "id": name, "key": f"key of {name}", "experiment": name.split("-")[0],
            "labels": {"dataset": "ones", "l": "p"}, "repeat": 0, "status": status,
            "reason": "no abacus", "seconds": 1.0, "ended": "2026-01-01",
        }  # fmt: skip
        gpu = "NVIDIA H200" if name == "a-second" else None
        write_point(
            folder / "points" / name, [GOOD | {"labels": {"l": "mine", name[0]: "x"}}],
            status__json=state, environment__json={"gpu": gpu, "who": name},
            skipped__jsonl=json.dumps({"labels": {"variant": "v"}, "reason": "cannot"}),
        )  # fmt: skip
    with (folder / "points/failed/records.jsonl").open("a") as file:
        file.write('{"metric": "ti')  # it was cut off
    write_point(folder / "points" / ".open.tmp", ["garbage"])
    return folder


def test_load_run(tmp_path: Path) -> None:
    results = load_run(make_run(tmp_path / "run"))
    rows = results.rows
    assert [row.point for row in rows] == ["z-first", "a-second"]  # the plan's order
    assert rows[0].labels == {"dataset": "ones", "l": "mine", "z": "x"}  # its own labels win
    assert rows[0].environment is not None
    assert rows[0].environment.gpu == ()
    assert rows[1].environment is not None
    assert rows[1].environment.gpu_name == "NVIDIA H200"
    assert {row.reduced for row in rows} == {("--quick",)}
    assert results.origins[0].notes[0].startswith("run with --quick")
    assert [point.status.status for point in results.points] == [
        "done", "done", "failed", "skipped",
    ]  # fmt: skip


def test_skips(tmp_path: Path) -> None:
    skips = load_run(make_run(tmp_path / "run")).skips
    assert [(skip.labels["experiment"], skip.reason) for skip in skips] == [
        ("z", "cannot"), ("a", "cannot"), ("unfit", "no abacus"),
    ]  # fmt: skip
    assert skips[0].labels["variant"] == "v"


def test_the_environment_of_a_run_is_that_of_a_gpu_point(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert load_run(run).environment.model_extra == {"who": "a-second"}
    (run / "points/z-first/environment.json").unlink()
    assert load_run(run).rows[0].environment == load_run(run).environment
    for path in run.glob("points/*/status.json"):
        path.unlink()
    assert load_run(run).environment == Environment()


def test_every_driver_of_a_set_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for name, driver in (("z-first", "580"), ("a-second", "590")):
        facts = {"gpu": "NVIDIA H200", "driver": driver}
        (run / "points" / name / "environment.json").write_text(json.dumps(facts))
    assert load_run(run).environment.driver == "580, 590"


@pytest.mark.parametrize(
    ("file", "content"),
    [("run.json", "{"), ("run.json", "[1]"), ("run.json", '{"plan": {"points": 3}}'),
     ("run.json", '{"plan": {"points": [{"needs": 3}]}}'),
     ("points/failed/status.json", "{}"), ("points/failed/status.json", "[]"),
     ("points/failed/status.json", '{"id": ' + "9" * 5000 + "}"),
     ("points/failed/status.json", '{"status": "finished"}')],
)  # fmt: skip
def test_a_wrong_run_or_status_is_one_sentence(tmp_path: Path, file: str, content: str) -> None:
    run = make_run(tmp_path / "run")
    (run / file).write_text(content)
    with pytest.raises(RecordsFault) as caught:
        load_run(run)
    assert caught.value.message.startswith(f"run/{file.removeprefix('points/')}: ")


@pytest.mark.parametrize(
    ("environment", "name"),
    [({"gpu": "NVIDIA H200"}, "NVIDIA H200"), ({"gpu": None}, None), ({}, None),
     ({"gpu": ""}, None), ({"gpu": ["A", "B"]}, "A"),
     ({"gpu": [{"name": "A"}]}, "A"), ({"gpu": []}, None)],
)  # fmt: skip
def test_gpu_name(environment: dict[str, Any], name: str | None) -> None:
    assert Environment.model_validate(environment).gpu_name == name


def test_frame() -> None:
    rows = [
        Row(metric="m", unit="us", evidence="measured", samples=(3.0, 1.0, 2.0),
            labels={"a": "1"}, experiment="e", point="e-1"),
        Row(metric="m", unit="us", evidence="static", samples=(7.0,), labels={"b": "2"},
            experiment="e", point="e-2", repeat=1, note="why"),
    ]  # fmt: skip
    table = records.frame(rows)
    assert list(table.columns) == [*records.COLUMNS, "a", "b"]
    assert table["samples"][0] == (3.0, 1.0, 2.0)
    assert list(table["b"].isna()) == [True, False]
    assert table["note"][1] == "why"


def test_an_empty_frame_has_its_columns() -> None:
    table = records.frame([])
    assert table.empty
    assert list(table.columns) == list(records.COLUMNS)


def test_the_module_is_light() -> None:
    code = (
        "import sys, ae.records.files, ae.units, ae.records.folder;"
        "print([m for m in ('matplotlib', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

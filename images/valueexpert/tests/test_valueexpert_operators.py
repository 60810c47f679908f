"""Operators of PyTorch before and after: the same results; what is made of the tool's findings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from accel_trace.values.findings import Finding
from accel_trace.values.recorded import Replay
from reprokit.errors import Failure
from reprokit.records import RecordWriter
from valueexpert.cli import PROGRAM
from valueexpert.experiments import operators as experiment
from valueexpert.operators import CHANGED, OPERATORS
from valueexpert.turns import same

HERE = tuple(name for name, operator in OPERATORS.items() if operator.here)


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", [name for name in HERE if name != "deepwave"])
def test_both_variants_of_an_operator_give_the_same(name: str) -> None:
    pytest.importorskip("torch")
    operator = OPERATORS[name]
    before, after = operator.make(False, "cpu")
    assert (after is not None) == (name in CHANGED)
    result = before().clone()
    if after is not None:
        assert same(result, after().clone(), operator.exact)
        assert not same(result, after() + 1, operator.exact)


def test_the_program_runs_both_in_turns() -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-m", "valueexpert.turns", "kv_cache,embedding", "quick", "3", "cpu"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["operator"], line["variant"]) for line in lines] == [
        *[("kv_cache", variant) for variant in ("before", "after", "after", "before") * 2][:6],
        *[("embedding", "before")] * 3,
    ]  # fmt: skip
    assert all(line["same"] and line["us"] > 0 for line in lines)


def test_a_place_belongs_to_one_operator() -> None:
    assert experiment.belongs("fill in embedding, write", "embedding")
    assert experiment.belongs("embedding", "embedding")
    assert not experiment.belongs("fill in embedding_backward, write", "embedding")
    assert not experiment.belongs("inputs of embedding", "embedding")


def test_found_is_what_was_suspected_and_the_promise_is_of_all_bytes(tmp_path: Path) -> None:
    found = Replay(moved={"fill in slice_backward": 400, "copy in slice_backward": 800,
                          "fill in kv_cache": 400})  # fmt: skip
    findings = [
        Finding("dead_write", "fill in slice_backward", "slice_backward", 390, 400),
        Finding("frequent_values", "copy in slice_backward, read", "slice_backward", 300, 800),
    ]
    out = RecordWriter(tmp_path)
    experiment.tell("slice_backward", found, findings, out)
    experiment.tell("kv_cache", found, findings[1:], out)
    told = {(r["metric"], r["labels"]["operator"]): r["samples"][0] for r in records(tmp_path)}
    assert told["found", "slice_backward"] == 1
    assert told["promised", "slice_backward"] == pytest.approx(1200 / 810)
    assert told["found", "kv_cache"] == 0, "a pattern that nobody suspected is no redundancy"
    assert ("promised", "kv_cache") not in told


def test_times_are_kept_by_process_and_another_result_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = {"operator": "kv_cache", "variant": "before", "us": 7.0, "same": True}
    said = [json.dumps(line | {"us": us}) for us in (99.0, 5.0, 6.0)]
    monkeypatch.setattr(experiment, "lines_of", lambda *_: said)
    config = PROGRAM.parse(["operators", "--device", "cuda", "--operators", "kv_cache"])
    experiment.measure(["kv_cache"], config, 3, RecordWriter(tmp_path))
    (record,) = records(tmp_path)
    assert (record["samples"], record["process"]) == ([5.0, 6.0], "3")
    said.append(json.dumps(line | {"same": False}))
    with pytest.raises(Failure, match="kv_cache: without the redundancy it gives another result"):
        experiment.measure(["kv_cache"], config, 0, RecordWriter(tmp_path))


def test_without_a_gpu_nothing_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left:
        experiment.run(PROGRAM.parse(["operators"]), RecordWriter(tmp_path))
    assert left.value.code == 77

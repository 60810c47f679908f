import json
import math

import pytest
from reprokit.records import RecordWriter, output_folder


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_record_holds_what_the_contract_names(tmp_path):
    out = RecordWriter(tmp_path / "new" / "folder")
    out.write("kernel_time", "us", (3, 2.5), {"tables": 12}, warmup=4, note="odd")
    (record,) = lines(out.out_dir / "records.jsonl")
    assert record == {
        "schema": 1,
        "metric": "kernel_time",
        "unit": "us",
        "samples": [3.0, 2.5],
        "labels": {"tables": "12"},
        "evidence": "measured",
        "warmup": 4,
        "note": "odd",
    }


def test_samples_of_several_processes_are_a_record_each(tmp_path):
    out = RecordWriter(tmp_path)
    for process in ("1", "2"):
        out.write("m", "us", [1.0], {}, process=process)
    assert [line["process"] for line in lines(tmp_path / "records.jsonl")] == ["1", "2"]
    with pytest.raises(ValueError, match="process without a name"):
        out.write("m", "us", [1.0], {}, process="")


def test_a_line_is_on_disk_as_soon_as_it_is_written(tmp_path):
    out = RecordWriter(tmp_path)
    for count in (1, 2):
        out.write("m", "us", [1.0], {})
        assert len(lines(tmp_path / "records.jsonl")) == count


@pytest.mark.parametrize(
    ("samples", "evidence", "words"),
    [
        ([], "measured", "no samples"),
        ([1.0, math.nan], "measured", "not a finite number"),
        ([math.inf], "measured", "not a finite number"),
        ([1.0], "guessed", "unknown evidence 'guessed'"),
    ],
)
def test_a_bad_record_is_refused_and_nothing_is_written(tmp_path, samples, evidence, words):
    with pytest.raises(ValueError, match=words):
        RecordWriter(tmp_path).write("m", "us", samples, {}, evidence=evidence)
    assert not (tmp_path / "records.jsonl").exists()


def test_a_skip_keeps_labels_and_reason(tmp_path):
    RecordWriter(tmp_path).skip({"variant": "stock21"}, " no GPU ")
    assert lines(tmp_path / "skipped.jsonl") == [
        {"labels": {"variant": "stock21"}, "reason": "no GPU"}
    ]


def test_a_skip_without_a_reason_is_refused(tmp_path):
    with pytest.raises(ValueError, match="reason"):
        RecordWriter(tmp_path).skip({"variant": "stock21"}, "  ")


def test_environment_facts_are_merged(tmp_path):
    out = RecordWriter(tmp_path)
    out.environment(gpu="A", driver="1")
    out.environment(gpu="B")
    facts = json.loads((tmp_path / "environment.json").read_text())
    assert facts == {"gpu": "B", "driver": "1"}
    assert [path.name for path in tmp_path.iterdir()] == ["environment.json"]


def test_the_output_folder_is_what_the_launcher_says(monkeypatch):
    monkeypatch.setenv("AE_OUT", "/ae/out")
    assert str(output_folder("elsewhere")) == "/ae/out"
    monkeypatch.delenv("AE_OUT")
    assert str(output_folder("elsewhere")) == "elsewhere"

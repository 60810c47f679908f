"""Whatever stands in a file of records: it is read, or it is one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from ae.records.files import (
    EVIDENCE,
    RESERVED,
    Environment,
    RecordsFault,
    read_object,
    read_point,
)
from ae.records.models import StatusRecord
from ae.records.results import Origin, load_run

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
LABELS = st.dictionaries(
    st.text(max_size=8).filter(lambda name: name not in RESERVED), st.text(max_size=8), max_size=4
)
RECORDS = st.fixed_dictionaries(
    {
        "metric": st.text(min_size=1, max_size=8),
        "unit": st.text(max_size=4),
        "samples": st.lists(
            st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**15), 10**15),
            min_size=1, max_size=5,
        ),
        "labels": LABELS,
        "evidence": st.sampled_from(EVIDENCE),
    },
    optional={"warmup": st.integers(0, 99), "note": st.text(), "schema": st.just(1)},
)  # fmt: skip
KEYS = ("metric", "unit", "samples", "labels", "evidence", "warmup", "note", "schema", "odd")
QUICK = settings(max_examples=150, deadline=None)


def outcome(call: Callable[[], Any], words: str) -> Any:
    """What `call` gives, or its fault, which is one sentence with `words`."""
    try:
        return call()
    except RecordsFault as error:
        fault = error
    assert words in fault.message
    assert "\n" not in fault.message
    assert fault.fix
    return fault


def read(content: bytes, name: str = "records.jsonl") -> Any:
    """What comes of a file: what was read, or the fault, with its sentence."""
    with TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(content)
        return outcome(lambda: read_point(Path(folder)), f"/{name}")


@QUICK
@given(st.lists(RECORDS, max_size=4))
def test_what_is_right_is_read_as_it_stands(lines: list[dict[str, Any]]) -> None:
    found = read("".join(json.dumps(line) + "\n" for line in lines).encode())
    assert [record.samples for record in found.records] == [
        tuple(float(sample) for sample in line["samples"]) for line in lines
    ]
    assert [record.labels for record in found.records] == [line["labels"] for line in lines]
    assert [record.metric for record in found.records] == [line["metric"] for line in lines]


@QUICK
@given(RECORDS, st.sampled_from(KEYS), JSON)
def test_a_record_with_one_wrong_key_is_refused_or_sound(
    line: dict[str, Any], key: str, value: Any
) -> None:
    found = read(json.dumps({**line, key: value}).encode())
    if not isinstance(found, RecordsFault):
        (record,) = found.records
        assert all(isfinite(sample) for sample in record.samples)
        assert all(isinstance(text, str) for text in record.labels.values())
        assert record.evidence in EVIDENCE
        assert key != "odd"


@QUICK
@given(st.sampled_from(["records.jsonl", "skipped.jsonl", "environment.json"]), st.binary())
def test_any_bytes(name: str, content: bytes) -> None:
    read(content, name)


@QUICK
@given(RECORDS, st.data())
def test_a_record_that_is_cut_off_is_never_read(line: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(line).encode()
    found = read(text[: data.draw(st.integers(1, len(text) - 1))])
    assert isinstance(found, RecordsFault)
    assert "not a JSON object" in found.message


@QUICK
@given(JSON, st.sampled_from([Environment, Origin, StatusRecord]))
def test_any_object(value: Any, model: type[BaseModel]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "file.json"
        path.write_text(json.dumps(value))
        outcome(lambda: read_object(path, model), "file.json: ")


@QUICK
@given(JSON, st.sampled_from(["plan", "provenance", "recipe", "name", "created", "schema"]))
def test_any_run(value: Any, key: str) -> None:
    point = {"id": "a", "key": "k", "image": {"reference": "i", "content": "c"},
             "needs": {"gpus": {"count": 1}}}  # fmt: skip
    plan = {"recipe": "r", "lane": "native", "flavour": "cpu", "quick": False, "selection": {},
            "points": [point]}  # fmt: skip
    run = {"schema": 1, "recipe": "r", "name": "n", "created": "c", "plan": plan, "provenance": {}}
    with TemporaryDirectory() as folder:
        (Path(folder) / "run.json").write_text(json.dumps({**run, key: value}))
        found = outcome(lambda: load_run(Path(folder)), "run.json: ")
    assert isinstance(found, RecordsFault) or found.rows == []

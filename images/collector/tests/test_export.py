"""Traces for other programs."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from accel_trace.events import (
    CopyTime,
    KernelTime,
    Memset,
    Note,
    OperatorEnd,
    OperatorStart,
    RegionEnd,
    RegionStart,
    Sync,
)
from accel_trace.export import chrome, gpu_offset, jsonl
from accel_trace.session import Session
from collector_logs import alloc, launch, tensor, write


def at(ns: int, event):
    return replace(event, ns=ns)


def kernel(number: int, start: int, end: int) -> KernelTime:
    return KernelTime(
        launch=number, name="gemm", start_ns=start, end_ns=end, device=0, stream=7, correlation=1
    )


@pytest.fixture
def recorded(tmp_path) -> Session:
    write(tmp_path, 5, [
        at(10_000, RegionStart(name="step")),
        at(11_000, OperatorStart(name="aten::mm", index=0, thread=77)),
        at(12_000, alloc(0x1000, 4096)),
        at(13_000, tensor(0x1000, 512, allocated=512)),
        at(14_000, launch(0, 'gemm<"x">', operator="aten::mm", region="step", stream=7)),
        at(14_500, Memset(address=1, size=64, value=0, element=1, asynchronous=1, stream=0)),
        at(15_000, OperatorEnd(name="aten::mm", index=0, thread=77)),
        at(16_000, launch(1, "relu")),
        at(17_000, Sync(what=2, stream=0)),
        at(18_000, Note(level=1, text="grün")),
        at(19_000, RegionEnd(name="step")),
        at(30_000, kernel(0, 1_000_500, 1_002_500)),
        at(30_000, kernel(1, 1_003_000, 1_003_700)),
        at(30_000, CopyTime(what="memcpy", direction=2, start_ns=1_004_000, end_ns=1_005_000,
                            size=99, device=0, stream=7)),
    ])  # fmt: skip
    write(tmp_path, 6, [at(20_000, launch(0, "other", device=1))])
    for path in tmp_path.glob("*.atl"):  # the header's own time is that of the test
        data = bytearray(path.read_bytes())
        data[32:40] = (10_000).to_bytes(8, "little")
        path.write_bytes(data)
    return Session(tmp_path)


def entries(session: Session, path: Path) -> list[dict]:
    count = chrome(session, path)
    found = json.loads(path.read_text())
    assert set(found) == {"displayTimeUnit", "traceEvents"}
    assert len(found["traceEvents"]) == count
    return found["traceEvents"]


def test_every_entry_has_what_the_format_asks_for(recorded, tmp_path):
    for entry in entries(recorded, tmp_path / "t.json"):
        assert {"name", "ph", "pid", "tid"} <= set(entry)
        assert isinstance(entry["pid"], int)
        assert isinstance(entry["tid"], int)
        if entry["ph"] != "M":
            assert entry["ts"] >= 0
        assert ("dur" in entry) == (entry["ph"] == "X")


def test_operators_and_regions_are_slices_that_close(recorded, tmp_path):
    found = entries(recorded, tmp_path / "t.json")
    slices = [(e["ph"], e["name"], e["ts"]) for e in found if e["ph"] in "BE"]
    assert slices == [("B", "step", 0.0), ("B", "aten::mm", 1.0), ("E", "aten::mm", 5.0),
                      ("E", "step", 9.0)]  # fmt: skip
    rows = {e["tid"]: e["args"]["name"] for e in found
            if e["name"] == "thread_name" and e["pid"] == 5}  # fmt: skip
    assert {"regions", "operators 77", "launches, device 0 stream 0x7"} <= set(rows.values())


def test_kernels_are_slices_no_earlier_than_their_launch(recorded, tmp_path):
    (process, _) = recorded.processes
    # launch 0: 14000 - 1000500; launch 1: 16000 - 1003000; the larger keeps both behind
    assert gpu_offset(process) == 14_000 - 1_000_500
    found = [e for e in entries(recorded, tmp_path / "t.json") if e["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"]) for e in found] == [
        ("gemm", 4.0, 2.0), ("gemm", 6.5, 0.7), ("memcpy", 7.5, 1.0),
    ]  # fmt: skip


def test_launches_counters_and_names(recorded, tmp_path):
    found = entries(recorded, tmp_path / "t.json")
    launches = [e for e in found if e["ph"] == "i" and "launch" in e.get("args", {})]
    assert [(e["pid"], e["name"]) for e in launches] == [
        (5, 'gemm<"x">'), (5, "relu"), (6, "other"),
    ]  # fmt: skip
    assert launches[0]["args"]["operator"] == "aten::mm"
    counters = {e["name"]: e["args"] for e in found if e["ph"] == "C"}
    assert counters == {
        "tensors on device 0 (bytes)": {"allocated": 512, "reserved": 1024},
        "driver's memory on device 0 (bytes)": {"allocated": 4096},
    }
    names = [e["args"]["name"] for e in found if e["name"] == "process_name"]
    assert names == ["process 5 (pid 5)", "process 6 (pid 6)"]
    assert any(e["name"] == "grün" for e in found)
    assert any(e["name"] == "wait for a context" for e in found)


def test_an_empty_folder_is_an_empty_trace(tmp_path):
    assert entries(Session(tmp_path), tmp_path / "t.json") == []


def test_only_gpu_times_without_launches_begin_with_the_process(tmp_path):
    write(tmp_path, 5, [kernel(0, 5_000_000_000, 5_000_001_000)])
    (process,) = Session(tmp_path).processes
    assert gpu_offset(process) == process.start_ns - 5_000_000_000
    found = entries(Session(tmp_path), tmp_path / "t.json")
    assert [e["ts"] for e in found if e["ph"] == "X"] == [0.0]


def test_json_lines_hold_every_event_in_order_of_time(recorded, tmp_path):
    path = tmp_path / "e.jsonl"
    count = jsonl(recorded, path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == count == 15 + 2  # the two logs' ends
    times = [line["ns"] for line in lines if line["kind"] != "End"]
    assert times == sorted(times)
    assert lines[0] == {"kind": "RegionStart", "pid": 5, "clock": 1, "ns": 10_000, "name": "step"}


def test_a_pipe_is_written_as_it_is_and_not_replaced(recorded, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    chrome(recorded, pipe)
    assert json.loads(os.read(reader, 1 << 20))["traceEvents"]
    os.close(reader)
    assert pipe.is_fifo()

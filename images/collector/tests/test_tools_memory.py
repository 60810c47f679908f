"""Tools about memory, on logs made by hand whose results are known."""

from __future__ import annotations

import csv
import json
import random

import numpy as np
import pytest
from accel_trace.events import Fact, KernelTime, Memcpy, Memset, OperatorEnd, OperatorStart
from accel_trace.session import Session
from accel_trace.tools.base import Report, Tool, ToolError
from accel_trace.tools.hints import (
    Hints,
    redundant_memsets,
    repeated_copies,
    synchronous_copies,
    tiny_grids,
    untouched_pieces,
)
from accel_trace.tools.launch_sets import launch_sets
from accel_trace.tools.memory_timeline import MemoryTimeline, thinned
from accel_trace.tools.working_set import Statistics, WorkingSet
from collector_logs import MIB, alloc, free, launch, session, tensor, tensor_free, touched


def value(report: Report, metric: str, **labels: object) -> float:
    """Return the only sample of the only record of that metric with those labels."""
    found = [
        record
        for record in report.records
        if record.metric == metric and labels.items() <= dict(record.labels).items()
    ]
    assert len(found) == 1, (metric, labels, found)
    (sample,) = found[0].samples
    return sample


def run(tool: type[Tool], opened: Session, **settings: object) -> Report:
    return tool(settings, opened.folder).run(opened)


def test_a_launchs_sets_are_tensors_and_objects_as_they_were_then(tmp_path):
    opened = session(
        tmp_path,
        alloc(0x100000, 20 * MIB),
        alloc(0x9000000, 3 * MIB),
        alloc(0x200, 64, flags=0x1),  # a module's
        tensor(0x100000, 4 * MIB),
        tensor(0x500000, 2 * MIB),
        launch(0, "gemm"),
        tensor_free(0x100000, 4 * MIB),
        free(0x9000000),
        launch(1, "filtered", analysed=0),
        alloc(0x9000000, 7 * MIB),  # the same address, another object
        tensor(0x9000000, 1 * MIB),
        launch(2, "relu", analysed=2),
        launch(3, "empty"),
        touched(0, 0x100000, 4 * MIB),
        touched(0, 0x500000, 2 * MIB),
        touched(0, 0x9000000, 3 * MIB, what=0),
        touched(0, 0x200, 64, what=0, flags=1),
        touched(0, 0, 0, what=0),
        touched(2, 0x9000000, 1 * MIB),
        touched(99, 0x9000000, 1 * MIB),
    )
    sets = launch_sets(opened.processes[0])
    gemm, relu, empty = sets.rows
    assert (gemm.ws_tensor, gemm.ws) == (6 * MIB, 9 * MIB)
    assert gemm.ws_object == 23 * MIB  # both tensors lie in one object
    assert (gemm.footprint, gemm.tensor_footprint) == (23 * MIB, 6 * MIB)
    assert gemm.elsewhere
    assert (relu.ws, relu.ws_object) == (1 * MIB, 7 * MIB)
    assert (relu.footprint, relu.tensor_footprint) == (27 * MIB, 3 * MIB)
    assert (empty.ws, empty.ws_object, empty.pieces) == (0, 0, 0)
    assert (sets.module_pieces, sets.orphans, sets.lost) == (1, 1, 0)


def test_an_object_counts_beside_its_tensors_only_when_none_of_them_was_touched(tmp_path):
    opened = session(
        tmp_path,
        alloc(0x1000, 0x1000),
        alloc(0x2000, 0x1000),
        alloc(0x3000, 0x1000),
        tensor(0x1800, 0x800),  # ends with its object
        tensor(0x2000, 0x100),
        launch(0, "k"),
        launch(1, "k"),
        touched(0, 0x1000, 0x1000, what=0),
        touched(0, 0x2000, 0x1000, what=0),
        touched(0, 0x3000, 0x1000, what=0),
        touched(0, 0x1800, 0x800),
        touched(1, 0x2000, 0x100),  # without a line for its object
    )
    first, second = launch_sets(opened.processes[0]).rows
    assert (first.ws_tensor, first.ws_object, first.ws) == (0x800, 0x3000, 0x2800)
    assert (second.ws_tensor, second.ws_object, second.ws) == (0x100, 0x1000, 0x100)


def test_the_report_of_working_sets(tmp_path):
    opened = session(
        tmp_path,
        alloc(0x100000, 32 * MIB),
        tensor(0x100000, 4 * MIB),
        tensor(0x800000, 8 * MIB),
        launch(0, "small"),
        launch(1, "large"),
        launch(2, "both"),
        touched(0, 0x100000, 4 * MIB),
        touched(1, 0x800000, 8 * MIB),
        touched(2, 0x100000, 4 * MIB),
        touched(2, 0x800000, 8 * MIB),
    )
    report = run(WorkingSet, opened)
    for name, expected in (("max", 12), ("min", 4), ("mean", 8), ("median", 8), ("p90", 11.2)):
        got = value(report, f"ws_{name}", level="tensor", variant="gpu", process="5")
        assert got == pytest.approx(expected * MIB)
        assert value(report, f"ws_{name}", level="object") == 32 * MIB
    assert value(report, "launches") == 3
    assert value(report, "footprint_mean") == value(report, "footprint_max") == 32 * MIB
    assert value(report, "tensors_max") == 12 * MIB
    assert "max    is that of launch 2: both" in report.text
    assert "median is that of launch 1: large" in report.text
    assert "p90    is that of launch 2: both" in report.text
    with (tmp_path / "working-set.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["kernel"], int(row["ws"])) for row in rows] == [
        ("small", 4 * MIB), ("large", 8 * MIB), ("both", 12 * MIB),
    ]  # fmt: skip


def test_launches_after_the_last_result_of_a_cut_log_do_not_count(tmp_path):
    opened = session(
        tmp_path, tensor(0x100000, MIB), launch(0, "a"), touched(0, 0x100000, MIB), launch(1, "b")
    )
    path = tmp_path / "trace-5.atl"
    path.write_bytes(path.read_bytes()[:-32])
    opened = Session(tmp_path)
    report = run(WorkingSet, opened)
    assert value(report, "launches") == 1
    assert value(report, "ws_min", level="all") == MIB
    assert (
        "1 launches whose result was lost, at the cut end of the log say, are unknown"
        in report.text
    )


def test_no_launch_at_all_is_said(tmp_path):
    report = run(WorkingSet, session(tmp_path, tensor(0x100000, MIB)))
    assert "no launch was analysed" in report.text


def test_percentiles_are_numpys_linear_ones():
    chance = random.Random(4)
    for count in (1, 2, 3, 10, 97):
        values = [chance.randrange(10**9) for _ in range(count)]
        ordered = sorted(values)

        def at(share: float, ordered: list[int] = ordered) -> float:
            position = share * (len(ordered) - 1)
            low = int(position)
            high = min(low + 1, len(ordered) - 1)
            return ordered[low] + (ordered[high] - ordered[low]) * (position - low)

        found = Statistics.of(values)
        assert found.median == pytest.approx(at(0.5))
        assert found.p90 == pytest.approx(at(0.9))
        assert (found.max, found.min) == (max(values), min(values))
        assert found.mean == pytest.approx(sum(values) / count)


@pytest.mark.parametrize(
    ("settings", "mode", "environment"),
    [
        ({}, "touch", {}),
        ({"variant": "cpu"}, "trace",
         {"ACCEL_TRACE_ANALYSIS": "touch", "ACCEL_TRACE_WORKERS": "1"}),
        ({"variant": "cpu_mt", "workers": 3}, "trace",
         {"ACCEL_TRACE_ANALYSIS": "touch", "ACCEL_TRACE_WORKERS": "3"}),
    ],
)  # fmt: skip
def test_each_variant_of_working_sets_asks_for_its_mode(settings, mode, environment):
    needs = WorkingSet(settings).needs_of(0, ())
    assert (needs.mode, dict(needs.environment)) == (mode, environment)
    assert "torch" in needs.handlers


def test_the_bound_by_arguments_takes_the_innermost_operator_that_has_one(tmp_path):
    def operator(cls, index, name="op", thread=1):
        return cls(name=name, index=index, thread=thread)

    opened = session(
        tmp_path,
        launch(0, "outside"),
        operator(OperatorStart, 0),
        launch(1, "in 0"),
        operator(OperatorStart, 1),
        launch(2, "in 1, which has no line"),
        operator(OperatorStart, 2, thread=9),
        operator(OperatorStart, 3),
        launch(3, "in 3"),
        operator(OperatorEnd, 3),
        operator(OperatorEnd, 1),
        launch(4, "in 0 again"),
        operator(OperatorEnd, 0),
        launch(5, "outside again"),
    )
    with pytest.raises(ToolError, match="needs a PyTorch program"):
        run(WorkingSet, opened, variant="args")
    lines = [{"operator": "op", "index": i, "bytes": b} for i, b in ((0, 100), (2, 7), (3, 50))]
    (tmp_path / "args-5.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = run(WorkingSet, opened, variant="args")
    assert value(report, "launches") == 4
    assert value(report, "ws_max", level="bound") == 100
    assert value(report, "ws_min", level="bound") == 50
    assert "2 launches outside of any operator" in report.text
    (tmp_path / "args-5.jsonl").write_text('{"index": "x", "bytes": 1}\n')
    with pytest.raises(ToolError, match="cannot be read"):
        run(WorkingSet, opened, variant="args")


def test_the_timeline_of_each_device_and_level(tmp_path):
    opened = session(
        tmp_path,
        alloc(0x1000, 100),
        tensor(0x1000, 60, allocated=60),
        alloc(0x2000, 50, device=1),
        alloc(0x3000, 10, flags=0x1),
        tensor(0x1100, 20, allocated=80),
        tensor_free(0x1000, 60, allocated=20),
        tensor(0x2000, 5, allocated=5, device=1),
        free(0x1000),
        free(0x7777),
    )
    report = run(MemoryTimeline, opened)
    assert value(report, "peak_allocated", device=0, level="tensor") == 80
    assert value(report, "peak_reserved", device=0, level="tensor") == 160
    assert value(report, "memory_events", device=0, level="tensor") == 3
    assert value(report, "allocations", device=0, level="tensor") == 2
    assert value(report, "peak_position", device=0, level="tensor") == 0.5
    assert value(report, "peak_allocated", device=1, level="tensor") == 5
    assert value(report, "memory_events", device=0, level="object") == 2
    assert value(report, "peak_allocated", device=1, level="object") == 50
    (curve,) = (
        record.samples
        for record in report.records
        if record.metric == "curve_allocated" and record.labels["device"] == 0
        and record.labels["level"] == "tensor"
    )  # fmt: skip
    assert curve == (60, 80, 20)
    with (tmp_path / "memory-timeline.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["change"]) for row in rows if row["level"] == "tensor"] == [60, 20, -60, 5]


def test_the_timeline_says_whose_tensors_they_are(tmp_path):
    words = "storages seen by operators, the host's as those of device 0"
    opened = session(tmp_path, Fact(name="tensors", value=words), tensor(0x1000, 60, allocated=60))
    assert f"process 5, tensor: {words}" in run(MemoryTimeline, opened).text.splitlines()


def test_a_thinned_curve_keeps_the_peak_and_the_order():
    values = [random.Random(9).randrange(1000) for _ in range(1003)]
    for points in (1, 7, 100, 1003, 5000):
        curve = thinned(values, points)
        assert len(curve) == min(points, 1003)
        assert max(curve) == max(values)
    assert thinned(values, 5000) == values
    assert thinned([], 5) == []


def test_nothing_allocated_is_said(tmp_path):
    assert "nothing was allocated" in run(MemoryTimeline, session(tmp_path, launch(0, "a"))).text


def copy(source: int, destination: int, size: int, direction: int = 2, later: int = 0) -> Memcpy:
    return Memcpy(
        destination=destination, source=source, size=size, direction=direction,
        asynchronous=later, stream=0,
    )  # fmt: skip


def memset(address: int, size: int, byte: int = 0) -> Memset:
    return Memset(address=address, size=size, value=byte, element=1, asynchronous=1, stream=0)


def test_tiny_grids_have_their_time_where_it_is_known(tmp_path):
    time = KernelTime(
        launch=1, name="t", start_ns=100, end_ns=150, device=0, stream=0, correlation=0
    )
    events = [launch(0, "big", grid_x=8), launch(1, "void t<int>", grid_x=7), launch(2, "t"), time]
    hint = tiny_grids(session(tmp_path, *events).processes[0], 8)
    assert (hint.count, hint.ns, hint.where) == (2, 50, "t (2x)")


def test_repeated_copies_count_all_but_the_first(tmp_path):
    events = [copy(1, 2, 100)] * 4 + [copy(1, 3, 100)] * 2 + [copy(1, 2, 100, direction=3)] * 9
    hint = repeated_copies(session(tmp_path, *events).processes[0], 3)
    assert (hint.count, hint.bytes) == (3, 300)
    assert hint.where == "100 B to 0x2 (3x)"


def test_a_memset_is_redundant_only_while_nothing_came_between(tmp_path):
    events = [
        launch(0, "before", operator="aten::zero_"),
        memset(0, 64), memset(0, 64),  # redundant
        memset(0, 64, 1), memset(0, 64, 0),  # another value, and back
        memset(256, 64), copy(9999, 300, 4), memset(256, 64),  # a copy into it
        memset(512, 64), copy(9999, 576, 4), memset(512, 64),  # redundant: a copy beside it
        memset(1024, 64), launch(1, "k"), memset(1024, 64),  # a kernel
        memset(2048, 64), memset(2040, 16), memset(2048, 64),  # partly set otherwise
        memset(4096, 64), free(4096), alloc(4096, 64), memset(4096, 64),
    ]  # fmt: skip
    hint = redundant_memsets(session(tmp_path, *events).processes[0])
    assert (hint.count, hint.bytes, hint.where) == (2, 128, "aten::zero_ (2x)")


def test_synchronous_copies_in_a_loop(tmp_path):
    events = []
    for number in range(12):
        events += [launch(number, "void k<float>"), copy(number, 8, 4, direction=3)]
    events += [copy(1, 2, 64)] * 9 + [copy(1, 2, 32, later=1)] * 50
    hint = synchronous_copies(session(tmp_path, *events).processes[0], 10)
    assert (hint.count, hint.bytes) == (12, 48)
    assert hint.where == "DtoH 4 B, after k (12x)"


def test_memory_that_is_never_touched(tmp_path):
    opened = session(
        tmp_path,
        alloc(0x1000000, 8 * MIB),  # touched by its tensor
        tensor(0x1000000, 2 * MIB),
        tensor(0x1400000, 2 * MIB),  # never touched
        alloc(0x4000000, 4 * MIB),  # copied to
        alloc(0x6000000, 4 * MIB),  # never touched
        alloc(0x8000000, 64),  # too small
        copy(1, 0x4000010, 4),
        launch(0, "a"),
        tensor_free(0x1000000, 2 * MIB),
        tensor(0x1000000, 3 * MIB),  # the same address again, and now not touched
        touched(0, 0x1000000, 2 * MIB),
    )
    hint = untouched_pieces(opened.processes[0], MIB)
    assert (hint.count, hint.bytes) == (3, 9 * MIB)
    assert "objects of 4.00 MiB (1x)" in hint.where


def test_untouched_memory_is_not_told_of_when_launches_were_filtered(tmp_path):
    opened = session(tmp_path, alloc(0x6000000, 4 * MIB), launch(0, "a", analysed=0))
    report = run(Hints, opened)
    assert "not every launch was analysed" in report.text
    assert not [r for r in report.records if r.labels["hint"] == "untouched_pieces"]
    assert value(report, "hints", hint="tiny_grids") == 1


def test_the_csv_of_a_working_set_is_read_back_by_numpy(tmp_path):
    opened = session(
        tmp_path, tensor(0x100000, MIB), launch(0, 'a<"x",\n1>'), touched(0, 0x100000, MIB)
    )
    run(WorkingSet, opened)
    with (tmp_path / "working-set.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["kernel"] == 'a<"x",\n1>'
    assert np.float64(row["ws"]) == MIB

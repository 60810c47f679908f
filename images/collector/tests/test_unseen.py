"""What a report says of what the record cannot tell, on logs made by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from accel_trace.events import Event, Fact, Lost, Note, Nothing, Refused, TensorMap, Uses
from accel_trace.reporting import make_report
from accel_trace.session import Session
from accel_trace.tools.access_counts import AccessCounts
from accel_trace.tools.hints import untouched_pieces
from accel_trace.tools.launch_sets import launch_sets
from accel_trace.tools.uvm_advisor import Advisor
from accel_trace.tools.working_set import WorkingSet
from collector_logs import MIB, alloc, free, launch, session, tensor, tensor_free, touched

LOADS, STORES, TEXTURES = 1, 2, 8


def tensor_map(number: int, address: int, span: int) -> TensorMap:
    extents = dict.fromkeys([f"extent_{i}" for i in range(5)], 1)
    strides = dict.fromkeys([f"stride_{i}" for i in range(1, 5)], 0)
    return TensorMap(
        launch=number, address=address, span=span, size=span, type=9, rank=1, **extents, **strides
    )


def uses(number: int, what: int) -> Uses:
    return Uses(launch=number, what=what)


def report(folder: Path, *events: Event, tool: type = WorkingSet) -> str:
    opened = session(folder, *events)
    return make_report(tool({}, folder), [opened]).text


MEMORY = [alloc(0x100000, 64 * MIB), tensor(0x100000, 8 * MIB), tensor(0x900000, 8 * MIB)]


def test_a_launch_touches_the_tensors_that_its_maps_name_as_they_were_then(tmp_path):
    opened = session(
        tmp_path, *MEMORY, alloc(0x9000000, MIB), launch(0, "mm"),
        tensor_map(0, 0x100000, 8 * MIB), tensor_map(0, 0x900000 + 512, 64),
        tensor_map(0, 0x9000000, 16), tensor_free(0x900000, 8 * MIB), free(0x9000000),
        launch(1, "mm"), tensor_map(1, 0x900000 + 512, 64), touched(0, 0x100000, 8 * MIB),
    )  # fmt: skip
    first, second = launch_sets(opened.processes[0]).rows
    assert (first.ws_tensor, first.ws, first.ws_object) == (16 * MIB, 17 * MIB, 65 * MIB)
    assert (second.ws_tensor, second.ws_object) == (0, 64 * MIB)


def test_what_is_known_by_descriptor_says_so_and_how_it_is_used(tmp_path):
    text = report(
        tmp_path, *MEMORY, launch(0, "mm"), tensor_map(0, 0x100000, 512), uses(0, LOADS),
        launch(1, "mm"), tensor_map(1, 0x100000, 512), uses(1, LOADS | STORES),
        launch(2, "plain"), touched(2, 0x900000, 8 * MIB), launch(3, "unknown code"),
        tensor_map(3, 0x100000, 512),
    )  # fmt: skip
    assert text.startswith("process 5: by descriptor: 3 launches got tensor maps")
    with (tmp_path / "working-set.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["by_descriptor"] for row in rows] == [
        "read", "read or written", "", "read or written",
    ]  # fmt: skip
    assert {row["ws"] for row in rows} == {str(8 * MIB)}


def test_what_no_map_is_known_of_is_counted_and_never_0_bytes(tmp_path):
    text = report(
        tmp_path, *MEMORY, launch(0, "built on the GPU"), uses(0, LOADS), Nothing(launch=0),
        launch(1, "and a workspace"), uses(1, LOADS), touched(1, 0x100000, 8 * MIB),
        launch(2, "tex"), uses(2, TEXTURES), touched(2, 0x900000, 8 * MIB),
    )  # fmt: skip
    lines = text.splitlines()
    assert lines[0].startswith("process 5: not seen: 2 launches copy by tensor map (TMA), and no")
    assert lines[1].startswith("process 5: not seen: texture reads of 1 launches")
    assert "1 launches that touched nothing but by tensor maps that are not known are" in text
    assert "1 launches touched at least what is said" in text
    assert "min 8.00 MiB" in text


def test_counts_lack_copies_by_tensor_map(tmp_path):
    text = report(
        tmp_path, Fact(name="mode", value="count"), launch(0, "mm"), tensor_map(0, 0x100000, 512),
        uses(0, LOADS), tool=AccessCounts,
    )  # fmt: skip
    assert text.startswith("process 5: not counted: 1 launches copy by tensor map")


@pytest.mark.parametrize(
    ("more", "words"),
    [({}, ""), ({"within": "150"}, ", and so few that all take at most 1.5 times as long")],
)
def test_how_many_iterations_were_sampled_is_said(tmp_path, more, words):
    facts = {
        "every": "10",
        "iterations": "40",
        "iterations_analysed": "4",
        "iterations_by": "steps",
    } | more
    text = report(tmp_path, *(Fact(name=name, value=value) for name, value in facts.items()),
                  *MEMORY, launch(0, "a"))  # fmt: skip
    assert text.startswith(
        "process 5: sampled: 4 of 40 iterations were analysed, one in 10"
        f"{words} (told apart by steps)"
    )


def test_remarks_stand_in_every_report(tmp_path):
    text = report(tmp_path, *MEMORY, launch(0, "a"), Note(level=1, text="graphs share a state"))
    assert "note: graphs share a state" in text


def test_a_lost_launch_is_unknown(tmp_path):
    text = report(
        tmp_path, *MEMORY, launch(0, "a"), touched(0, 0x100000, 8 * MIB), launch(1, "b"),
        Lost(launch=1),
    )  # fmt: skip
    assert text.startswith("process 5: unknown: what 1 launches did was lost")
    assert "min 8.00 MiB" in text


def test_a_launch_that_was_refused_is_in_no_number_but_its_own(tmp_path):
    opened = session(
        tmp_path, *MEMORY, launch(0, "a"), touched(0, 0x100000, 8 * MIB),
        launch(1, "refused"), tensor_map(1, 0x900000, 512), uses(1, LOADS | TEXTURES),
        Refused(launch=1), launch(2, "b"), touched(2, 0x900000, 8 * MIB),
        launch(3, "refused", analysed=2), launch(4, "refused", analysed=4), Refused(launch=3),
        Refused(launch=4),
    )  # fmt: skip
    made = make_report(WorkingSet({}, tmp_path), [opened])
    lines = made.text.splitlines()
    assert lines[0] == (
        "process 5: refused: 3 launches, by the driver: nothing ran, and no other number counts "
        "them"
    )
    assert lines[1].startswith("process 5: 2 launches; ")
    assert "launches: 2 recorded, 2 analysed, 0 not" in made.text
    assert "min 8.00 MiB" in made.text
    counts = {record.metric: record.samples for record in made.records}
    assert (counts["launches_recorded"], counts["launches_refused"]) == ((2,), (3,))
    (process,) = opened.processes
    assert [*process.launch_names()] == [(0, "a"), (2, "b")]
    assert [one.launch for one in process.events((TensorMap, Uses, Refused))] == [1, 3, 4]


def test_of_a_cut_log_the_launches_with_a_result_count(tmp_path):
    session(
        tmp_path, *MEMORY, launch(0, "a"), launch(1, "other stream"), launch(2, "c"),
        launch(3, "d"), Nothing(launch=0), touched(2, 0x100000, 8 * MIB),
    )  # fmt: skip
    path = tmp_path / "trace-5.atl"
    path.write_bytes(path.read_bytes()[:-32])
    sets = launch_sets(Session(tmp_path).processes[0])
    assert [row.launch.name for row in sets.rows] == ["a", "c"]
    assert sets.lost == 2


def test_a_tensor_over_two_mappings_counts_once(tmp_path):
    """As expandable segments have them: the second mapping holds no tensor's start."""
    opened = session(
        tmp_path, alloc(0x200000, 2 * MIB), alloc(0x400000, 2 * MIB), alloc(0x600000, 2 * MIB),
        tensor(0x300000, 2 * MIB), launch(0, "k"), touched(0, 0x200000, 2 * MIB, what=0),
        touched(0, 0x400000, 2 * MIB, what=0), touched(0, 0x300000, 2 * MIB),
        touched(0, 0x600000, 2 * MIB, what=0),
    )  # fmt: skip
    (row,) = launch_sets(opened.processes[0]).rows
    assert (row.ws_tensor, row.ws_object, row.ws) == (2 * MIB, 6 * MIB, 4 * MIB)


def test_what_a_graph_touched_is_told_of_the_graph(tmp_path):
    long = "void kernel<" + "int, " * 40 + ">"
    text = report(
        tmp_path, *MEMORY, launch(0, long, analysed=2), launch(1, "b", analysed=4),
        launch(2, "c", analysed=4), touched(0, 0x100000, 8 * MIB),
    )  # fmt: skip
    assert "launch 0: CUDA graph of 3 kernels, the first void kernel<int" in text
    assert long not in text
    with (tmp_path / "working-set.csv").open() as file:
        assert long in next(csv.DictReader(file))["kernel"]


@pytest.mark.parametrize("framework", [True, False])
def test_no_lines_of_zeros_for_a_program_without_tensors(tmp_path, framework):
    memory = MEMORY if framework else MEMORY[:1]
    text = report(tmp_path, *memory, launch(0, "a"), touched(0, 0x100000, 64 * MIB, what=0),
                  *[touched(0, 0x100000, 8 * MIB)] * framework)  # fmt: skip
    assert ("working set (tensor)" in text) == framework
    assert ("in tensors" in text) == framework
    assert "max 0 B" not in text


def test_other_tools_know_what_maps_name(tmp_path):
    opened = session(tmp_path, *MEMORY[:2], launch(0, "mm"), tensor_map(0, 0x100000, 512))
    (process,) = opened.processes
    assert untouched_pieces(process, MIB).count == 0
    advisor = Advisor()
    for event in process.events():
        advisor.take(event)
    assert advisor.outside == 1

"""The advisor on made-up streams of events, and advice as a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from accel_trace.events import (
    Alloc,
    Event,
    Free,
    Launch,
    OperatorEnd,
    OperatorStart,
    RegionEnd,
    RegionStart,
    TensorAlloc,
    TensorFree,
    Touched,
)
from accel_trace.log_writer import LogWriter
from accel_trace.session import Session
from accel_trace.tools.uvm_advisor import Advisor, UvmAdvisor, advise
from accel_trace.uvm.advice import Advice, AdviceError, Group

MIB = 1 << 20
MANAGED = 0x6  # as the Compute Sanitizer flags cudaMallocManaged


def managed(address: int, size: int, flags: int = MANAGED) -> Alloc:
    return Alloc(address=address, size=size, device=0, flags=flags, stream=0)


def freed(address: int) -> Free:
    return Free(address=address, size=0, device=0, flags=MANAGED, stream=0)


def tensor(address: int, size: int) -> TensorAlloc:
    return TensorAlloc(address=address, size=size, allocated=0, reserved=0, device=0, stream=0)


def gone(address: int) -> TensorFree:
    return TensorFree(address=address, size=0, allocated=0, reserved=0, device=0, stream=0)


def start(index: int, name: str, thread: int = 1) -> OperatorStart:
    return OperatorStart(name=name, index=index, thread=thread)


def end(index: int, name: str = "", thread: int = 1) -> OperatorEnd:
    return OperatorEnd(name=name, index=index, thread=thread)


def launch(number: int, thread: int = 1, analysed: int = 1) -> Launch:
    return Launch(
        launch=number, name="k", device=0, stream=0, context=0, grid_x=1, grid_y=1, grid_z=1,
        block_x=1, block_y=1, block_z=1, analysed=analysed, thread=thread, operator="", region="",
    )  # fmt: skip


def touched(number: int, address: int, what: int) -> Touched:
    return Touched(launch=number, address=address, size=0, what=what, flags=0)


def clocked(events: Sequence[Event]) -> list[Event]:
    """Events with the clock that a log would have given them."""
    return [replace(event, clock=clock) for clock, event in enumerate(events, 1)]


def test_a_group_is_the_union_over_its_kernels() -> None:
    advice = advise(clocked([
        managed(0, 20 * MIB), tensor(0, 2 * MIB), tensor(2 * MIB, 3 * MIB),
        managed(100 * MIB, 20 * MIB), tensor(100 * MIB, 20 * MIB),
        start(0, "aten::linear"), start(1, "aten::addmm"), launch(0), end(1), launch(1), end(0),
        touched(0, 0, 1), touched(0, 2 * MIB, 1), touched(1, 100 * MIB, 1),
    ]))  # fmt: skip
    assert advice.objects == (20 * MIB, 20 * MIB)
    assert advice.tensors == (2 * MIB, 3 * MIB, 20 * MIB)
    assert advice.groups == (Group("aten::linear", (0, 1), (0, 1, 2)),)
    assert (advice.asked("object"), advice.asked("tensor"), advice.asked("none")) == (
        40 * MIB, 25 * MIB, 0,
    )  # fmt: skip


def test_what_is_allocated_within_the_group_needs_no_prefetch() -> None:
    advice = advise(clocked([
        managed(0, 20 * MIB), tensor(0, 2 * MIB),
        start(0, "aten::relu"), tensor(4 * MIB, 2 * MIB), managed(50 * MIB, 20 * MIB),
        tensor(50 * MIB, 4 * MIB), launch(0), end(0),
        touched(0, 0, 1), touched(0, 4 * MIB, 1), touched(0, 50 * MIB, 1),
        start(1, "aten::relu"), launch(1), end(1), touched(1, 4 * MIB, 1), touched(1, 50 * MIB, 1),
    ]))  # fmt: skip
    assert advice.tensors == (2 * MIB, 2 * MIB, 4 * MIB)
    # The new tensor lies in the old object, so the object was there before.
    assert advice.groups == (
        Group("aten::relu", (0,), (0,)),
        Group("aten::relu", (0, 1), (1, 2)),
    )


def test_pieces_up_to_the_threshold_are_not_numbered_but_their_object_is_touched() -> None:
    advice = advise(clocked([
        managed(0, 2 * MIB), managed(10 * MIB, MIB), tensor(0, MIB), tensor(MIB, 512),
        start(0, "a"), launch(0), end(0), touched(0, 0, 1),
        start(1, "b"), launch(1), end(1), touched(1, 10 * MIB, 0),
    ]))  # fmt: skip
    assert (advice.objects, advice.tensors) == ((2 * MIB,), ())
    assert advice.groups == (Group("a", (0,)), Group("b"))


def test_memory_that_is_not_managed_does_not_count() -> None:
    advice = advise(clocked([
        managed(0, 20 * MIB, flags=0), tensor(0, 2 * MIB),
        start(0, "a"), launch(0), end(0), touched(0, 0, 1), touched(0, 0, 0),
    ]))  # fmt: skip
    assert advice == Advice((), (), (Group("a"),))


def test_an_address_that_is_used_again_is_another_tensor() -> None:
    # Touched comes long after its launch: what counts is what was there at the launch.
    advice = advise(clocked([
        managed(0, 20 * MIB), tensor(0, 2 * MIB),
        start(0, "a"), launch(0), end(0), gone(0), tensor(0, 3 * MIB),
        start(1, "b"), launch(1), end(1), gone(0), start(2, "c"), launch(2), end(2),
        touched(0, 0, 1), touched(1, 0, 1), touched(2, 0, 1),
    ]))  # fmt: skip
    assert [group.tensors for group in advice.groups] == [(0,), (1,), ()]


def test_a_freed_object_is_followed_by_another_number() -> None:
    advice = advise(clocked([
        managed(0, 2 * MIB), start(0, "a"), launch(0), end(0), freed(0), managed(0, 2 * MIB),
        start(1, "b"), launch(1), end(1), touched(0, 0, 0), touched(1, 0, 0),
    ]))  # fmt: skip
    assert [group.objects for group in advice.groups] == [(0,), (1,)]


def test_threads_have_their_own_outermost_operators() -> None:
    advice = advise(clocked([
        managed(0, 20 * MIB), tensor(0, 2 * MIB), tensor(2 * MIB, 2 * MIB),
        start(0, "main", 1), start(1, "backward", 2), launch(0, 2), launch(1, 1), end(1, "", 2),
        end(0), touched(0, 0, 1), touched(1, 2 * MIB, 1),
    ]))  # fmt: skip
    assert advice.groups == (Group("main", (0,), (1,)), Group("backward", (0,), (0,)))


def test_launches_outside_of_operators_and_unanalysed_ones_are_left_out() -> None:
    advisor = Advisor()
    for event in clocked([
        managed(0, 2 * MIB), launch(0), start(0, "a"), launch(1, analysed=0), end(0),
        touched(0, 0, 0), touched(1, 0, 0), touched(9, 0, 0),
    ]):  # fmt: skip
        advisor.take(event)
    assert advisor.outside == 1
    assert advisor.advice().groups == (Group("a"),)


def test_only_the_region_has_groups_where_one_is_named() -> None:
    events = clocked([
        managed(0, 2 * MIB), start(0, "before"), end(0), RegionStart(name="uvm"),
        RegionStart(name="other"), start(1, "in"), launch(0), end(1), RegionEnd(name="other"),
        RegionEnd(name="uvm"), start(2, "after"), launch(1), end(2), touched(0, 0, 0),
    ])  # fmt: skip
    assert [g.operator for g in advise(events, region="uvm").groups] == ["in"]
    assert [g.operator for g in advise(events).groups] == ["before", "in", "after"]


def session(folder: Path, events: Sequence[Event]) -> Session:
    folder.mkdir()
    with LogWriter(folder / "trace-5.atl", pid=5) as writer:
        for event in events:
            writer.write(event)
    return Session(folder)


def test_the_tool_writes_advice_that_can_be_read_back(tmp_path: Path) -> None:
    run = session(tmp_path / "run", [
        managed(0, 20 * MIB), tensor(0, 2 * MIB), start(0, "warm"), end(0), RegionStart(name="uvm"),
        start(1, "aten::mm"), launch(0), end(1), RegionEnd(name="uvm"), touched(0, 0, 1),
    ])  # fmt: skip
    report = UvmAdvisor(out=tmp_path).run(run)
    assert report.files == (tmp_path / "advice.json",)
    advice = Advice.load(tmp_path / "advice.json")
    assert advice == Advice((20 * MIB,), (2 * MIB,), (Group("aten::mm", (0,), (0,)),))
    values = {(r.metric, r.labels.get("policy")): r.samples for r in report.records}
    assert values[("asked", "object")] == (20 * MIB,)
    assert values[("asked", "tensor")] == (2 * MIB,)
    assert "1 outermost operators, 1 managed objects and 1 tensors" in report.text


def test_a_program_without_managed_memory_is_told_how_to_get_it(tmp_path: Path) -> None:
    run = session(tmp_path / "run", [start(0, "a"), launch(0), end(0)])
    report = UvmAdvisor({"threshold": 4 * MIB}, out=tmp_path).run(run)
    assert "no managed memory was seen" in report.text
    assert Advice.load(tmp_path / "advice.json").threshold == 4 * MIB


GOOD = {"version": 1, "objects": [5], "tensors": [], "threshold": 1, "region": "uvm",
        "groups": [{"operator": "a", "objects": [0], "tensors": []}]}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 9}, "version 9"),
        ({"objects": []}, "names an object that is not there"),
        ({"groups": [{"operator": "a", "objects": [], "tensors": [0]}]}, "names a tensor"),
        ({"objects": [-5]}, "a negative number"),
        ({"groups": 3}, "is no advice"),
        ({"threshold": None}, "is no advice"),
    ],
)
def test_a_file_that_is_no_advice_is_refused(
    change: dict[str, object], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "advice.json"
    path.write_text(json.dumps(GOOD))
    assert Advice.load(path).groups == (Group("a", (0,), ()),)
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises(AdviceError, match=why):
        Advice.load(path)


def test_a_file_that_is_missing_or_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AdviceError, match="cannot be read"):
        Advice.load(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("advice")
    with pytest.raises(AdviceError, match="is no JSON"):
        Advice.load(tmp_path / "text.json")

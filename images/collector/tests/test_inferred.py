"""Launches inferred from an iteration that was analysed, on logs made by hand and recorded."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from accel_trace.events import Argument, Event, Fact, Iteration, Lost
from accel_trace.launch import Filters, LaunchError
from accel_trace.session import Session
from accel_trace.tools.inferred import infer
from accel_trace.tools.launch_sets import launch_sets
from accel_trace.tools.working_set import WorkingSet
from collector_logs import MIB, alloc, free, launch, session, tensor, tensor_free, touched
from native_support import START, play
from test_native_touch import read
from test_unpatched import CUBLAS, cubin, words
from test_unseen import tensor_map

BASE = 0x100000


def iteration(number: int, began: bool, analysed: bool = False) -> Iteration:
    return Iteration(iteration=number, began=int(began), analysed=int(analysed))


def argument(number: int, place: int, address: int) -> Argument:
    return Argument(launch=number, place=place, address=address)


def step(number: int, first: int, at: int, *, analysed: int, name: str = "k", **more: int
         ) -> list[Event]:  # fmt: skip
    """An iteration of two launches: its tensors of 4 and 2 MiB lie at `at`, or as `more` says."""
    a, b = more.get("a", at), more.get("b", at + 4 * MIB)
    shift, extra = more.get("shift", 0), more.get("extra", 0)
    out: list[Event] = [
        tensor(a, 4 * MIB), tensor(b, more.get("size", 2 * MIB)),
        iteration(number, True, analysed > 0), launch(first, name, analysed=analysed),
        argument(first, 0, a), argument(first, 3 << 16 | 1, b + shift),
        launch(first + 1, "last", analysed=analysed), argument(first + 1, 0, a),
        iteration(number, False, analysed > 0),
    ]  # fmt: skip
    if analysed:
        out += [
            touched(first, a, 4 * MIB),
            touched(first, b, 2 * MIB),
            touched(first + 1, a, 4 * MIB),
        ]
        if extra:
            out.append(touched(first + 1, 0x9000000, MIB, what=0))
    return [*out, tensor_free(a, 4 * MIB), tensor_free(b, 2 * MIB)]


MEMORY: list[Event] = [alloc(BASE, 64 * MIB), alloc(0x9000000, MIB)]


def found(folder: Path, *events: Event) -> tuple[list[int], int, int, int, int]:
    """Working sets of inferred launches in MiB; unmatched, outside, checked, mismatches."""
    (process,) = session(folder, *events).processes
    out = infer(process, launch_sets(process))
    sizes = [row.ws // MIB for row in out.rows]
    return sizes, out.unmatched, out.outside, out.checked, out.mismatches


def test_launches_take_their_own_pieces_where_the_analysed_one_took_its(tmp_path):
    events = [
        *MEMORY, launch(0, "before", analysed=0), *step(0, 1, BASE, analysed=0),
        *step(1, 3, BASE, analysed=1, extra=1), *step(2, 5, BASE + 8 * MIB, analysed=0),
        *step(3, 7, BASE, analysed=0, a=BASE + 20 * MIB),
    ]  # fmt: skip
    assert found(tmp_path, *events) == ([6, 5, 6, 5], 0, 3, 0, 0)
    (process,) = Session(tmp_path).processes
    row = infer(process, launch_sets(process)).rows[0]
    assert row.tensors == {BASE + 8 * MIB: 4 * MIB, BASE + 12 * MIB: 2 * MIB}
    assert row.objects == {BASE: 64 * MIB}
    assert row.inferred


@pytest.mark.parametrize(
    ("other", "sizes"),
    [
        ({"name": "other"}, [4]),
        ({"shift": 512}, [4]),
        ({"size": 3 * MIB}, [7, 4]),  # the tensor at its place has a size of its own
        ({"b": 0x77000000}, [6, 4]),  # in no object that is known: a tensor all the same
    ],
)
def test_what_is_not_the_same_is_not_inferred(tmp_path, other, sizes):
    events = [
        *MEMORY, *step(0, 0, BASE, analysed=1), *step(1, 2, BASE + 8 * MIB, analysed=0, **other),
    ]  # fmt: skip
    assert found(tmp_path, *events) == (sizes, 2 - len(sizes), 0, 0, 0)


# What a further word of the first launch's arguments named when that was analysed, and names later.
A, B, C = 0, 4 * MIB, 7 * MIB  # the two tensors; a third one that no launch touches


@pytest.mark.parametrize(
    ("named", "names", "sizes"),
    [
        (C, None, [6, 4]),  # what it named was not touched
        (C, A + 512, [6, 4]),
        (None, C, [6, 4]),  # no analysed launch of the kernel touched what it named
        (A, None, [6, 4]),  # another word names the same
        (A, A, [6, 4]),
        (A, C, [4]),  # that tensor may be touched now, and is not the other word's
        (A, A + 512, [4]),
    ],
)
def test_words_that_are_no_addresses_are_not_looked_at(tmp_path, named, names, sizes):
    def one(number: int, at: int, word: int | None, analysed: int) -> list[Event]:
        events = step(number, 2 * number, at, analysed=analysed)
        if word is not None:
            events.insert(6, argument(2 * number, 7 << 16 | 3, at + word))
        return [tensor(at + C, MIB), *events, tensor_free(at + C, MIB)]

    events = [*MEMORY, *one(0, BASE, named, 1), *one(1, BASE + 16 * MIB, names, 0)]
    assert found(tmp_path, *events) == (sizes, 2 - len(sizes), 0, 0, 0)


def test_a_word_by_which_a_kernel_touched_memory_elsewhere_is_an_address(tmp_path):
    def one(number: int, word: int, analysed: int) -> list[Event]:
        """Two launches of one kernel; the first has no second tensor, where `word` is 0."""
        events = step(number, 2 * number, BASE, analysed=analysed, name="last")
        events.insert(8, argument(2 * number + 1, 3 << 16 | 1, word))
        return events

    none, tensor_b = 0x50, BASE + 4 * MIB
    assert found(tmp_path, *MEMORY, *one(0, none, 1), *one(1, none, 0))[:2] == ([6, 4], 0)
    assert found(tmp_path, *MEMORY, *one(0, none, 1), *one(1, tensor_b, 0))[:2] == ([6], 1)


@pytest.mark.parametrize(
    ("other", "reason"),
    [({"name": "other"}, "other: the kernel at its place, its grid or its blocks are others"),
     ({"shift": 512},
      f"k: argument 3, word 1, names byte 512 of a tensor of {2 * MIB}, and named byte 0 of a "
      f"tensor of {2 * MIB}"),
     ({"a": 0x77000000, "b": 0x50},
      f"k: argument 3, word 1, names no memory, and named byte 0 of a tensor of {2 * MIB}")],
)  # fmt: skip
def test_the_report_says_why_launches_were_not_inferred(tmp_path, other, reason):
    later = step(1, 2, BASE + 8 * MIB, analysed=0, **other)
    if "b" in other:
        later = [event for event in later if getattr(event, "size", 0) != 2 * MIB]
    opened = session(
        tmp_path, Fact(name="distinct", value="1"), *MEMORY, *step(0, 0, BASE, analysed=1), *later,
    )  # fmt: skip
    report = WorkingSet({}, tmp_path).run(opened)
    assert f"  not inferred: 1 launches of {reason}" in report.text.splitlines()
    said = {record.metric: (record.samples, record.note) for record in report.records}
    assert said["unmatched"] == ((1,), f"1 of {reason}")
    assert said["partly_known"] == ((1,), "1"), "an iteration without one of its launches"
    assert "of these iterations not all launches are known: 1" in report.text


def test_a_tensor_map_of_another_place_is_named_as_one(tmp_path):
    def own(events: list[Event], at: int) -> list[Event]:
        """The same with a map of 2 MiB among the first launch's parameters."""
        first = next(k for k, event in enumerate(events) if isinstance(event, Argument))
        number = events[first].launch
        return [*events[:first], tensor_map(number, at, 2 * MIB), *events[first:]]

    opened = session(
        tmp_path, Fact(name="distinct", value="1"), *MEMORY,
        *own(step(0, 0, BASE, analysed=1), BASE + 4 * MIB),
        *own(step(1, 2, BASE, analysed=0), BASE + 4 * MIB + 512),
    )  # fmt: skip
    report = WorkingSet({}, tmp_path).run(opened)
    assert "launches of k: tensor map 0 names byte 512 of a tensor of" in report.text


@pytest.mark.parametrize("other", [(0x9000000, 2 * MIB), (0x9000000 - 512, MIB)])
def test_a_piece_that_no_argument_names_must_be_the_same(tmp_path, other):
    events = [
        *MEMORY, *step(0, 0, BASE, analysed=1, extra=1), free(0x9000000), alloc(*other),
        *step(1, 2, BASE, analysed=0),
    ]  # fmt: skip
    assert found(tmp_path, *events) == ([6], 1, 0, 0, 0)


def test_longer_iterations_have_launches_that_match_nothing(tmp_path):
    longer = step(1, 2, BASE, analysed=0)
    longer.insert(-3, launch(4, "one more", analysed=0))
    assert found(tmp_path, *MEMORY, *step(0, 0, BASE, analysed=1), *longer)[:2] == ([6, 4], 1)


def test_checks_count_what_came_out_otherwise(tmp_path):
    other = [e for e in step(2, 4, BASE, analysed=1) if getattr(e, "size", 0) != 2 * MIB]
    other = [tensor(BASE + 4 * MIB, 2 * MIB), *other]
    events = [*MEMORY, *step(0, 0, BASE, analysed=1), *step(1, 2, BASE, analysed=1), *other]
    assert found(tmp_path, *events) == ([], 0, 0, 4, 1)


def test_every_launch_is_in_one_count_of_the_report(tmp_path):
    """Analysed ones that cannot be inferred, too: of another kernel, and without data."""
    other = step(2, 8, BASE, analysed=1, name="other")
    nodes = [launch(10, "k", analysed=2), launch(11, "k", analysed=4), launch(12, "k", analysed=3)]
    opened = session(
        tmp_path, Fact(name="distinct", value="1"), *MEMORY, launch(0, "before", analysed=0),
        launch(1, "before", analysed=1), *step(0, 2, BASE, analysed=1),
        *step(1, 4, BASE, analysed=0, name="other"), *step(1, 6, BASE, analysed=1), *other[:-6],
        *nodes, *other[-6:], *step(3, 13, BASE, analysed=1), Lost(launch=13),
        *step(4, 15, BASE, analysed=0), launch(17, "after", analysed=0),
    )  # fmt: skip
    report = WorkingSet({}, tmp_path).run(opened)
    counts = {r.metric: r.samples[0] for r in report.records if r.unit == "launches"}
    assert counts.pop("mismatches") == 0, "of those that are checked"
    assert counts.pop("launches") == 11, "the rows of the table"
    assert counts == {
        "inferred": 2, "unmatched": 2, "outside": 2, "nodes": 2, "first": 3, "checked": 4,
        "unchecked": 3,
    }  # fmt: skip
    assert sum(counts.values()) == opened.coverage.launches == 18
    assert (
        "2 are as none of the analysed iteration, 2 lie before or outside of iterations, and 2 are "
        "nodes of CUDA graphs that have no result of their own: they are left out; 4 inferred "
        "launches were analysed as well, and 0 of them came out otherwise; 3 that were analysed "
        "could not be inferred, and 3 had no analysed iteration before them"
    ) in report.text
    said = {record.metric: (record.samples, record.note) for record in report.records}
    assert said["partly_known"] == ((2,), "1, 4")
    assert "1 of k: the analysed iteration is shorter" in said["unchecked"][1].split("; ")
    line = "  not checked: 1 launches of k: the analysed iteration is shorter"
    assert line in report.text.splitlines()


def test_the_report_labels_them_and_counts(tmp_path):
    opened = session(
        tmp_path, Fact(name="distinct", value="1"), *MEMORY, *step(0, 0, BASE, analysed=1),
        *step(1, 2, BASE + 8 * MIB, analysed=0),
    )  # fmt: skip
    report = WorkingSet({}, tmp_path).run(opened)
    assert "inferred: 2 launches that were not analysed do as one that was" in report.text
    counts = {r.metric: r.samples[0] for r in report.records if r.unit == "launches"}
    assert counts == {"launches": 4, "inferred": 2, "first": 2} | dict.fromkeys(
        ("unmatched", "outside", "nodes", "checked", "mismatches", "unchecked"), 0
    )
    sizes = {(r.metric[:3], r.evidence) for r in report.records if r.unit == "B"}
    assert sizes == {("ws_", "inferred"), ("foo", "measured"), ("ten", "measured")}
    with (tmp_path / "working-set.csv").open() as file:
        assert [row["known"] for row in csv.DictReader(file)] == [*["measured"] * 2,
                                                                  *["inferred"] * 2]  # fmt: skip


@pytest.mark.parametrize(
    "wrong", [{"every": 3, "distinct": 3}, {"every": -1}, {"distinct": 2, "kernels": "a"},
              {"distinct": 2, "sample": 2}],
)  # fmt: skip
def test_options_that_do_not_go_together_are_refused(wrong):
    with pytest.raises(LaunchError, match="--distinct"):
        Filters(**wrong)


def test_a_recorded_loop_is_inferred(tmp_path: Path) -> None:
    """Each iteration has its buffers elsewhere; by the real cubin's parameters, and a map."""
    script = ["context 1 0", f"module 1 1 - {cubin('90a')}", *START[2:],
              f"alloc 1 {0x7F0000000000:#x} {64 * MIB}"]  # fmt: skip
    for i in range(9):
        at = 0x7F0000000000 + i % 4 * 8 * MIB
        script += [
            f"tensor {at:#x} {MIB}", f"tensor {at + MIB:#x} {3 * MIB}", "step",
            f"tensor_map {i} {words(CUBLAS, at + MIB)}", "launch 1 1 loads",
            f"access {read(at, 9)}", f"access tensor_load 0 0 {i} 0 1",
            f"pointer 8 {at:#x}", f"argument 128 0 {i}", "call",
            "launch 1 1 plain", f"access {read(at + 64, 3)}", f"pointer 8 {at + 64:#x}",
            "argument 8", "call", f"untensor {at:#x}", f"untensor {at + MIB:#x}",
        ]  # fmt: skip
    run = play(script, tmp_path, every=4, distinct=1)
    (process,) = Session(run.folder).processes
    sets = launch_sets(process)
    out = infer(process, sets)
    assert [row.ws // MIB for row in sets.rows] == [4, 1] * 2
    assert [row.ws // MIB for row in out.rows] == [4, 1] * 6
    assert (out.unmatched, out.outside, out.checked, out.mismatches) == (0, 2, 2, 0)
    at = {row.launch.launch: min(row.tensors) for row in [*sets.rows, *out.rows]}
    assert all(at[2 * i] == 0x7F0000000000 + i % 4 * 8 * MIB for i in range(1, 9))

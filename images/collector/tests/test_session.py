"""A recorded run: processes, coverage, and the join of passes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from accel_trace.events import Dropped, Event, Fact, Hot, KernelTime, Note
from accel_trace.session import Session, SessionError, join_passes
from collector_logs import launch, write


def test_facts_notes_and_coverage_of_a_process(tmp_path):
    write(tmp_path, 5, [
        Fact(name="driver", value="580"), Fact(name="driver", value="581"),
        Note(level=1, text="fine"), Note(level=2, text="odd"), Note(level=2, text="odd"),
        launch(0, "a"), launch(1, "b", analysed=0), launch(2, "c", analysed=2),
        launch(3, "d", analysed=3),
        Dropped(what="accesses", count=7), Dropped(what="accesses", count=9),
    ])  # fmt: skip
    session = Session(tmp_path)
    (process,) = session.processes
    assert process.facts == {"driver": "581"}
    assert [note.text for note in process.notes] == ["fine", "odd", "odd"]
    assert not process.truncated
    coverage = session.coverage
    assert (coverage.launches, coverage.analysed, coverage.filtered) == (4, 2, 2)
    assert (coverage.graph_nodes, coverage.dropped_accesses) == (2, 9)
    text = coverage.text()
    assert "4 recorded, 2 analysed, 2 not" in text
    assert "0 events, 9 accesses" in text
    assert "warning: odd (2 times)" in text
    assert "note: fine" in text


def test_a_cut_log_and_a_file_that_is_none_are_in_the_coverage(tmp_path):
    path = write(tmp_path, 5, [launch(0, "a"), launch(1, "b")])
    path.write_bytes(path.read_bytes()[:-40])
    (tmp_path / "trace-6.atl").write_text("hello, I am no log")
    (tmp_path / "trace-7.atl").write_bytes(b"ACTR")
    session = Session(tmp_path)
    assert [process.pid for process in session.processes] == [7, 5]
    assert session.coverage.launches == 1
    assert "not whole: trace-5.atl: its last frame" in session.coverage.text()
    assert "not whole: trace-7.atl: the header is cut" in session.coverage.text()
    assert "trace-6.atl: is no log of accel-trace" in session.coverage.text()


def test_a_handler_that_gave_up_is_said_with_its_reason(tmp_path):
    path = write(tmp_path, 5, [launch(0, "a")])
    status = {"state": "gave_up", "why": "No space left", "dropped_events": 12}
    path.with_suffix(".status").write_text(json.dumps(status).ljust(4096))
    coverage = Session(tmp_path).coverage
    assert coverage.dropped_events == 12
    assert "the handler gave up: No space left" in coverage.text()


def test_processes_are_in_order_of_rank_then_of_start(tmp_path):
    write(tmp_path, 30, [Fact(name="RANK", value="1")])
    write(tmp_path, 40, [Fact(name="RANK", value="0")])
    write(tmp_path, 20, [Fact(name="RANK", value="x")])
    session = Session(tmp_path)
    assert [(p.pid, p.rank, p.label) for p in session.processes] == [
        (40, 0, "0"), (30, 1, "1"), (20, None, "20"),
    ]  # fmt: skip


def test_logs_of_one_process_are_merged_by_time_and_keep_their_own_order(tmp_path):
    write(tmp_path, 5, [Hot(ns=t, launch=t, block=0, count=0) for t in (10, 30, 20, 50)])
    write(tmp_path, 5, [Hot(ns=t, launch=t, block=0, count=0) for t in (5, 15, 40)], "-cupti")
    (process,) = Session(tmp_path).processes
    assert [event.launch for event in process.events([Hot])] == [5, 10, 15, 30, 20, 40, 50]


def test_programs_that_one_process_ran_by_exec_are_kept_apart(tmp_path):
    write(tmp_path, 5, [launch(0, "a"), launch(1, "b")])
    write(tmp_path, 5, [Hot(launch=0, block=0, count=0)], "-python")
    write(tmp_path, 5, [launch(0, "c")], ".2")
    first, second = Session(tmp_path).processes
    assert [name for _, name in first.launch_names()] == ["a", "b"]
    assert len(first.readers) == 2
    assert [name for _, name in second.launch_names()] == ["c"]
    assert (first.label, second.label) == ("5", "5.2")


def test_a_handler_that_gave_up_before_it_had_a_log_is_said(tmp_path):
    status = '{"state": "gave_up", "why": "another profiler is subscribed"}'
    (tmp_path / "trace-9.status").write_text(status.ljust(4096))
    session = Session(tmp_path)
    assert session.processes == ()
    assert "trace-9: the handler gave up: another profiler is subscribed" in session.coverage.text()


def test_events_of_all_processes_come_in_order_of_time(tmp_path):
    write(tmp_path, 1, [Hot(ns=t, launch=t, block=0, count=0) for t in (10, 30)])
    write(tmp_path, 2, [Hot(ns=t, launch=t, block=0, count=0) for t in (20, 40)])
    merged = [(process.pid, event.ns) for process, event in Session(tmp_path).events([Hot])]
    assert merged == [(1, 10), (2, 20), (1, 30), (2, 40)]


def test_the_runs_own_facts(tmp_path):
    assert Session(tmp_path).elapsed is None
    (tmp_path / "run.json").write_text('{"elapsed_s": 2.5}')
    assert Session(tmp_path).elapsed == 2.5
    (tmp_path / "run.json").write_text("[1")
    assert Session(tmp_path).run == {}
    with pytest.raises(SessionError, match="is no folder"):
        Session(tmp_path / "none")


def _passes(tmp_path: Path, *passes: Sequence[Event]) -> list[Session]:
    for number, events in enumerate(passes):
        write(tmp_path / str(number), 100 + number, events)
    return [Session(tmp_path / str(number)) for number in range(len(passes))]


def test_equal_passes_are_joined(tmp_path):
    events = [launch(0, "a"), launch(1, "b", analysed=0)]
    ((one, two, three),) = join_passes(_passes(tmp_path, events, events, events))
    assert (one.pid, two.pid, three.pid) == (100, 101, 102)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (["a", "x", "c"], "launch 1 is 'b' in pass 1, and launch 1 is 'x' in pass 2"),
        (["a", "b"], "launch 2 'c' is in pass 1 alone"),
        (["a", "b", "c", "d"], "launch 3 'd' is in pass 2 alone"),
    ],
)
def test_the_first_launch_that_differs_is_named(tmp_path, second, words):
    sessions = _passes(
        tmp_path,
        [launch(n, name) for n, name in enumerate("abc")],
        [launch(n, name) for n, name in enumerate(second)],
    )
    with pytest.raises(SessionError, match=words):
        join_passes(sessions)


def test_passes_with_other_processes_cannot_be_joined(tmp_path):
    sessions = _passes(tmp_path, [launch(0, "a")], [launch(0, "a")])
    write(tmp_path / "1", 200, [launch(0, "a")])
    with pytest.raises(SessionError, match="1, 2 processes"):
        join_passes([sessions[0], Session(tmp_path / "1")])


def test_a_pass_of_cupti_is_joined_on_its_kernels(tmp_path):
    kernel = KernelTime(
        launch=0, name="_Z1av", start_ns=1, end_ns=2, device=0, stream=0, correlation=1
    )
    sessions = _passes(tmp_path, [launch(0, "a()")], [kernel])
    assert len(join_passes(sessions)) == 1
    sessions = _passes(tmp_path / "other", [launch(0, "a()"), launch(1, "b()")], [kernel])
    with pytest.raises(SessionError, match="launch 1 'b\\(\\)' is in pass 1 alone"):
        join_passes(sessions)

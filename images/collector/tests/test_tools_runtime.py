"""Tools about launches, time and accesses, on logs made by hand; and the registry of tools."""

from __future__ import annotations

import csv
import json
import random
from dataclasses import fields

import numpy as np
import pytest
from accel_trace import tools
from accel_trace.events import (
    Counts,
    Fact,
    Hot,
    KernelTime,
    Note,
    RegionEnd,
    RegionStart,
    Stack,
    Timer,
)
from accel_trace.reporting import make_report, write_report
from accel_trace.session import Session
from accel_trace.tools.access_counts import COUNTERS, AccessCounts
from accel_trace.tools.base import Option, Record, Report, Tool, ToolError, bytes_text
from accel_trace.tools.call_stack import CallStack
from accel_trace.tools.event_trace import EventTrace
from accel_trace.tools.hints import Hints
from accel_trace.tools.hotness import Hotness, heat_of
from accel_trace.tools.kernel_frequency import KernelFrequency, short_name
from accel_trace.tools.overhead import Overhead
from accel_trace.tools.uvm_advisor import UvmAdvisor
from accel_trace.tools.working_set import WorkingSet
from collector_logs import alloc, launch, session, touched, write
from test_tools_memory import run, value


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::im2col_kernel<float>(long)", "at::native::im2col_kernel"),
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
        ("void k(int)", "k(int)"),
        ("<lambda>(int)", "<lambda>(int)"),
        ("voidk<a<b>>", "voidk"),
        ("", ""),
    ],
)
def test_short_names_are_the_papers(name, short):
    assert short_name(name) == short


def test_launches_are_counted_by_short_and_full_name(tmp_path):
    names = ["void a<int>()", "void a<float>()", "b", "void a<int>()"]
    write(tmp_path, 6, [launch(0, "c", analysed=0)])
    opened = session(tmp_path, *(launch(n, name) for n, name in enumerate(names)))
    report = run(KernelFrequency, opened, top=1)
    assert value(report, "launches", kernel="a", rank=1) == 3
    assert value(report, "launches", kernel="b") == value(report, "launches", kernel="c") == 1
    assert value(report, "launches_total") == 5
    assert value(report, "kernels", name="short") == 3
    assert value(report, "kernels", name="full") == 4
    assert value(report, "share_of_top") == pytest.approx(0.6)
    with (tmp_path / "kernel-frequency.csv").open() as file:
        assert next(iter(csv.DictReader(file))) == {"launches": "2", "kernel": "void a<int>()"}


def hot(number: int, block: int, count: int) -> Hot:
    return Hot(launch=number, block=block, count=count)


def test_accesses_are_spread_over_the_windows_that_a_launch_spans(tmp_path):
    opened = session(
        tmp_path,
        launch(0, "a"), launch(1, "b"), launch(2, "c"),
        hot(0, 10, 50), hot(1, 10, 100), hot(1, 20, 100), hot(2, 30, 50),
    )  # fmt: skip
    heat = heat_of(opened.processes[0], "accesses", 100, 4096)
    # launch 0 is [0, 50), launch 1 [50, 250), launch 2 [250, 300)
    assert heat.blocks.tolist() == [10, 20, 30]
    assert heat.counts.tolist() == [[75, 50, 25], [25, 50, 25], [0, 0, 50]]
    assert heat.active.tolist() == pytest.approx([1, 1, 1 / 3])


def test_windows_of_launches_hold_empty_launches_too(tmp_path):
    opened = session(
        tmp_path, launch(0, "a"), launch(1, "touches nothing"), launch(2, "b"),
        launch(3, "filtered", analysed=0), launch(4, "c"),
        hot(0, 1, 5), hot(2, 2, 7), hot(4, 1, 1), hot(4, 1, 2),
    )  # fmt: skip
    heat = heat_of(opened.processes[0], "launches", 1, 4096)
    assert heat.counts.tolist() == [[5, 0, 0, 3], [0, 0, 7, 0]]
    heat = heat_of(opened.processes[0], "launches", 1, 2)
    assert heat.window == 2
    assert heat.counts.tolist() == [[5, 3], [0, 7]]


@pytest.mark.parametrize("seed", range(5))
def test_no_access_is_lost_in_the_windows(tmp_path, seed):
    chance = random.Random(seed)
    events = [launch(n, "k") for n in range(30)]
    spots = [hot(n, chance.randrange(8), chance.randrange(1, 5000)) for n in range(30)
             for _ in range(3)]  # fmt: skip
    opened = session(tmp_path, *events, *spots)
    for window in (1, 7, 1000, 10**9):
        heat = heat_of(opened.processes[0], "accesses", window, 500)
        assert heat.counts.shape[1] <= 500
        for row, block in enumerate(heat.blocks):
            expected = sum(spot.count for spot in spots if spot.block == block)
            assert heat.counts[row].sum() == pytest.approx(expected)
        sums = heat.counts.sum(axis=0)
        assert sums[:-1] == pytest.approx(np.full(len(sums) - 1, heat.window))


def test_the_report_of_hotness(tmp_path):
    events = [launch(n, "k") for n in range(20)]
    spots = [hot(n, 1, 10) for n in range(20)] + [hot(4, 2, 5), hot(4, 0, 77)]
    opened = session(tmp_path, *events, *spots)
    report = run(Hotness, opened, by="launches")
    assert value(report, "share_active_always") == 0.5
    assert value(report, "share_active_seldom") == 0.5
    assert value(report, "accesses") == 205
    assert value(report, "windows") == 20
    assert "spread evenly" in report.text
    assert "77 accesses to memory that belongs to no known piece" in report.text
    with np.load(tmp_path / "hotness-5.npz") as saved:
        assert saved["counts"].shape == (2, 20)
        assert saved["blocks"].tolist() == [1, 2]
        assert int(saved["block_bytes"]) == 2 << 20
    assert "no access was counted" in run(Hotness, session(tmp_path / "e", launch(0, "a"))).text
    with pytest.raises(ToolError, match="at least 1"):
        run(Hotness, opened, window=-5)


def counts(number: int, **found: int) -> Counts:
    zeros = {f.name: 0 for f in fields(Counts) if f.name not in ("clock", "ns")}
    return Counts(**zeros | {"launch": number} | found)


@pytest.mark.parametrize(
    ("tool", "mode"),
    [(WorkingSet, "touch"), (UvmAdvisor, "touch"), (AccessCounts, "count"), (Hotness, "hot")],
)
@pytest.mark.parametrize(
    ("facts", "recorded"),
    [
        ({"mode": "values"}, "values"), ({"source": "replay"}, "values"),
        ({"mode": "trace", "analysis": "other"}, "other"), ({"mode": "events"}, "events"),
    ],
)  # fmt: skip
def test_launches_that_were_recorded_for_something_else_are_no_zeros(
    tmp_path, tool, mode, facts, recorded
):
    said = [Fact(name=name, value=text) for name, text in facts.items()]
    opened = session(tmp_path / "other", *said, alloc(4096, 512), launch(0, "a"))
    with pytest.raises(ToolError, match=f"in mode {recorded}, and this tool reads mode {mode}: "):
        run(tool, opened)
    run(tool, session(tmp_path / "own", Fact(name="mode", value=mode), launch(0, "a")))
    run(tool, session(tmp_path / "idle", *said, alloc(4096, 512)))


def test_of_touches_that_were_not_recorded_there_is_no_hint(tmp_path):
    report = run(Hints, session(tmp_path, Fact(name="mode", value="values"), alloc(4096, 512),
                                launch(0, "a")), least=1)  # fmt: skip
    assert "never touched is not looked for" in report.text
    assert not [one for one in report.records if one.labels.get("hint") == "untouched_pieces"]


def test_counts_are_summed_in_all_and_per_kernel(tmp_path):
    opened = session(
        tmp_path, launch(0, "void add<int>"), launch(1, "mul"), launch(2, "void add<float>"),
        counts(0, global_reads=200, global_bytes_read=800, shared_writes=3),
        counts(1, global_reads=10, global_bytes_written=4000),
        counts(2, global_reads=1, global_bytes_read=4),
    )  # fmt: skip
    report = run(AccessCounts, opened)
    assert value(report, "global_reads") == 211
    assert value(report, "kernel_global_reads", kernel="add") == 201
    assert value(report, "kernel_shared_writes", kernel="add") == 3
    assert value(report, "global_atomics") == 0
    assert report.text.index("mul") < report.text.index("add")  # by bytes
    with (tmp_path / "access-counts.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["kernel"] for row in rows] == ["void add<int>", "mul", "void add<float>"]
    assert set(COUNTERS) <= set(rows[0])


def test_counts_of_a_graph_are_told_of_the_graph(tmp_path):
    opened = session(
        tmp_path, launch(0, "fill<int>", analysed=2), launch(1, "add", analysed=4),
        counts(0, global_writes=7),
    )  # fmt: skip
    report = run(AccessCounts, opened)
    assert value(report, "kernel_global_writes", kernel="CUDA graph, the first kernel fill") == 7


def timer(stage: str, milliseconds: int) -> Timer:
    return Timer(stage=stage, total_ns=milliseconds * 10**6, count=1)


def test_overhead_reads_the_last_total_of_every_timer(tmp_path):
    write(tmp_path, 6, [timer("collection", 100)])
    region = [RegionStart(name="loop", ns=1000), RegionEnd(name="loop", ns=2_000_001_000)]
    events = [timer("collection", 1), timer("collection", 300), timer("analysis", 50), *region]
    (tmp_path / "run.json").write_text(json.dumps({"elapsed_s": 2.0, "mode": "trace"}))
    report = run(Overhead, session(tmp_path, *events), mode="trace")
    assert value(report, "stage_time", stage="collection") == pytest.approx(0.4)
    assert value(report, "stage_time", stage="transfer") == 0
    assert value(report, "stage_time", stage="execution") == pytest.approx(1.55)
    assert value(report, "elapsed", mode="trace", analysis="touch", workers="1") == 2.0
    assert value(report, "region_time", region="loop") == pytest.approx(2.0)
    report = run(Overhead, Session(tmp_path), baseline=0.5)
    assert value(report, "slowdown") == 4.0
    assert value(report, "stage_time", stage="execution") == 0.5
    (tmp_path / "run.json").write_text(json.dumps({"elapsed_s": 0.1, "mode": "trace"}))
    report = run(Overhead, Session(tmp_path))
    assert value(report, "stage_time", stage="execution") == 0
    assert "stages overlap" in report.text


def test_overhead_asks_for_the_mode_that_is_named():
    needs = Overhead({"mode": "trace", "workers": 4, "sample": 30, "policy": "drop"}).needs_of(
        0, ()
    )
    assert needs.mode == "trace"
    assert dict(needs.environment) == {
        "ACCEL_TRACE_SAMPLE": "30", "ACCEL_TRACE_ANALYSIS": "touch", "ACCEL_TRACE_WORKERS": "4",
        "ACCEL_TRACE_POLICY": "drop",
    }  # fmt: skip
    assert Overhead({"mode": "empty", "torch": False}).needs_of(0, ()).handlers == ("sanitizer",)


def test_events_are_filtered_printed_and_kept_in_a_file(tmp_path):
    opened = session(tmp_path, launch(0, "a"), alloc(0x200, 64), launch(1, "b"), launch(2, "ab"))
    report = run(EventTrace, opened, kinds="launch, Alloc", contains="a", print=1)
    assert value(report, "events", kind="Launch") == 3  # `analysed` holds an a too
    assert report.text.splitlines()[1] == "... and 3 more in events.jsonl"
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["Launch", "Alloc", "Launch", "Launch"]
    assert lines[1]["address"] == 0x200
    report = run(EventTrace, opened, contains='name="b"')
    assert value(report, "events", kind="Launch") == 1
    with pytest.raises(ToolError, match="there is no event 'Kernel'"):
        run(EventTrace, opened, kinds="Kernel")


def stacked(tmp_path, of: str, first, second) -> Report:
    write(tmp_path / of / "pass-1", 5, first)
    write(tmp_path / of / "pass-2", 6, second)
    sessions = [Session(tmp_path / of / f"pass-{n}") for n in (1, 2)]
    tool = CallStack({"of": of}, tmp_path)
    needs = tool.needs_of(1, sessions[:1])
    assert needs.mode == "events"
    assert "stacks" in needs.handlers
    assert needs.environment["ACCEL_TRACE_STACK_LAUNCH"] == "2"
    tool.sessions = sessions
    return tool.run(sessions[1])


def test_the_stack_of_each_kind_of_extreme_kernel(tmp_path):
    names = ["a", "b", "c", "c", "b"]
    launches = [launch(n, name) for n, name in enumerate(names)]
    frames = "native:at::mm\npython:m.py:7 forward\npython:t.py:1"
    second = [*launches, Stack(launch=1, text="native:no"), Stack(launch=2, text=frames)]
    times = [KernelTime(launch=n, name=name, start_ns=0, end_ns=100 * (n == 2) + n, device=0,
                        stream=0, correlation=0) for n, name in enumerate(names)]  # fmt: skip
    firsts = {
        "ws": [*launches, touched(0, 512, 10), touched(2, 512, 99), touched(4, 512, 98)],
        "time": times,
        "launches": [*launches, launch(5, "c")],
    }
    for of, first in firsts.items():
        joined = [*second, launch(5, "c")] if of == "launches" else second
        report = stacked(tmp_path, of, first, joined)
        assert "launch 2: c" in report.text
        assert "  python:m.py:7 forward" in report.text
        assert "native:no" not in report.text
        assert value(report, "stack_frames") == 3
        assert value(report, "stack_frames_of", of="python") == 2


def test_a_stack_that_was_not_recorded_is_said_with_the_notes(tmp_path):
    launches = [launch(n, "k") for n in range(3)]
    second = [*launches, Note(level=2, text="no unwinder here")]
    report = stacked(tmp_path, "ws", [*launches, touched(2, 512, 9)], second)
    assert "no stack was recorded" in report.text
    assert "no unwinder here" in report.text


def test_passes_that_differ_and_passes_that_are_missing(tmp_path):
    first = session(tmp_path / "1", launch(0, "a"), touched(0, 512, 9))
    second = session(tmp_path / "2", launch(0, "z"))
    tool = CallStack({}, tmp_path)
    with pytest.raises(ToolError, match="reads two passes"):
        tool.run(first)
    tool.sessions = (first, second)
    with pytest.raises(ToolError, match="launch 0 is 'a' in pass 1"):
        make_report(tool, (first, second))
    with pytest.raises(ToolError, match="shows no launch to choose by"):
        tool.needs_of(1, [session(tmp_path / "3", alloc(1, 1))])
    assert CallStack({"launch": 4}).needs_of(1, [first]).environment == {
        "ACCEL_TRACE_STACK_LAUNCH": "4"
    }


def test_the_registry_finds_every_tool_and_each_has_its_help():
    found = tools.names()
    assert len(found) >= 9
    for name, cls in found.items():
        assert cls.name == name
        assert cls.help
        cls()  # its defaults are valid
        cls().needs_of(0, ())


def test_a_tool_of_ones_own_is_one_file(tmp_path):
    path = tmp_path / "mine.py"
    for text, words in (
        ("x = 1", "defines 0 tools"),
        ("syntax error", "SyntaxError"),
        ("import no_such_module_here", "ModuleNotFoundError"),
        ("from accel_trace.tools.hotness import Hotness", "defines 0 tools"),
    ):
        path.write_text(text)
        with pytest.raises(ToolError, match=words):
            tools.find(str(path))


def test_options_are_read_by_the_type_of_their_default():
    for option, text, expected in (
        (Option("a", 1, ""), "7", 7),
        (Option("a", 1.5, ""), "7", 7.0),
        (Option("a", True, ""), "no", False),
        (Option("a", "x", "", ("x", "y")), "y", "y"),
    ):
        got = option.read(text)
        assert (got, type(got)) == (expected, type(expected))
    for option, text, words in (
        (Option("a", 1, ""), "1.5", "a whole number"),
        (Option("a", 1.5, ""), "z", "a number"),
        (Option("a", True, ""), "maybe", "true or false"),
        (Option("a", "x", "", ("x", "y")), "z", "choose of x, y"),
    ):
        with pytest.raises(ToolError, match=words):
            option.read(text)
    with pytest.raises(ToolError, match="no option 'zzz'"):
        Hotness({"zzz": 1})


def test_every_report_ends_with_the_coverage_and_its_records(tmp_path):
    opened = session(tmp_path, launch(0, "a"), launch(1, "b", analysed=0))
    tool = KernelFrequency({}, tmp_path)
    report = make_report(tool, [opened])
    write_report(tool, report, tmp_path)
    write_report(tool, report, tmp_path)  # replaces, does not append
    lines = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert len(lines) == len(report.records)
    assert all(line["labels"]["tool"] == "kernel_frequency" for line in lines)
    assert value(report, "launches_filtered") == 1
    text = (tmp_path / "report.txt").read_text()
    assert "launches: 2 recorded, 1 analysed, 1 not" in text
    assert "kernel-frequency.csv" in text


def test_every_report_says_what_the_collector_took_for_itself(tmp_path):
    facts = [Fact(name="device_bytes", value="3145728"), Fact(name="pinned_bytes", value="1024")]
    report = make_report(KernelFrequency({}, tmp_path), [session(tmp_path, launch(0, "a"), *facts)])
    assert (value(report, "device_bytes"), value(report, "pinned_bytes")) == (3145728, 1024)
    words = "the collector's own memory: 3.00 MiB on the GPU, 1.00 KiB pinned on the host"
    assert words in report.text


def test_a_record_that_is_no_number_is_the_tools_error(tmp_path):
    class Bad(Tool):
        name = "bad"

        def run(self, session: Session) -> Report:
            return Report((Record("m", "1", (float("nan"),)),))

    report = make_report(Bad(), [session(tmp_path, launch(0, "a"))])
    with pytest.raises(ToolError, match="not a finite number"):
        write_report(Bad(), report, tmp_path)


def test_sizes_for_a_person():
    assert [bytes_text(size) for size in (0, 1023, 1536, 876.125 * 2**20, 2**34)] == [
        "0 B", "1023 B", "1.50 KiB", "876.12 MiB", "16.00 GiB",
    ]  # fmt: skip

"""Mode values: accesses with their values, contents of copies, and what the tool makes of them."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from accel_trace import tools
from accel_trace.events import Launch, Memcpy, Module
from accel_trace.moved import Compared, Recorded
from accel_trace.reporting import make_report, open_sessions
from accel_trace.session import Session
from accel_trace.tools.base import ToolError
from accel_trace.values.accesses import ValuesError
from accel_trace.values.raw import RECORD, read
from accel_trace.values.recorded import replay
from native_support import NATIVE, PREFETCH, READ, START, WRITE, Run, launch, need_tools, play

A, B, HOST = 0x7F0000000000, 0x7F0000080000, 0x7E0000000000
N = 1000
STORES = 0x100  # the synthetic driver's: with data, which is made, too
MEMORY = [f"memory {A:#x} {4 * N} 7", f"memory {B:#x} {4 * N} 0", f"memory {HOST:#x} {4 * N} 3",
          f"alloc 1 {A:#x} {4 * N}", f"alloc 1 {B:#x} {4 * N}"]  # fmt: skip


def stores(value: int) -> int:
    return WRITE | STORES | value << 16


PROGRAM = [
    *START, *MEMORY,
    f"copy 1 {A:#x} {HOST:#x} {4 * N} 2 0",
    *launch(f"global {READ} 4 {A:#x} 4 {N}", f"global {stores(5)} 4 {B:#x} 4 {N}", name="set"),
    *launch(f"global {stores(5)} 4 {B:#x} 4 {N}", name="again"),
    f"copy 1 {HOST:#x} {A:#x} {4 * N} 3 0",
]  # fmt: skip


def test_every_access_has_its_value_and_copies_their_contents(tmp_path: Path) -> None:
    run = play(PROGRAM, tmp_path, "values")
    accesses, contents = read(run.folder, run.log.pid)
    assert len(accesses) == 3 * N
    assert accesses.launch.tolist() == [0] * (2 * N) + [1] * N
    reads = accesses.take(accesses.reads)
    assert reads.address.tolist() == [A + 4 * i for i in range(N)]
    assert set(reads.low.tolist()) == {0x07070707}, "a mask beside a read is no value"
    writes = accesses.take(accesses.writes)
    assert set(writes.low.tolist()) == {5}
    assert (len(writes), set(accesses.size.tolist())) == (2 * N, {4})
    assert contents.of(0).tolist() == contents.of(1).tolist() == [3] * (4 * N)
    facts = run.log.facts()
    assert {facts[f"values_{name}"] for name in ("lost", "async", "bulk", "tensor")} == {"0"}


def test_the_tool_finds_the_redundant_kernel(tmp_path: Path) -> None:
    run = play(PROGRAM, tmp_path, "values")
    (process,) = Session(run.folder).processes
    found = replay(process)
    kernels = {e.context: (e.written, e.unchanged) for e in found.shadow.effects if e.written}
    assert kernels["again"] == (4 * N, 4 * N)
    assert kernels["set"] == (4 * N, 0)
    report = make_report(tools.find("value_patterns")({}, tmp_path), open_sessions(run.folder))
    assert "redundant write at again" in report.text
    assert "single value at set, write" in report.text
    assert "taken as int32: all 1000 elements are 5" in report.text
    assert {r.evidence for r in report.records if r.metric == "values"} == {"measured"}


def test_what_is_not_seen_is_counted(tmp_path: Path) -> None:
    accesses = [
        f"global {READ | WRITE} 4 {A:#x} 4 10", f"global {WRITE} 4 {A:#x} 4 20",
        f"global {PREFETCH} 4 {A:#x} 4 30", f"async 0 16 {A:#x} 16 4",
        f"bulk_load 0 64 {A:#x} 64 2",
    ]  # fmt: skip
    run = play([*START, *MEMORY, *launch(*accesses)], tmp_path, "values")
    got, _ = read(run.folder, run.log.pid)
    assert int(got.atomics.sum()) == len(got) == 30, "a store without data has no value"
    assert run.log.facts()["values_async"] == "4"
    assert run.log.facts()["values_bulk"] == "2"
    assert "4 asynchronous copies (cp.async) read values that are not seen" in run.log.notes()
    report = make_report(tools.find("value_patterns")({}, tmp_path), open_sessions(run.folder))
    assert "not seen: the values of 30 atomics" in report.text
    assert "not seen: 2 bulk copies" in report.text


def test_accesses_without_room_are_counted_and_the_program_goes_on(tmp_path: Path) -> None:
    run = play([*PROGRAM, "print over"], tmp_path, "values", buffer=16)
    accesses, _ = read(run.folder, run.log.pid)
    assert run.stdout == "over\n"
    assert len(accesses) + int(run.log.facts()["values_lost"]) == 3 * N
    assert len(accesses) == 2 * 16 * 16
    assert "found no room" in run.log.notes()


def findings(run: Run, out: Path) -> set[tuple[str, str]]:
    """Pattern and place of all that the tool reports."""
    report = make_report(tools.find("value_patterns")({}, out), open_sessions(run.folder))
    found = [r.labels for r in report.records if r.metric == "at_stake"]
    return {(str(one["pattern"]), str(one["place"])) for one in found}


AGAIN = [
    *START, *MEMORY,
    "region start first", f"copy 1 {A:#x} {HOST:#x} {4 * N} 2 0", "region end first",
    *launch(f"global {stores(3)} 4 {B:#x} 4 {N}", name="write"),
    "region start second", f"copy 1 {A:#x} {HOST:#x} {4 * N} 2 0", "region end second",
    *launch(f"global {stores(3)} 4 {B:#x} 4 {N}", name="rewrite"),
]  # fmt: skip
REDUNDANT = {("redundant_upload", "second"), ("redundant_write", "rewrite")}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, REDUNDANT),
        ({"kernels": "rewrite"}, set()),  # what `write` did is not known
        ({"buffer": 2}, set()),  # nor what found no room
        ({"blocks": 10}, set()),  # nor what other blocks did
    ],
)
def test_nothing_is_said_of_memory_that_somebody_may_have_written_unseen(
    tmp_path: Path, settings: dict[str, object], told: set[tuple[str, str]]
) -> None:
    run = play(AGAIN, tmp_path, "values", **settings)
    assert findings(run, tmp_path) & REDUNDANT == told


def test_bulk_stores_and_copies_in_part_leave_nothing_known(tmp_path: Path) -> None:
    lines = list(AGAIN)
    at = lines.index("region start second")
    lines[at:at] = launch(f"bulk_store 0 64 {B:#x} 64 1", name="unseen")
    assert not findings(play(lines, tmp_path, "values"), tmp_path) & REDUNDANT
    lines[at : at + 3] = launch(f"bulk_load 0 64 {B:#x} 64 1", name="unseen")
    run = play(lines, tmp_path, "values")
    assert findings(run, tmp_path) & REDUNDANT == REDUNDANT, "reads change nothing"
    assert [(one.reads, one.writes) for one in run.log.of(Recorded)] == [(0, 0), (1, 0), (0, 0)]


def test_blocks_are_sampled_in_turn(tmp_path: Path) -> None:
    """The synthetic machine has block 0 alone: it is looked at in the launches 0, 2, 4."""
    lines = [*START, *MEMORY, *launch(f"global {READ} 4 {A:#x} 4 {N}"), "again 4"]
    run = play(lines, tmp_path, "values", blocks=2)
    accesses, _ = read(run.folder, run.log.pid)
    assert sorted(set(accesses.launch.tolist())) == [0, 2, 4]
    assert {one.blocks for one in run.log.of(Recorded)} == {2}
    text = make_report(tools.find("value_patterns")({}, tmp_path), open_sessions(run.folder)).text
    assert "a sample: one block in 2; bytes are the sample's" in text
    assert "5 launches were recorded in part" in text


PAGE = 4096


def test_of_each_calling_context_the_first_launch_is_looked_at(tmp_path: Path) -> None:
    def named(name: str) -> list[str]:
        return launch(f"global {READ} 4 {A:#x} 4 10", name=name)

    lines = [*START, *MEMORY, *named("a"), *named("b"), *named("a"), *named("a"), *named("a"),
             "region start r", *named("a"), *named("a"), "region end r",
             "operator start o", *named("b"), "operator end", *named("b")]  # fmt: skip
    run = play(lines, tmp_path, "values", contexts=3)
    accesses, _ = read(run.folder, run.log.pid)
    assert sorted(set(accesses.launch.tolist())) == [0, 1, 4, 5, 7]


COPIES = [
    *START, f"memory {A:#x} {2 * PAGE} 7", f"memory {B:#x} {2 * PAGE} 0",
    f"alloc 1 {A:#x} {2 * PAGE}", f"alloc 1 {B:#x} {2 * PAGE}",
    f"memory {HOST:#x} {2 * PAGE} 7",
    f"copy 1 {A:#x} {HOST:#x} {2 * PAGE} 2 0",  # nobody wrote A before
    f"copy 1 {A:#x} {HOST:#x} {2 * PAGE} 2 0",  # all is there
    f"memory {HOST:#x} {PAGE} 9", f"copy 1 {A:#x} {HOST:#x} {2 * PAGE} 2 1",  # half is
    f"copy 1 {HOST:#x} {A:#x} {2 * PAGE} 3 0",  # to the host: half
    f"set 1 {B:#x} {PAGE // 2} 1 4 0", f"set 1 {B:#x} {PAGE // 2} 1 4 0",  # zeros over zeros
    f"set 1 {B:#x} {PAGE // 2} 1 4 7", f"copy 1 {B:#x} {A:#x} {2 * PAGE - 1} 4 0",
    f"copy 1 {A:#x} {HOST:#x} {2 * PAGE} 1 0",  # within the host: not compared
]  # fmt: skip


def test_copies_are_compared_and_no_kernel_is_patched(tmp_path: Path) -> None:
    lines = [*COPIES, *launch(f"global {WRITE} 4 {A:#x} 4 10")]
    run = play(lines, tmp_path, "copies")
    told = [(one.size, one.unchanged, one.zeros) for one in run.log.of(Compared)]
    whole, half = 2 * PAGE, PAGE
    assert told == [
        (whole, whole, 0), (whole, whole, 0), (whole, half, 0), (whole, half, 0),
        (whole, whole, 1), (whole, whole, 1), (whole, whole - half // 2, 0), (whole - 1, 0, 0),
    ]  # fmt: skip
    assert not run.log.of(Module)[0].patched
    report = make_report(tools.find("value_patterns")({}, tmp_path), open_sessions(run.folder))
    stakes = {r.labels["pattern"]: r.samples for r in report.records if r.metric == "at_stake"}
    assert stakes == {"redundant_upload": (whole,), "redundant_fill": (whole,)}
    assert "8 copies and fills, and no look into a kernel" in report.text


def test_what_cannot_be_compared_is_counted(tmp_path: Path) -> None:
    unknown = A + 0x10000000
    lines = [*COPIES, f"set 1 {B:#x} 16 4 1 0", f"copy 1 {unknown:#x} {A:#x} 64 4 0"]
    run = play(lines, tmp_path, "copies")
    assert len(run.log.of(Compared)) == 8
    assert "with a pitch were not compared" in run.log.notes()
    assert "were not compared: fetching what their destination holds failed" in run.log.notes()
    report = make_report(tools.find("value_patterns")({}, tmp_path), open_sessions(run.folder))
    assert "not seen: 2 copies and fills that were not compared" in report.text


LARGE = (9 << 20) + 3  # of three pieces that are fetched, whose last one is no whole word


def moves(how: str) -> list[str]:
    """What COPIES does, in parts and in large, where the bytes really move."""
    lines = [
        *START, f"memory {A:#x} {LARGE} 7", f"memory {A + (16 << 20):#x} {LARGE} 1",
        f"alloc 1 {A:#x} {LARGE}", f"alloc 1 {A + (16 << 20):#x} {LARGE}",
        f"memory {HOST:#x} {LARGE} 9",
    ]  # fmt: skip
    other = A + (16 << 20)
    steps = [
        f"move 1 {A:#x} {HOST:#x} 1000 2",  # nothing of it is there
        f"move 1 {A:#x} {HOST:#x} 2000 2",  # half is
        f"move 1 {other:#x} {A:#x} {LARGE} 4", f"move 1 {other:#x} {A:#x} {LARGE} 4",
        f"move 1 {HOST:#x} {other:#x} {LARGE} 3",  # the first 2000 bytes are nines
        f"move 1 {HOST:#x} {other:#x} {LARGE} 3",
        f"fill 1 {other:#x} 5000 1 7", f"fill 1 {other + 8:#x} 77 2 0", f"fill 1 {other:#x} 99 4 1",
        f"move 1 {A + 8:#x} {other + 3:#x} 80 4",
        f"move 1 {A + 3:#x} {HOST:#x} 70 2",  # at an address that 8 does not divide
        f"move 1 {HOST + 5:#x} {other + 8:#x} 77 3",
        f"move 1 {A:#x} {HOST:#x} {LARGE} 2",
    ]  # fmt: skip
    return [*lines, *(f"{step} {how}" for step in steps)]


def told_of(run: Run) -> list[tuple[str, int, int, int]]:
    """Copies and fills, each with what was told just before it."""
    pairs = zip(run.log.events, run.log.events[1:], strict=False)
    found = [(type(after).__name__, one.size, one.unchanged, one.zeros)
             for one, after in pairs if isinstance(one, Compared)]  # fmt: skip
    assert {name for name, *_ in found} == {"Memcpy", "Memset"}
    return found


def test_copies_are_compared_on_the_gpu_as_by_the_sanitizer(tmp_path: Path) -> None:
    """Thirteen: two at addresses that words do not divide, three come to the host."""
    slow, fast = (play(moves(how), tmp_path, "copies") for how in ("", "called"))
    assert len(told_of(slow)) == 13
    assert told_of(fast) == told_of(slow)
    assert slow.log.facts()["compared_by"] == "gpu 0, bus 0, sanitizer 13"
    assert fast.log.facts()["compared_by"] == "gpu 8, bus 3, sanitizer 2"
    assert fast.log.facts()["device_bytes"] == str(32 << 20), "taken once, and kept"
    assert "slow way" not in fast.log.notes()


@pytest.mark.parametrize("how", ["", "called"])
def test_a_context_that_ends_takes_our_memory_with_it(how: str, tmp_path: Path) -> None:
    """As cudaDeviceReset has it: the next one has the same handle, and others get the memory."""
    script = [*moves(how), "destroy 1", *moves(how)]
    run = play(script, tmp_path, "copies", sanitize="address")
    told = told_of(run)
    assert len(told) == 26
    assert told[13:] == told[:13]
    facts = run.log.facts()
    assert facts["device_bytes"] == str(32 << 20 if how else 0)
    assert facts["pinned_bytes"] == str(8 << 20)


@pytest.mark.parametrize(("ends", "how"), [(1, ""), (1, "called"), (2, "called")])
def test_a_context_that_another_thread_ends_while_a_copy_comes(
    ends: int, how: str, tmp_path: Path
) -> None:
    """Another one than the copy's, as a program may do, and the copy's own, which is its fault."""
    other = A + (64 << 20)
    script = [
        *START, "context 2 1", "stream 2 2",
        *(f"memory {at:#x} {LARGE} 7" for at in (A, other, HOST)),
        f"alloc 1 {A:#x} {LARGE}", f"alloc 2 {other:#x} {LARGE}",
        f"move 1 {HOST:#x} {A:#x} 100 3 {how}", f"move 2 {HOST:#x} {other:#x} {LARGE} 3 {how}",
        "print over",
    ]  # fmt: skip
    run = play(script, tmp_path, "copies", sanitize="address", SYNTHETIC_DESTROYS=ends)
    assert run.stdout == "over\n"
    told = [(one.size, one.unchanged) for one in run.log.of(Compared)]
    assert told == [(100, 100), (LARGE, LARGE)][: 3 - ends]
    assert ("fetching what their destination holds failed" in run.log.notes()) == (ends == 2)
    assert run.log.facts()["pinned_bytes"] == str(16 << 20)


@pytest.mark.parametrize("why", ["SYNTHETIC_FULL", "SYNTHETIC_CAPTURES"])
def test_without_memory_copies_are_compared_as_before(why: str, tmp_path: Path) -> None:
    settings = {why: 1}
    slow, fast = (play(moves(how), tmp_path, "copies", **settings) for how in ("", "called"))
    assert told_of(fast) == told_of(slow)
    gpu, bus = (2, 3) if why == "SYNTHETIC_FULL" else (0, 0)  # no memory is needed within the GPU's
    assert fast.log.facts()["compared_by"] == f"gpu {gpu}, bus {bus}, sanitizer {13 - gpu - bus}"


@pytest.mark.parametrize("how", ["refused", "fails"])
def test_a_copy_that_the_driver_does_not_make_is_not_compared(how: str, tmp_path: Path) -> None:
    """Nor does what was copied for it get into the way of the next one, in another stream."""
    other = A + (16 << 20)
    run = play([
        *moves("called")[:len(START) + 5], "stream 2 1", f"fill 1 {A:#x} 1000 1 9 called",
        f"move 1 {A:#x} {HOST:#x} {LARGE} 2 {how}", f"move 2 {other:#x} {HOST:#x} 1000 2 called",
        f"move 1 {HOST:#x} {A:#x} 500 3 {how}", f"move 1 {A:#x} {other:#x} 600 4 {how}",
        f"move 1 0 {A:#x} 500 3 refused", f"move 2 {other:#x} {HOST:#x} 2000 2 called",
    ], tmp_path, "copies")  # fmt: skip
    told = [(one.size, one.unchanged) for one in run.log.of(Compared)]
    assert told == [(1000, 0), (1000, 0), (2000, 1000)]
    made = [one.size for one in run.log.of(Memcpy)]
    assert made == ([LARGE, 1000, 500, 600, 2000] if how == "fails" else [1000, 2000])
    assert run.log.facts()["compared_by"] == "gpu 3, bus 0, sanitizer 0"


def test_a_sanitizer_that_does_not_report_a_copy_is_told_of_as_that(tmp_path: Path) -> None:
    run = play(moves("called"), tmp_path, "copies", SYNTHETIC_LACKS="2")
    assert "does not report all copies and fills of the driver" in run.log.notes()
    assert "tensor map" not in run.log.notes()
    assert len(told_of(run)) == 13


def test_words_for_bad_settings() -> None:
    for name in ("blocks", "contexts"):
        with pytest.raises(ToolError, match=f"{name}=0: a number of at least 1 is needed"):
            tools.find("value_patterns")({name: 0}).needs_of(0, [])
    assert tools.find("value_patterns")({"level": "coarse"}).needs_of(0, []).mode == "copies"


def test_filters_and_refused_launches(tmp_path: Path) -> None:
    again = launch(f"global {READ} 4 {A:#x} 4 10", name="kept")
    refused = [again[0] + " refused", *again[1:]]
    lines = [*START, *MEMORY, *refused, *again, *launch(f"global {READ} 4 {A:#x} 4 9", name="no")]
    run = play(lines, tmp_path, "values", kernels="kept")
    accesses, _ = read(run.folder, run.log.pid)
    assert accesses.launch.tolist() == [1] * 10


def test_nodes_of_graphs_are_said_to_be_left_out(tmp_path: Path) -> None:
    graph = ["graph 1", "node 1 k", f"access global {READ} 4 {A:#x} 4 10", "go", "sync 1"]
    run = play([*START, *MEMORY, *graph], tmp_path, "values")
    assert "nodes of CUDA graphs are not analysed in mode values" in run.log.notes()
    assert len(read(run.folder, run.log.pid)[0]) == 0


def test_a_full_disk_stops_the_recording_and_not_the_program(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))

    first = launch(f"global {READ} 4 {A:#x} 4 {N}", f"global {stores(5)} 4 {B:#x} 4 {N}")
    lines = [*START, *MEMORY, *first, "sync 1", "again 3", "print over"]
    run = play(lines, tmp_path, "values", preexec=limit)
    assert run.stdout == "over\n"
    assert run.log.notes().count("values are not recorded any more") == 1
    assert [one.analysed for one in run.log.of(Launch)] == [1, 0, 0, 0]
    assert not run.log.of(Recorded), "of the first launch already too much"


@pytest.mark.parametrize("name", ["payload", "records", "contents"])
def test_a_file_that_cannot_be_made_stops_the_recording(tmp_path: Path, name: str) -> None:
    def hinder() -> None:
        (tmp_path / "out-values-0" / f"values-{os.getpid()}.{name}").mkdir()

    run = play([*PROGRAM, "print over"], tmp_path, "values", preexec=hinder)
    assert run.stdout == "over\n"
    assert run.log.notes().count("values are not recorded any more") == 1
    assert f"the file of {name} cannot be written" in run.log.notes()
    assert not run.log.of(Recorded)


@pytest.mark.slow
def test_it_runs_clean_under_the_sanitizers_of_the_compiler(tmp_path: Path) -> None:
    run = play(PROGRAM, tmp_path, "values", sanitize="address,undefined")
    assert len(read(run.folder, run.log.pid)[0]) == 3 * N
    run = play([*COPIES, *moves("called")[len(START):]], tmp_path, "copies",
               sanitize="address,undefined")  # fmt: skip
    assert len(run.log.of(Compared)) == 21


def test_the_record_is_the_same_in_both(tmp_path: Path) -> None:
    need_tools()
    header = (NATIVE / "values_layout.h").read_text()
    assert f"sizeof(WarpAccess) == {RECORD.itemsize}" in header
    for name in RECORD.names or ():
        assert name in header
    (tmp_path / "values-5.records").write_bytes(b"\xff" * RECORD.itemsize)
    with pytest.raises(ValuesError, match="holds no accesses"):
        read(tmp_path, 5)
    (tmp_path / "values-6.ends").write_bytes(b"\x09" + b"\0" * 7)
    with pytest.raises(ValuesError, match="is cut"):
        read(tmp_path, 6)

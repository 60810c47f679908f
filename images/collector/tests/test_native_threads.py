"""What one thread of a program does while another is in the middle of something."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from accel_trace import events as ev
from native_support import START, Log, launch, play, touched
from test_unpatched import CUBLAS, UNSEEN, cubin, words

A = 0x7F0000000000
MIB = 1 << 20
BEGIN = [*START, "stream 2 1", f"alloc 1 {A:#x} {MIB}"]


def read(address: int = A) -> str:
    return f"global 1 4 {address:#x} 4 9"


def meanwhile(place: str, *lines: str) -> list[str]:
    """Another thread does it when the place is reached next (native/testing/driver.h)."""
    return [f"meanwhile {place}", *lines, "over"]


def call(name: str = "kernel", stream: int = 1, module: int = 1) -> list[str]:
    """A launch by the driver's function."""
    return [*launch(read(), name=name, stream=stream, module=module)[:-1], "call"]


@pytest.mark.parametrize("mode", ["touch", "count", "hot"])
def test_launches_between_a_wait_and_its_end(tmp_path: Path, mode: str) -> None:
    """The context was waited for, and two streams have work again before we are told of it."""
    log = play([
        *BEGIN, *launch(read()),
        *meanwhile("waited", *launch(read(), stream=2), *launch(read())), "sync_context 1",
        "sync 2", "sync_context 1",
    ], tmp_path, mode).log  # fmt: skip
    assert not log.of(ev.Nothing)
    if mode == "touch":
        assert [touched(log, i) for i in range(3)] == [[(A, MIB)]] * 3
    elif mode == "count":
        assert sorted((c.launch, c.global_reads) for c in log.of(ev.Counts)) == [
            (0, 9), (1, 9), (2, 9)]  # fmt: skip
    else:
        assert sorted((h.launch, h.count) for h in log.of(ev.Hot)) == [(0, 9), (1, 9), (2, 9)]


def test_a_table_of_a_launch_that_is_not_submitted_stays_its_own(tmp_path: Path) -> None:
    """Sixteen streams have one, and a seventeenth wants one; then the launch's tensor ends."""
    others = [line for s in range(2, 18) for line in launch(read(A + MIB // 2), stream=s)]
    log = play([
        *BEGIN, *(f"stream {s} 1" for s in range(3, 18)), f"tensor {A:#x} 4096",
        *launch(read()), *others[:-3], *meanwhile("begun", *others), *launch(read()),
        f"untensor {A:#x}", f"tensor {A:#x} 512", *launch(read(), stream=17), "run 17", "sync 1",
    ], tmp_path).log  # fmt: skip
    held = len(others) // 3
    assert touched(log, held, 1) == [(A, 4096)]
    assert touched(log, 2 * held + 1, 1) == [(A, 512)]


@pytest.mark.parametrize("mode", ["touch", "trace", "count"])
def test_what_a_broken_context_keeps_is_not_nothing(tmp_path: Path, mode: str) -> None:
    settings = {"analysis": "count"} if mode == "trace" else {}
    script = [*BEGIN, *launch(read()), "sync 1", *meanwhile("begun", "break 1"), *launch(read())]
    log = play(script, tmp_path, mode, **settings).log
    assert [one.launch for one in log.of(ev.Lost)] == [1]
    assert not log.of(ev.Nothing)
    assert [c.launch for c in log.of(ev.Counts)] == ([] if mode == "touch" else [0])


@pytest.mark.parametrize("mode", ["touch", "trace"])
def test_a_launch_that_is_under_way_when_the_program_ends(tmp_path: Path, mode: str) -> None:
    script = [*BEGIN, *launch(read()), *meanwhile("begun", "exit 0"), *launch(read())]
    log = play(script, tmp_path, mode).log
    assert log.whole
    assert [one.launch for one in log.of(ev.Lost)] == [1]


@pytest.mark.parametrize("mode", ["touch", "trace", "values"])
def test_an_iteration_that_ends_while_a_launch_takes_long(tmp_path: Path, mode: str) -> None:
    """Its module is not unpatched under it: what it touches would be nothing."""
    log = play([
        *BEGIN, f"memory {A:#x} 4096 7", "step", *call(), "step", *meanwhile("begun", "step"),
        *call("long"), *call("later"), "step", *call("last"),
    ], tmp_path, mode, every=3).log  # fmt: skip
    assert [(x.name, x.analysed) for x in log.of(ev.Launch)] == [
        ("kernel", 0), ("long", 1), ("later", 1), *[("last", 0)] * (mode == "values"),
    ]  # fmt: skip
    assert [(i.iteration, i.analysed) for i in log.of(ev.Iteration) if i.began] == [
        (0, 0), (1, 1), (2, 1), (3, 0)]  # fmt: skip
    if mode == "values":
        assert [(one.launch, one.accesses) for one in log.of(ev.Recorded)] == [(1, 9), (2, 9)]
    else:
        assert [touched(log, i) for i in range(3)] == [[], [(A, MIB)], [(A, MIB)]]


def test_a_launch_whose_end_is_not_watched_any_more_is_unknown(tmp_path: Path) -> None:
    """Not refused: by a function of the driver that is not watched, it held up nobody."""
    log = play([
        *BEGIN, "step", *call(), "step", *meanwhile("begun", "step"), *launch(read()), "step",
        *call("last"),
    ], tmp_path, every=3).log  # fmt: skip
    assert [one.launch for one in log.of(ev.Lost)] == [1]
    assert log.of(ev.Refused) == []


@pytest.mark.parametrize("beside", [call("beside", 2), ["instantiate 5"], ["step", "step", "step"]])
def test_a_graph_stays_patched_while_it_is_instantiated(tmp_path: Path, beside: list[str]) -> None:
    """Whatever others do: patched later, its kernels are no code."""
    node = ["graph 1", "node 1 k", f"access {read()}", "go"]
    steps = ["step", *node] * 5
    log = play([
        *BEGIN, *meanwhile("instantiating", *beside), "instantiate 4", *steps,
    ], tmp_path, every=2).log  # fmt: skip
    of_graph = [x for x in log.of(ev.Launch) if x.name == "k"]
    assert not log.of(ev.Lost)
    assert [x.analysed for x in of_graph].count(2) >= 2
    assert all(bool(touched(log, x.launch)) == (x.analysed == 2) for x in of_graph)


def test_regions_of_others_while_one_ends(tmp_path: Path) -> None:
    log = play([
        *BEGIN, "region start r", *call(), "region end r", "region start outer", "region start r",
        *call(), *meanwhile("unpatch", "region end outer", "region start z"), "region end r",
        *launch(),
    ], tmp_path, every=2, region="r").log  # fmt: skip
    assert [(x.analysed, x.region) for x in log.of(ev.Launch)] == [(0, "r"), (1, "r"), (0, "z")]


@pytest.mark.parametrize("place", ["patch", "unpatch"])
def test_a_module_that_ends_while_modules_are_patched(tmp_path: Path, place: str) -> None:
    """Be it the one that is being patched, or one of those that are to be."""
    ends = {place: meanwhile(place, "unload 2", "unload 3", "unload 4")}
    log = play([
        *BEGIN, *(f"module {m} 1" for m in range(2, 6)), "step", *ends.get("patch", []), "step",
        *call(), *ends.get("unpatch", []), "step", "step", *call(), "sync 1",
    ], tmp_path, every=2).log  # fmt: skip
    assert not log.of(ev.Lost)
    assert [x.analysed for x in log.of(ev.Launch)] == [1, 1]
    assert [touched(log, i) for i in range(2)] == [[(A, MIB)]] * 2


def test_a_context_that_ends_while_another_thread_drains(tmp_path: Path) -> None:
    log = play([
        *BEGIN, *launch(read()), *meanwhile("wait", "flush"), "destroy 1",
    ], tmp_path, sanitize="address").log  # fmt: skip
    assert touched(log, 0) == [(A, MIB)]


@pytest.mark.parametrize("mode", ["touch", "values"])
def test_a_launch_that_fails_holds_up_no_other_thread(tmp_path: Path, mode: str) -> None:
    """Its own may never launch again; memory that comes has the rows laid out anew."""
    fails = [*launch(read())[:-1], "call fails"]
    more = [f"alloc 1 {A + 2 * MIB + 1024 * i:#x} 512" for i in range(5000)]
    log = play([
        *BEGIN, f"memory {A:#x} 4096 7", *meanwhile("waited", *fails),
        "sync_context 1", *more, *call(),
    ], tmp_path, mode).log  # fmt: skip
    assert [x.analysed for x in log.of(ev.Launch)] == [1, 1]
    assert not log.of(ev.Lost)
    if mode == "touch":
        assert touched(log, 1) == [(A, MIB)]
    else:
        assert [(one.launch, one.accesses) for one in log.of(ev.Recorded)] == [(1, 9)]


def check_crowd(log: Log, mode: str) -> None:
    """Of each launch what its name says; of those that were refused that they were."""
    ended = {one.launch for one in log.of(ev.LaunchEnd)}
    refused = [one.launch for one in log.of(ev.Refused)]
    assert sorted([*ended, *refused]) == [*range(len(log.of(ev.Launch)))]
    launches = [one for one in log.of(ev.Launch) if one.launch in ended]
    results: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for touch in log.of(ev.Touched):
        results[touch.launch].append((touch.what, touch.address, touch.size))
    for counts in log.of(ev.Counts):
        results[counts.launch].append((counts.global_reads, counts.outside))
    for hot in log.of(ev.Hot):
        results[hot.launch].append((hot.block, hot.count))
    wrong = []
    for one in launches:
        base, size, tensor, length, reads = (int(word, 0) for word in one.name.split())
        wanted = {
            "touch": [(0, base, size), (1, tensor, length)],
            "count": [(reads, 0)],
            "hot": [(tensor >> 21, reads)],
        }[mode]
        if one.analysed != 1 or results[one.launch] != wanted:
            wrong.append((one.launch, one.analysed, one.name, results[one.launch]))
    assert wrong == []
    assert not [*log.of(ev.Lost), *log.of(ev.Nothing)]


CROWDS = [("touch", "touch"), ("count", "count"), ("hot", "hot"), ("trace", "touch"),
          ("trace", "count"), ("trace", "hot")]  # fmt: skip


TWO = ["context 1 0", "context 2 1", "module 1 1", "module 2 2"]


@pytest.mark.parametrize(("mode", "analysis"), CROWDS)
def test_a_crowd(tmp_path: Path, mode: str, analysis: str) -> None:
    """In each of two contexts more streams than have a table of their own, waits for one and for
    all, refused launches; and a third context that is made and destroyed meanwhile."""
    settings = {"analysis": analysis, "workers": 3, "buffer": 64}
    log = play([*TWO, "crowd 18 14 2"], tmp_path, mode, **settings).log
    assert len(log.of(ev.LaunchEnd)) == 18 * 14 * 3 + 14
    check_crowd(log, analysis)


@pytest.mark.parametrize("mode", ["touch", "trace"])
def test_a_crowd_under_the_thread_sanitizer(tmp_path: Path, mode: str) -> None:
    settings = {"workers": 2, "buffer": 64, "sanitize": "thread"}
    rounds = 60 if mode == "trace" else 14  # what a context's end races with is seldom there
    run = play([*TWO, f"crowd 4 {rounds} 2"], tmp_path, mode, **settings)
    assert run.stderr == ""
    check_crowd(run.log, "touch")


@pytest.mark.parametrize("sanitize", ["", "thread"])
def test_threads_that_capture_graphs_at_once(tmp_path: Path, sanitize: str) -> None:
    """A graph's kernel gets the map that its own thread captured, whoever else captures."""
    count, rounds, space = 5, 12, 1 << 24
    maps = [f"tensor_map {t + 1} {words(CUBLAS, A + t * space)}" for t in range(count)]
    log = play([
        "context 1 0", f"module 1 1 - {cubin('90a')}", f"alloc 1 {A:#x} {count * space}", *maps,
        f"captures {count} {rounds}",
    ], tmp_path, sanitize=sanitize, classes=UNSEEN).log  # fmt: skip
    threads = {one.launch: one.thread for one in log.of(ev.Launch)}
    got = defaultdict(list)
    for one in log.of(ev.TensorMap):
        got[threads[one.launch]].append(one.address)
    assert sorted(got.values()) == [[A + t * space] * rounds for t in range(count)]


@pytest.mark.parametrize("sanitize", ["", "thread"])
def test_threads_that_copy_at_once(tmp_path: Path, sanitize: str) -> None:
    """What one found as it was is told right before it, whichever way it was compared."""
    count, rounds = 5, 12
    run = play([*TWO, f"moves {count} {rounds} 2"], tmp_path, "copies", sanitize=sanitize)
    found = defaultdict(list)
    for one, after in pairwise(run.log.events):
        if isinstance(one, ev.Compared):
            assert isinstance(after, ev.Memcpy | ev.Memset)
            assert after.size == one.size
            found[one.size].append(2 * one.unchanged / one.size)
    assert len(found) == count
    assert set(map(tuple, found.values())) == {(0, 1, 0, *[1] * 3 * (rounds - 1))}
    by = run.log.facts()["compared_by"]
    assert sum(map(int, re.findall(r"\d+", by))) == count * rounds * 3, by


@pytest.mark.parametrize("sanitize", ["", "thread"])
def test_threads_whose_launches_are_looked_at_at_once(tmp_path: Path, sanitize: str) -> None:
    """One at a time is; the others are counted."""
    count, rounds = 5, 12
    script = [*TWO, f"looks {count} {rounds} 2"]
    log = play(script, tmp_path, "copies", snapshot=1, sanitize=sanitize).log
    names = {one.launch: one.name for one in log.of(ev.Launch)}
    assert len(names) == count * rounds
    for one in log.of(ev.Kept):
        thread = int(names[one.launch].removeprefix("own"))
        assert (one.address, one.unchanged) == (A + thread * 0x1000000, 4096 - thread - 1)
    others = re.search(r"(\d+) launches were not compared: another thread's", log.notes())
    left = int(others[1]) if others else 0
    assert len(log.of(ev.Kept)) == int(log.facts()["snapshots"]) == count * rounds - left > 0

"""Which pieces a launch touched: bounds, tensors, reuse of addresses, rings, streams, contexts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from accel_trace import events as ev
from accel_trace.reporting import make_report
from accel_trace.session import Session
from accel_trace.tools.working_set import WorkingSet
from native_support import START, Log, launch, play, touched

A = 0x7F0000000000
MIB = 1 << 20
ROWS = 4 * MIB // (4096 + 64)  # of 4096 slots, in 4 MiB
MODES = [("touch", {}), ("trace", {}), ("trace", {"workers": 3, "buffer": 16})]


def read(address: int, count: int = 1, stride: int = 4) -> str:
    return f"global 1 4 {address:#x} {stride} {count}"


def outside(log: Log, number: int) -> bool:
    return (0, 0) in touched(log, number)


def objects(log: Log, number: int) -> list[tuple[int, int]]:
    return [piece for piece in touched(log, number) if piece != (0, 0)]


@pytest.mark.parametrize(("mode", "settings"), MODES)
def test_starts_ends_gaps_and_neighbours(
    tmp_path: Path, mode: str, settings: dict[str, object]
) -> None:
    script = [
        *START,
        f"alloc 1 {A:#x} 1000", f"alloc 1 {A + 1000:#x} 24",  # share a granule
        f"alloc 1 {A + 4096:#x} 512", f"alloc 1 {A + 4608:#x} 3",  # adjoin
        f"alloc 1 {A + 32 * MIB:#x} {64 * MIB}",  # whole blocks
        "alloc 1 0x302000000 4096",  # far below the others
        *launch(read(A + 996)), *launch(read(A + 1000)), *launch(read(A + 1023)),
        *launch(read(A + 1024)), *launch(read(A - 1)), *launch(read(A + 4607)),
        *launch(read(A + 4610)), *launch(read(A + 4611)), *launch(read(A + 32 * MIB - 1)),
        *launch(read(A + 96 * MIB - 4)), *launch(read(A + 96 * MIB)),
        *launch(read(0x302000FFC)), *launch(read(0x302001000)),
        *launch(read(0xFFFF_0000_0000_0000)),
        *launch(),
    ]  # fmt: skip
    log = play(script, tmp_path, mode, **settings).log
    nothing: list[tuple[int, int]] = [(0, 0)]
    assert [touched(log, i) for i in range(15)] == [
        [(A, 1000)], [(A + 1000, 24)], [(A + 1000, 24)], nothing, nothing, [(A + 4096, 512)],
        [(A + 4608, 3)], nothing, nothing, [(A + 32 * MIB, 64 * MIB)], nothing,
        [(0x302000000, 4096)], nothing, nothing, [],
    ]  # fmt: skip


@pytest.mark.parametrize(("mode", "settings"), MODES)
def test_tensors_within_objects(tmp_path: Path, mode: str, settings: dict[str, object]) -> None:
    segment = 20 * MIB
    script = [
        *START, f"alloc 1 {A:#x} {segment}", f"alloc 1 {A + segment:#x} {segment}",
        f"tensor {A:#x} 512", f"tensor {A + 512:#x} {3 * MIB}",
        f"tensor {A + segment - MIB:#x} {2 * MIB}",  # over two objects, as expandable segments are
        f"tensor {A - 4096:#x} 512",  # in no object that is known
        *launch(read(A + 511)), *launch(read(A + 512 + 3 * MIB)),
        *launch(read(A + 512, 3, MIB), read(A)), *launch(read(A + segment + 4)),
        *launch(read(A - 4096)), f"untensor {A + 512:#x}", *launch(read(A + 512)),
    ]  # fmt: skip
    log = play(script, tmp_path, mode, **settings).log
    first, second = (A, segment), (A + segment, segment)
    wide = (A + segment - MIB, 2 * MIB)
    assert [touched(log, i, 1) for i in range(6)] == [
        [(A, 512)], [], [(A, 512), (A + 512, 3 * MIB)], [wide], [(A - 4096, 512)], [],
    ]  # fmt: skip
    assert [touched(log, i) for i in range(6)] == [[first], [first], [first], [second], [], [first]]


@pytest.mark.parametrize(("mode", "settings"), MODES)
def test_bulk_copies_touch_all_that_they_cover(
    tmp_path: Path, mode: str, settings: dict[str, object]
) -> None:
    script = [
        *START, f"alloc 1 {A:#x} {4 * MIB}", f"tensor {A:#x} 512", f"tensor {A + 512:#x} 512",
        f"tensor {A + 1024:#x} {3 * MIB}", f"alloc 1 {A + 5 * MIB:#x} 4000",
        *launch(f"bulk_load 0 1024 {A:#x} 0 1"), *launch(f"bulk_store 0 1040 {A + 512:#x} 0 1"),
        *launch(f"bulk_load 0 524288 {A + 1024 + 2 * MIB:#x} 0 1"),
        *launch(f"bulk_reduce 0 4096 {A + 5 * MIB:#x} 0 1"),
    ]  # fmt: skip
    log = play(script, tmp_path, mode, **settings).log
    t1, t2, t3 = (A, 512), (A + 512, 512), (A + 1024, 3 * MIB)
    assert [touched(log, i, 1) for i in range(4)] == [[t1, t2], [t2, t3], [t3], []]
    assert touched(log, 3) == [(0, 0), (A + 5 * MIB, 4000)] or touched(log, 3) == [
        (A + 5 * MIB, 4000), (0, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(("mode", "settings"), MODES)
def test_an_address_that_is_used_again_belongs_to_its_new_owner(
    tmp_path: Path, mode: str, settings: dict[str, object]
) -> None:
    """Nothing runs before the end: uploads and kernels must keep their order on the stream."""
    script = list(START)
    sizes = [512 * (i + 1) for i in range(40)]
    for size in sizes:
        script += [f"alloc 1 {A:#x} {size}", *launch(read(A, size // 4)), f"free 1 {A:#x}"]
    log = play(script, tmp_path, mode, **settings).log
    assert [touched(log, i) for i in range(40)] == [[(A, size)] for size in sizes]


def test_more_launches_than_rows(tmp_path: Path) -> None:
    script = [*START, *(f"alloc 1 {A + i * 4096:#x} 4096" for i in range(8))]
    for i in range(3000):
        script += launch(read(A + i % 8 * 4096))
    log = play(script, tmp_path).log
    assert [touched(log, i) for i in range(3000)] == [
        [(A + i % 8 * 4096, 4096)] for i in range(3000)
    ]
    assert int(log.facts()["device_bytes"]) < 20 << 20


def test_more_pieces_than_slots_at_first(tmp_path: Path) -> None:
    script = list(START)
    for i in range(6000):
        script.append(f"alloc 1 {A + i * 8192:#x} {512 + i % 5}")
        if i % 500 == 499:
            script += launch(read(A + i * 8192), read(A))
    log = play(script, tmp_path).log
    for number, i in enumerate(range(499, 6000, 500)):
        assert touched(log, number) == [(A, 512), (A + i * 8192, 512 + i % 5)]


def test_slots_come_back_without_any_analysed_launch(tmp_path: Path) -> None:
    """A long run of tensors before the range that is analysed takes no memory."""
    script = [*START, f"alloc 1 {A:#x} {4 * MIB}"]
    for i in range(20_000):
        address = A + i % 64 * 512
        script += [f"tensor {address:#x} 512", f"untensor {address:#x}"]
    script += [f"tensor {A + MIB:#x} 512", *launch(read(A + MIB))]
    log = play(script, tmp_path).log
    assert touched(log, 0, 1) == [(A + MIB, 512)]
    assert int(log.facts()["pinned_bytes"]) == ROWS * (4096 + 64)


def test_few_launches_and_many_tensors_do_not_grow_the_rows(tmp_path: Path) -> None:
    script = [*START, f"alloc 1 {A:#x} {4 * MIB}"]
    for i in range(30_000):
        address = A + i % 64 * 512
        script += [f"tensor {address:#x} 512"]
        if i % 100 == 0:
            script += launch(read(address))
        script += [f"untensor {address:#x}"]
    log = play(script, tmp_path).log
    assert [len(touched(log, i, 1)) for i in range(300)] == [1] * 300
    assert int(log.facts()["pinned_bytes"]) <= 8192 * 600


def test_nothing_is_sent_for_tensors_that_come_again(tmp_path: Path) -> None:
    """As in a loop, where the framework hands out the same blocks: the table is as it was."""

    def copies(rounds: int) -> tuple[int, Log]:
        script = [*START, f"alloc 1 {A:#x} {8 * MIB}"]
        for _ in range(rounds):
            script += [
                f"tensor {A:#x} 4096", f"tensor {A + 8192:#x} {3 * MIB}",
                *launch(read(A), read(A + 9000)), f"untensor {A:#x}",
                *launch(read(A), read(A + 9000)), f"untensor {A + 8192:#x}",
                *launch(read(A + 9000)),
            ]  # fmt: skip
        log = play([*script, "sync 1"], tmp_path).log
        return int(log.facts()["table_copies"]), log

    (few, _), (many, log) = copies(2), copies(40)
    assert many == few
    small, large, whole = (A, 4096), (A + 8192, 3 * MIB), (A, 8 * MIB)
    for i in range(40):
        got = [touched(log, 3 * i + j, 1) for j in range(3)]
        assert got == [[small, large], [large], []]
        assert [touched(log, 3 * i + j) for j in range(3)] == [[whole]] * 3


def test_nothing_is_sent_for_other_sizes_at_the_same_addresses(tmp_path: Path) -> None:
    """As in a training step, whose blocks are split and merged in the same ways each time."""

    def play_rounds(rounds: int) -> tuple[int, Log]:
        script = [*START, f"alloc 1 {A:#x} {8 * MIB}"]
        for _ in range(rounds):
            for size in (4096, 512, 1 << 20, 70000, 3 * MIB):
                script += [f"tensor {A:#x} {size}", f"tensor {A + size:#x} 2048",
                           *launch(read(A + size - 4)), *launch(read(A + size)),
                           f"untensor {A:#x}", *launch(read(A)),
                           f"untensor {A + size:#x}"]  # fmt: skip
        log = play([*script, "sync 1"], tmp_path).log
        return int(log.facts()["table_copies"]), log

    (few, _), (many, log) = play_rounds(2), play_rounds(30)
    assert many == few
    wanted = [
        one
        for size in (4096, 512, 1 << 20, 70000, 3 * MIB)
        for one in ([(A, size)], [(A + size, 2048)], [])
    ]
    assert [touched(log, i, 1) for i in range(15 * 30)] == wanted * 30


@pytest.mark.parametrize(("seed", "blocks"), [(1, 64), (2, 3000), (3, 60000)])
def test_tensors_of_all_sizes_come_and_go(seed: int, blocks: int, tmp_path: Path) -> None:
    """Each launch touches the tensor that is there then, or the object alone; few are drained."""
    chance = random.Random(seed)
    script, want = [*START], []
    script.append(f"alloc 1 {A:#x} {blocks * 512 // 2}")
    live: dict[int, int] = {}
    for i in range(9000):
        at = A + 512 * chance.randrange(blocks)
        size = 512 * min(chance.choice([1, 1, 2, 3, 8, 100, blocks // 2]), blocks)
        for old in [a for a, n in live.items() if a < at + size and a + n > at]:
            script.append(f"untensor {old:#x}")
            del live[old]
        if chance.random() < 0.9:
            live[at] = size
            script.append(f"tensor {at:#x} {size}")
        if i % 7 == 0:
            place = chance.choice([*live, *(a + n - 4 for a, n in live.items()), A])
            script += launch(read(place))
            want.append([(a, n) for a, n in live.items() if a <= place < a + n])
        if i % 900 == 0:
            script.append("sync 1")
    log = play([*script, "sync 1"], tmp_path).log
    assert [touched(log, i, 1) for i in range(len(want))] == want
    assert sum(map(len, want)) > 600


def test_other_tensors_where_some_have_ended(tmp_path: Path) -> None:
    script = [
        *START, f"alloc 1 {A:#x} {8 * MIB}", f"tensor {A:#x} 4096", f"tensor {A + 4096:#x} 4096",
        *launch(read(A), read(A + 4096)), f"untensor {A:#x}", f"untensor {A + 4096:#x}",
        f"tensor {A + 2048:#x} 4096", *launch(read(A), read(A + 2048), read(A + 7000)),
        f"untensor {A + 2048:#x}", f"tensor {A:#x} 4096", *launch(read(A), read(A + 4096)),
        f"untensor {A:#x}", f"free 1 {A:#x}", *launch(read(A)), f"alloc 1 {A:#x} {MIB}",
        f"tensor {A:#x} 4096", *launch(read(A)),
    ]  # fmt: skip
    log = play(script, tmp_path).log
    whole = (A, 8 * MIB)
    assert [touched(log, i, 1) for i in range(5)] == [
        [(A, 4096), (A + 4096, 4096)], [(A + 2048, 4096)], [(A, 4096)], [], [(A, 4096)],
    ]  # fmt: skip
    assert [touched(log, i) for i in range(5)] == [[whole]] * 3 + [[(0, 0)], [(A, MIB)]]


def test_frees_while_kernels_are_under_way(tmp_path: Path) -> None:
    """Objects and tensors end, and others take their place, before any kernel has run."""
    script = [
        *START, f"alloc 1 {A:#x} {4 * MIB}", f"tensor {A:#x} 1024",
        *launch(read(A), read(A + 2 * MIB)), f"untensor {A:#x}", f"tensor {A + 512:#x} 2048",
        *launch(read(A), read(A + 1000)), f"untensor {A + 512:#x}", f"free 1 {A:#x}",
        *launch(read(A)), f"alloc 1 {A + MIB:#x} {MIB}", *launch(read(A + MIB), read(A)),
    ]  # fmt: skip
    log = play(script, tmp_path).log
    big = (A, 4 * MIB)
    assert (touched(log, 0), touched(log, 0, 1)) == ([big], [(A, 1024)])
    assert (touched(log, 1), touched(log, 1, 1)) == ([big], [(A + 512, 2048)])
    assert touched(log, 2) == [(0, 0)]
    assert (objects(log, 3), outside(log, 3)) == ([(A + MIB, MIB)], True)


@pytest.mark.parametrize("streams", [7, 23])
def test_streams_see_memory_as_it_was_at_their_launches(tmp_path: Path, streams: int) -> None:
    """Sixteen have a table of their own, and wait for nobody; none runs until it must."""
    script = ["context 1 0", "module 1 1", *(f"stream {s} 1" for s in range(1, streams + 1))]
    want = []
    for i in range(60):
        stream, size = 1 + i * 5 % streams, 512 * (i + 1)
        script += [f"alloc 1 {A:#x} {size}", *launch(read(A + size - 4), stream=stream)]
        want.append([(A, size)])
        script += [f"free 1 {A:#x}"]
        if i % 11 == 0:
            script += [f"run {stream} 3"]
    log = play(script, tmp_path).log
    assert [touched(log, i) for i in range(60)] == want
    assert (int(log.facts().get("table_moves", 0)) > 0) == (streams > 16)
    assert int(log.facts()["table_copies"]) >= 60


def test_a_stream_that_ends_with_work_to_do(tmp_path: Path) -> None:
    script = ["context 1 0", "module 1 1", f"alloc 1 {A:#x} 512"]
    for s in range(1, 20):
        script += [f"stream {s} 1", *launch(read(A), stream=s), f"stream_destroy {s}"]
    log = play(script, tmp_path).log
    assert [touched(log, i) for i in range(19)] == [[(A, 512)]] * 19
    assert [n.text for n in log.of(ev.Note) if "tensor map" not in n.text] == []


@pytest.mark.parametrize("flags", ["0x10", "0"])
def test_contexts_have_rows_of_their_own_and_one_view_of_memory(tmp_path: Path, flags: str) -> None:
    """The end of a peer's view comes with the flags of its beginning, or without."""
    script = [
        "context 1 0", "context 2 1", "module 1 1", "module 2 2", "stream 1 1", "stream 2 2",
        f"alloc 1 {A:#x} 512", f"alloc 2 {A + 4096:#x} 1024",
        f"alloc 2 {A:#x} 512 0x10",  # the second device's view of the first's memory
        *launch(read(A + 4096), stream=1), *launch(read(A), stream=2, module=2),
        f"free 2 {A:#x} 512 {flags}", *launch(read(A), stream=2, module=2),
        "destroy 2", *launch(read(A)), *launch(read(A + 4096)),
    ]  # fmt: skip
    log = play(script, tmp_path).log
    assert [touched(log, i) for i in range(5)] == [
        [(A + 4096, 1024)], [(A, 512)], [(A, 512)], [(A, 512)], [(0, 0)],
    ]  # fmt: skip
    assert [(a.address, a.device) for a in log.of(ev.Alloc)] == [(A, 0), (A + 4096, 1)]
    assert [(f.address, f.size) for f in log.of(ev.Free)] == [(A + 4096, 1024)]
    assert [(c.device, c.created) for c in log.of(ev.Context)] == [(0, 1), (1, 1), (1, 0)]
    assert [launched.device for launched in log.of(ev.Launch)] == [0, 1, 1, 0, 0]


@pytest.mark.parametrize("mode", ["touch", "count", "hot", "trace"])
def test_nodes_of_graphs(tmp_path: Path, mode: str) -> None:
    """All share one row. They run after the whole graph was submitted: none is drained before."""
    script = [*START, *(f"alloc 1 {A + (i << 22):#x} 4096" for i in range(4))]
    script += launch(read(A))
    script.append("graph 1")
    for i in range(4):
        script += [f"node 1 node{i}", f"access {read(A + (i << 22), i + 1)}"]
    script += ["go", *launch(read(A)), "graph 1 upload", "node 1 uploaded", "go", "graph 1 refuses",
               "node 1 refused", f"access {read(A)}", "go"]  # fmt: skip
    log = play(script, tmp_path, mode).log
    launches = log.of(ev.Launch)
    assert [(x.name, x.analysed) for x in launches] == [
        ("kernel", 1), *((f"node{i}", 4 if i else 2) for i in range(4)), ("kernel", 1),
        ("refused", 3),
    ]  # fmt: skip
    assert log.notes().count("nodes of CUDA graphs are not analysed") == 1
    assert log.notes().count("the nodes of a CUDA graph share one state") == 1
    if mode == "count":
        assert [(c.launch, c.global_reads) for c in log.of(ev.Counts)] == [(0, 1), (1, 10), (5, 1)]
    elif mode == "hot":
        assert [(h.launch, h.count) for h in log.of(ev.Hot)] == [
            (0, 1), (1, 1), (1, 2), (1, 3), (1, 4), (5, 1)]  # fmt: skip
    else:
        assert touched(log, 1) == [(A + (i << 22), 4096) for i in range(4)]
        assert [touched(log, i) for i in (2, 3, 4)] == [[], [], []]
    assert len(log.of(ev.LaunchEnd)) == 7


@pytest.mark.parametrize("mode", ["touch", "count", "hot", "trace"])
def test_nodes_of_a_graph_find_all_ready(tmp_path: Path, mode: str) -> None:
    """Also of the first launch: while its nodes are reported, nothing waits or takes memory."""
    script = [*START, f"alloc 1 {A:#x} 4096", "graph 1"]
    for i in range(40):
        script += [f"node 1 node{i}", f"access {read(A)}"]
    run = play(
        [*script, "go", "go", f"alloc 1 {A + (9 << 22):#x} 4096", "go", "waits"], tmp_path, mode
    )
    assert [x.analysed for x in run.log.of(ev.Launch)] == [2, *[4] * 39] * 3
    assert "waits in nodes 0" in run.stdout


def test_graphs_of_many_nodes_and_launches(tmp_path: Path) -> None:
    script = [*START, f"alloc 1 {A:#x} 4096", *launch(read(A)), "graph 1"]
    for _ in range(1500):
        script += ["node 1 node", f"access {read(A)}"]
    script += ["go", "go", *launch(read(A)), "graph 1", "node 1 node", f"access {read(A)}"]
    script += ["go"] * (2 * ROWS)
    log = play(script, tmp_path).log
    analysed = [x.analysed for x in log.of(ev.Launch)]
    assert analysed[0] == analysed[3001] == 1
    assert analysed[1:1501] == analysed[1501:3001] == [2, *[4] * 1499]
    assert analysed[3002:] == [2] * (2 * ROWS)
    assert {t.launch for t in log.of(ev.Touched)} == {
        i for i, one in enumerate(analysed) if one != 4
    }


@pytest.mark.parametrize("mode", ["touch", "count"])
def test_filters_within_a_graph(tmp_path: Path, mode: str) -> None:
    """The filters say which node is the first; what comes after it is told with it."""
    script = [*START, f"alloc 1 {A:#x} 4096", f"alloc 1 {A + (1 << 22):#x} 4096", "graph 1",
              "node 1 other", f"access {read(A + (1 << 22))}", "node 1 wanted",
              f"access {read(A)}", "node 1 another", f"access {read(A)}", "go"]  # fmt: skip
    log = play(script, tmp_path, mode, kernels="wanted").log
    assert [x.analysed for x in log.of(ev.Launch)] == [3, 2, 4]
    if mode == "touch":
        assert touched(log, 1) == [(A, 4096), (A + (1 << 22), 4096)]
    else:
        assert [(c.launch, c.global_reads) for c in log.of(ev.Counts)] == [(1, 3)]


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_two_contexts_of_a_device_see_the_same_memory(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    """Each is told of all there is; an object ends with the last of its views."""
    script = [
        "context 1 0", "module 1 1", "stream 1 1", f"alloc 1 {A:#x} 512", "context 2 0",
        "module 2 2", "stream 2 2", f"alloc 2 {A:#x} 512", f"alloc 1 {A + 4096:#x} 1024",
        f"alloc 2 {A + 4096:#x} 1024", f"alloc 1 {A + 8192:#x} 256", f"alloc 2 {A + 8192:#x} 256",
        *launch(read(A + 4096), stream=2, module=2),
        f"free {order[0]} {A + 8192:#x} 256", f"free {order[1]} {A + 8192:#x} 256",
        *launch(read(A + 8192)),
        # As a context ends: the other's view of what was its own, its view of what was the other's.
        f"free 1 {A + 4096:#x} 1024", f"free 2 {A:#x} 512", "destroy 2",
        *launch(read(A)), *launch(read(A + 4096)),
        f"free 1 {A:#x} 512", *launch(read(A)),
    ]  # fmt: skip
    log = play(script, tmp_path).log
    assert [touched(log, i) for i in range(5)] == [
        [(A + 4096, 1024)], [(0, 0)], [(A, 512)], [(0, 0)], [(0, 0)],
    ]  # fmt: skip
    assert [(a.address, a.size) for a in log.of(ev.Alloc)] == [
        (A, 512), (A + 4096, 1024), (A + 8192, 256)]  # fmt: skip
    assert [f.address for f in log.of(ev.Free)] == [A + 8192, A + 4096, A]


def test_an_object_that_ends_without_a_word(tmp_path: Path) -> None:
    """A pool's block over which its parts are handed out, or a free that nobody reported."""
    script = [
        *START, f"alloc 1 {A:#x} 8192", f"alloc 1 {A + 4096:#x} 512", *launch(read(A + 4096)),
        *launch(read(A)), f"alloc 1 {A + 4096:#x} 1024", *launch(read(A + 5000)),
    ]  # fmt: skip
    log = play(script, tmp_path).log
    assert [touched(log, i) for i in range(3)] == [
        [(A + 4096, 512)], [(0, 0)], [(A + 4096, 1024)]]  # fmt: skip
    assert [(f.address, f.size) for f in log.of(ev.Free)] == [(A, 8192), (A + 4096, 512)]


def test_launches_that_the_driver_refuses(tmp_path: Path) -> None:
    script = [*START, f"alloc 1 {A:#x} 512"]
    for _ in range(2000):
        script += ["launch 1 1 kernel refused", f"access {read(A)}", "go"]
    script += launch(read(A))
    log = play(script, tmp_path).log
    assert touched(log, 2000) == [(A, 512)]
    assert len(log.of(ev.LaunchEnd)) == 1
    assert len(log.of(ev.Touched)) == 1
    assert [one.launch for one in log.of(ev.Refused)] == [*range(2000)]


@pytest.mark.parametrize(
    ("mode", "settings"),
    [("touch", {}), ("count", {}), ("hot", {}), ("trace", {}), ("values", {}),
     ("sync", {}), ("copies", {"snapshot": 1})],
)  # fmt: skip
def test_what_the_driver_refused_is_said_of_every_mode_that_is_told(
    tmp_path: Path, mode: str, settings: dict[str, int]
) -> None:
    """A kernel that it refused before it was told of is no launch; of a graph all kernels are."""
    work = launch(f"global 1 4 {A:#x} 4 9")[:-1]
    graph = ["graph 1", "node 1 a", f"access {read(A)}", "node 1 b", "go"]
    script = [
        *START, f"memory {A:#x} 512 0", f"alloc 1 {A:#x} 512", *work, "call refused", *work,
        "call fails", *work, "call", graph[0] + " fails", *graph[1:], *graph, *work, "call",
    ]  # fmt: skip
    run = play(script, tmp_path, mode, **settings)
    refused = [one.launch for one in run.log.of(ev.Refused)]
    assert refused == ([0] if mode == "copies" else [0, 2, 3])
    assert run.log.of(ev.Lost) == run.log.of(ev.Nothing) == []
    if mode == "touch":
        opened = Session(run.folder)
        report = make_report(WorkingSet({}, tmp_path), [opened]).text
        assert "refused: 3 launches, by the driver" in report
        assert "launches: 4 recorded, 4 analysed, 0 not" in report
        assert "min 512 B" in report


def test_a_graph_that_the_driver_refuses_holds_up_no_other_thread(tmp_path: Path) -> None:
    """Its own may never launch again; memory that comes has the rows laid out anew."""
    graph = ["graph 1 fails", "node 1 k", f"access {read(A)}", "go"]
    more = [f"alloc 1 {A + 2 * 1048576 + 1024 * i:#x} 512" for i in range(5000)]
    log = play([
        *START, "stream 2 1", f"alloc 1 {A:#x} 512", "meanwhile waited", *graph, "over",
        "sync_context 1", *more, *launch(read(A), stream=2),
    ], tmp_path).log  # fmt: skip
    assert touched(log, 1) == [(A, 512)]
    assert log.of(ev.Lost) == []


class Dice:
    """Random allocations, tensors, streams and launches; accesses in and around the pieces."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.live: dict[int, int] = {}
        self.tensors: dict[int, int] = {}
        self.ended: list[tuple[int, int]] = []

    def allocate(self) -> list[str]:
        address = A + self.random.randrange(64) * 0x80000 + self.random.choice([0, 0, 100])
        size = self.random.choice([1, 300, 512, 4096, 100_000, 400_000])
        if any(a < address + size and address < a + s for a, s in self.live.items()):
            return []
        self.live[address] = size
        return [f"alloc 1 {address:#x} {size}"]

    def free(self) -> list[str]:
        if not self.live:
            return []
        address = self.random.choice(list(self.live))
        end = address + self.live.pop(address)
        inside = [tensor for tensor in self.tensors if address <= tensor < end]
        for tensor in inside:
            del self.tensors[tensor]
        return [*(f"untensor {tensor:#x}" for tensor in inside), f"free 1 {address:#x}"]

    def tensor(self) -> list[str]:
        if not self.live:
            return []
        home = self.random.choice(list(self.live))
        address = home + 512 * self.random.randrange(max(self.live[home] // 512, 1))
        size = 512 * self.random.randrange(1, 9)
        again = [pair for pair in self.ended if home <= pair[0] < home + self.live[home]]
        if again and self.random.random() < 0.6:
            address, size = self.random.choice(again)
        taken = any(a < address + size and address < a + s for a, s in self.tensors.items())
        if taken or address + size > home + self.live[home]:
            return []
        self.tensors[address] = size
        return [f"tensor {address:#x} {size}"]

    def untensor(self) -> list[str]:
        if not self.tensors:
            return []
        address = self.random.choice(list(self.tensors))
        self.ended.append((address, self.tensors.pop(address)))
        return [f"untensor {address:#x}"]

    def run(self) -> list[str]:
        return [f"run {self.random.randrange(1, 4)} {self.random.randrange(5)}"]

    def launch(self) -> list[str]:
        accesses = []
        for _ in range(self.random.randrange(4)):
            pool = [*self.live.items(), *self.tensors.items(), *self.ended[-3:]] or [(A, 1)]
            base, size = self.random.choice(pool)
            at = base + self.random.choice([0, size - 1, size, -1, size // 2, size + 300])
            if self.random.random() < 0.2:
                kind = f"bulk_load 0 {16 * self.random.randrange(1, 3000)}"
                accesses.append(f"{kind} {base & ~15:#x} 0 1")
            else:
                flags, count = self.random.randrange(1, 4), self.random.randrange(1, 9)
                accesses.append(f"global {flags} 1 {at:#x} 64 {count}")
        return launch(*accesses, stream=self.random.randrange(1, 4))


def scenario(seed: int) -> list[str]:
    """150 random steps."""
    dice = Dice(seed)
    script = ["context 1 0", "module 1 1", *(f"stream {s} 1" for s in range(1, 4))]
    steps = [dice.allocate, dice.free, dice.tensor, dice.untensor, dice.run, dice.launch]
    for step in dice.random.choices(steps, weights=[25, 10, 15, 10, 5, 35], k=150):
        script += step()
    return script


@pytest.mark.parametrize("seed", range(25))
def test_the_gpu_and_the_cpu_find_the_same(tmp_path: Path, seed: int) -> None:
    script = scenario(seed)
    gpu = play(script, tmp_path, "touch").log
    cpu = play(script, tmp_path, "trace", workers=2, buffer=32).log
    for what in (0, 1):
        for number in range(len(gpu.of(ev.Launch))):
            assert sorted(touched(gpu, number, what)) == sorted(touched(cpu, number, what))
    assert sum(len(touched(gpu, n)) for n in range(len(gpu.of(ev.Launch)))) > 20
    hot = [play(script, tmp_path, mode, analysis="hot").log for mode in ("hot", "trace")]
    lists = [sorted((h.launch, h.block, h.count) for h in log.of(ev.Hot)) for log in hot]
    assert not any("bulk" in line for line in script) or lists[0]
    assert lists[0] == lists[1]
    counted = [play(script, tmp_path, mode, analysis="count").log for mode in ("count", "trace")]
    values = []
    for log in counted:
        values.append([(c.launch, c.global_reads, c.global_atomics, c.bulk_bytes, c.outside)
                       for c in sorted(log.of(ev.Counts), key=lambda c: c.launch)])  # fmt: skip
    assert values[0] == values[1]

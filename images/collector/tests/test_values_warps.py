"""Mode values: whole warps, packed on the GPU, are read back as what each lane did."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from accel_trace.moved import Recorded
from accel_trace.values.accesses import COLUMNS, READ, WRITE, Accesses, ValuesError
from accel_trace.values.raw import FAR, IN_TURN, NEAR, NOTHING, ONE_ADDRESS, RECORD, read
from hypothesis import example, given, settings
from hypothesis import strategies as st
from native_support import START, SYSTEM, Run, launch, play

A, B = 0x7F0000000000, 0x7E0000000000  # pieces of memory, too far apart for four bytes
ROOM = 1 << 16  # bytes of each
SIZES = (1, 2, 4, 8, 16)
PCS = (0x10, 0x7F1234567890)
Row = tuple[int, ...]  # block, thread, pc, address, size, flags, low, high


@dataclass(frozen=True)
class Lane:
    """What one lane does; `value` as bytes."""

    number: int
    pc: int
    address: int
    value: bytes
    told: bool = True  # of a store: with its value
    mask: int | None = None  # of a read: the bytes that are used

    @property
    def words(self) -> tuple[int, int]:
        """The value as two numbers of eight bytes."""
        whole = int.from_bytes(self.value, "little")
        return whole & (1 << 64) - 1, whole >> 64


@dataclass(frozen=True, repr=False)
class Warp:
    """One access of a warp."""

    flags: int
    size: int
    block: int
    first: int
    lanes: tuple[Lane, ...]

    def __repr__(self) -> str:
        """As the scenario has it."""
        words = [f"warp {self.flags} {self.size} {self.block} {self.first}"]
        for one in self.lanes:
            low, high = one.words
            told = f"{high:#x}" if one.told else "-"
            mask = "-" if one.mask is None else f"{one.mask:#x}"
            words.append(f"{one.number} {one.pc:#x} {one.address:#x} {low:#x} {told} {mask}")
        return " ".join(words)

    @property
    def rows(self) -> list[Row]:
        """What is read back of each lane."""
        atomic = self.flags & SYSTEM or self.flags & 3 == READ | WRITE
        rows = []
        for one in self.lanes:
            unknown = atomic or (self.flags == WRITE and not one.told)
            low, high = (0, 0) if unknown else one.words
            flags = READ | WRITE if unknown else self.flags
            thread = self.first + one.number
            rows.append((self.block, thread, one.pc, one.address, self.size, flags, low, high))
        return rows

    @property
    def bytes(self) -> int:
        """What the record of a warp with one pc, mask and way of telling takes."""
        apart = [one.address - self.lanes[0].address for one in self.lanes]
        numbers = [one.number - self.lanes[0].number for one in self.lanes]
        wide = 0
        if apart != [self.size * number for number in numbers] and any(apart):
            wide = 4 if all(-(1 << 31) <= one < 1 << 31 for one in apart) else 8
        rows = self.rows
        values = 0
        if rows[0][5] != READ | WRITE:
            values = 1 if len({row[6:] for row in rows}) == 1 else len(rows)
        units = -(-wide * len(rows) // 8) + -(-values * self.size // 8)
        return RECORD.itemsize + 8 * units


def rows_of(accesses: Accesses) -> list[Row]:
    sites = np.array([int(site, 16) for site in accesses.sites], np.uint64)
    columns = (accesses.block, accesses.thread, sites[accesses.pc], accesses.address, accesses.size,
               accesses.flags, accesses.low, accesses.high)  # fmt: skip
    return [tuple(map(int, row)) for row in zip(*columns, strict=True)]


def by_thread(rows: Sequence[Row]) -> list[Row]:
    """In the order in which each thread did it; that of threads is nobody's."""
    return sorted(rows, key=lambda row: row[:2])


def played(warps: Sequence[Warp], folder: Path, **settings_: object) -> tuple[Run, Accesses]:
    memory = [f"memory {at:#x} {ROOM} 0" for at in (A, B)]
    (start, go) = launch()
    script = [*START, *memory, start, *map(repr, warps), go]
    run = play(script, folder, "values", **settings_)
    return run, read(run.folder, run.log.pid)[0]


def files(run: Run) -> tuple[np.ndarray, int]:
    """The records, and the bytes of the payload."""
    base = f"{run.folder}/values-{run.log.pid}"
    payload = Path(f"{base}.payload")
    size = payload.stat().st_size if payload.is_file() else 0
    return np.fromfile(f"{base}.records", RECORD), size


@st.composite
def warps(draw: st.DrawFn, mixed: bool = True) -> Warp:
    """Any access; `mixed`: lanes may differ in what belongs to a record."""
    size = draw(st.sampled_from(SIZES))
    flags = draw(st.sampled_from([READ, WRITE, READ | WRITE, READ | SYSTEM, WRITE | SYSTEM]))
    numbers = sorted(draw(st.one_of(
        st.just(set(range(32))), st.sets(st.integers(0, 31), min_size=1),
    )))  # fmt: skip
    how = draw(st.sampled_from(["in turn", "one", "stride", "near", "any"]))
    last = ROOM // size - 1
    start = draw(st.integers(0, last - 31 * 7))
    stride = draw(st.integers(2, 7))
    addresses = {}
    for number in numbers:
        index = {"in turn": start + number, "one": start, "stride": start + stride * number}.get(
            how
        )
        if index is None:
            index = draw(st.integers(0, last))
        far = how == "any" and draw(st.booleans())
        addresses[number] = (B if far else A) + size * index
    same = draw(st.booleans())
    half = st.one_of(st.just(bytes(size // 2)), st.binary(min_size=size // 2, max_size=size // 2))
    values = st.tuples(half, half).map(b"".join) if size > 1 else st.binary(min_size=1, max_size=1)
    value = draw(values)
    held: dict[int, bytes] = {}
    lanes = []
    for number in numbers:
        address = addresses[number]
        if flags & WRITE or address not in held:
            held[address] = value if same else draw(values)
        lanes.append(Lane(
            number, draw(st.sampled_from(PCS)) if mixed else PCS[0], address, held[address],
            draw(st.booleans()) if mixed and flags & WRITE else True,
            draw(st.sampled_from([None, (1 << size) - 1, 1])) if mixed and flags == READ else None,
        ))  # fmt: skip
    block, first = draw(st.integers(0, 5)), 32 * draw(st.integers(0, 31))
    return Warp(flags, size, block, first, tuple(lanes))


def warp(addresses: Sequence[int], size: int = 4, flags: int = WRITE, value: int = 0) -> Warp:
    """One of all lanes, lane i with the value i in its last byte, or `value`."""
    return Warp(flags, size, 0, 0, tuple(
        Lane(i, PCS[0], address, (value or i << 8 * size - 8).to_bytes(size, "little"))
        for i, address in enumerate(addresses)
    ))  # fmt: skip


TURN = [A + 4 * i for i in range(32)]


@settings(max_examples=60, deadline=None)
@given(st.lists(warps(), min_size=1, max_size=6))
def test_what_lanes_do_is_read_back(done: list[Warp]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run, accesses = played(done, Path(folder))
        records, _ = files(run)
    assert by_thread(rows_of(accesses)) == by_thread([row for one in done for row in one.rows])
    assert set(accesses.launch.tolist()) == {0}
    assert not accesses.element.any()
    assert np.array_equal(accesses.unit, np.where(accesses.size == 16, 4, accesses.size))
    assert {name: getattr(accesses, name).dtype for name in COLUMNS} == {
        name: np.dtype(kind) for name, kind in COLUMNS.items()
    }
    used = [one.mask is not None and one.mask.bit_count() < warp.size
            for warp in done for one in warp.lanes]  # fmt: skip
    part = records["flags"] & 4 != 0
    assert sum(int(lanes).bit_count() for lanes in records["lanes"][part]) == sum(used)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.lists(warps(), min_size=1, max_size=6))
def test_it_runs_clean_under_the_sanitizers_of_the_compiler(done: list[Warp]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run, accesses = played(done, Path(folder), sanitize="address,undefined")
    assert "runtime error" not in run.stderr
    assert len(accesses) == sum(len(one.lanes) for one in done)


@settings(max_examples=40, deadline=None)
@example([warp(TURN)] * 12, 2)
@given(st.lists(warps(mixed=False), min_size=1, max_size=24), st.sampled_from([2, 4, 8]))
def test_what_finds_no_room_is_lost_from_there_on(done: list[Warp], buffer: int) -> None:
    room, kept, taken = buffer * 768, 0, 0
    while kept < len(done) and taken + done[kept].bytes <= room:
        taken += done[kept].bytes
        kept += 1
    with tempfile.TemporaryDirectory() as folder:
        run, accesses = played(done, Path(folder), buffer=buffer)
        records, payload = files(run) if kept else (np.zeros(0, RECORD), 0)
    assert rows_of(accesses) == [row for one in done[:kept] for row in one.rows]
    assert records.nbytes + payload == taken
    (event,) = run.log.of(Recorded)
    lanes = [len(one.lanes) for one in done]
    assert (event.accesses, event.kept) == (sum(lanes), sum(lanes[:kept]))
    assert run.log.facts()["values_lost"] == str(sum(lanes[kept:]))


@pytest.mark.parametrize(
    ("one", "addresses", "taken"),
    [
        (warp(TURN), IN_TURN, 40 + 128),
        (warp(TURN, value=7), IN_TURN, 40 + 8),
        (warp([A] * 32), ONE_ADDRESS, 40 + 128),
        (warp([A + 8 * i for i in range(32)]), NEAR, 40 + 128 + 128),
        (warp([A + 16 * i for i in range(32)], 16), IN_TURN, 40 + 512),
        (warp([B, *TURN[1:]]), FAR, 40 + 256 + 128),
        (warp(TURN, flags=READ | WRITE), IN_TURN, 40),
        (warp([A]), IN_TURN, 48),
        (warp([A], 16), IN_TURN, 56),
    ],
)
def test_a_record_takes_what_its_lanes_do_not_have_in_common(
    tmp_path: Path, one: Warp, addresses: int, taken: int
) -> None:
    run, accesses = played([one], tmp_path)
    records, payload = files(run)
    assert rows_of(accesses) == one.rows
    assert records["addresses"].tolist() == [addresses]
    assert RECORD.itemsize + payload == taken == one.bytes


def test_only_the_blocks_of_a_sample_are_recorded(tmp_path: Path) -> None:
    """The synthetic machine's grids have three blocks; here it does more of them."""
    done = [Warp(WRITE, 4, block, 32, warp(TURN).lanes) for block in range(7)]
    script = [
        *START,
        f"memory {A:#x} {ROOM} 0",
        launch()[0],
        *map(repr, done),
        "again 2",
    ]
    run = play(script, tmp_path, "values", blocks=3)
    accesses, _ = read(run.folder, run.log.pid)
    assert rows_of(accesses) == [row for i in (0, 3, 6, 1, 4) for row in done[i].rows]
    assert accesses.launch.tolist() == [0] * 96 + [1] * 64


@pytest.mark.parametrize("sanitize", ["", pytest.param("address", marks=pytest.mark.slow)])
def test_large_launches_and_those_behind_them_are_read_back(tmp_path: Path, sanitize: str) -> None:
    """More than is fetched at once, and more than the memory for that holds."""
    counts = (40_000, 500_000, 40_000, 10)  # 48 bytes each
    script = list(START)
    for i, count in enumerate(counts):
        base = A + (i << 24)
        script += [f"memory {base:#x} {4 * count} {i + 1}",
                   *launch(f"global {READ} 4 {base:#x} 4 {count}")]  # fmt: skip
    run = play(script, tmp_path, "values", sanitize=sanitize)
    accesses, _ = read(run.folder, run.log.pid)
    launches = np.repeat(np.arange(len(counts), dtype=np.uint64), counts)
    assert np.array_equal(accesses.launch, launches)
    turns = np.concatenate([np.arange(count, dtype=np.uint64) for count in counts])
    assert np.array_equal(accesses.address, A + (launches << np.uint64(24)) + np.uint64(4) * turns)
    assert np.array_equal(accesses.low, (launches + np.uint64(1)) * np.uint64(0x01010101))


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, int, list[Row]]:
    """The stem of a process' files, the process, and its rows."""
    done = [warp(TURN), warp([A + 8 * i for i in range(32)])]
    run, accesses = played(done, tmp_path)
    return run.folder / f"values-{run.log.pid}", run.log.pid, rows_of(accesses)


def test_a_record_that_is_cut_is_left_out(recorded: tuple[Path, int, list[Row]]) -> None:
    base, pid, rows = recorded
    path = Path(f"{base}.records")
    path.write_bytes(path.read_bytes()[:-1])
    assert rows_of(read(base.parent, pid)[0]) == rows[:32]


@pytest.mark.parametrize("left", [0, 8, 383])
def test_payload_that_is_cut_is_said(recorded: tuple[Path, int, list[Row]], left: int) -> None:
    base, pid, _ = recorded
    path = Path(f"{base}.payload")
    assert path.stat().st_size == 384
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ValuesError, match="payload: is cut; record it again"):
        read(base.parent, pid)


@pytest.mark.parametrize(
    ("name", "value"),
    [("size", 3), ("size", 32), ("flags", 8), ("addresses", FAR + 1), ("values", 3), ("lanes", 0)],
)
def test_records_of_something_else_are_said(
    recorded: tuple[Path, int, list[Row]], name: str, value: int
) -> None:
    base, pid, _ = recorded
    path = Path(f"{base}.records")
    records = np.fromfile(path, RECORD)
    records[name][1] = value
    path.write_bytes(records.tobytes())
    with pytest.raises(ValuesError, match="holds no accesses; record it again"):
        read(base.parent, pid)


def test_values_that_nobody_tells_take_no_payload(tmp_path: Path) -> None:
    lanes = tuple(Lane(i, PCS[0], TURN[i], b"\1\2\3\4", told=i % 2 == 0) for i in range(32))
    run, accesses = played([Warp(WRITE, 4, 2, 64, lanes)], tmp_path)
    records, payload = files(run)
    assert sorted(zip(records["values"].tolist(), map(hex, records["lanes"]), strict=True)) == [
        (NOTHING, "0xaaaaaaaa"), (1, "0x55555555"),
    ]  # fmt: skip
    assert payload == 8
    assert int(accesses.atomics.sum()) == 16

"""The index of live pieces against a naive list, and at every kind of bound."""

from __future__ import annotations

import random

import pytest
from accel_trace.events import Alloc, Free, Sync, TensorAlloc, TensorFree
from accel_trace.objects import TENSOR, MemoryIndex, OwnerHistory, Piece, PieceIndex


def _index(*ranges: tuple[int, int]) -> PieceIndex:
    index = PieceIndex()
    for start, size in ranges:
        assert index.add(Piece(start, size)) == []
    return index


def test_start_and_end_are_checked_and_gaps_belong_to_nothing():
    index = _index((100, 50), (200, 1), (150, 10))
    for address, start in (
        (99, None), (100, 100), (149, 100), (150, 150), (159, 150), (160, None),
        (199, None), (200, 200), (201, None), (0, None), (2**64 - 1, None),
    ):  # fmt: skip
        found = index.find(address)
        assert (found.address if found else None) == start, address
    assert [piece.address for piece in index] == [100, 150, 200]


def test_adjacent_pieces_do_not_replace_each_other():
    index = _index((0, 512), (512, 512), (1024, 512))
    assert index.replaced == 0
    assert index.remove(512) == Piece(512, 512)
    assert index.find(511) == Piece(0, 512)
    assert index.find(512) is None
    assert index.find(1024) == Piece(1024, 512)


@pytest.mark.parametrize(
    ("start", "size", "gone"),
    [(90, 11, [100]), (149, 1, [100]), (120, 5, [100]), (100, 300, [100, 200]), (100, 50, [100]),
     (150, 50, []), (90, 10, []), (0, 1000, [100, 200])],
)  # fmt: skip
def test_an_overlapped_piece_is_replaced_and_counted(start, size, gone):
    index = _index((100, 50), (200, 50))
    assert [piece.address for piece in index.add(Piece(start, size))] == gone
    assert index.replaced == len(gone)
    assert index.find(start) == Piece(start, size)


def test_unknown_frees_and_empty_pieces_are_counted():
    index = _index((100, 50))
    assert index.remove(101) is None
    assert index.remove(100) is not None
    assert index.remove(100) is None
    assert index.unknown_frees == 2
    index.add(Piece(5, 0))
    assert (index.empty, len(index)) == (1, 0)


@pytest.mark.parametrize("seed", range(20))
def test_it_equals_a_naive_list(seed):
    chance = random.Random(seed)
    index = PieceIndex()
    naive: list[Piece] = []
    replaced = unknown = 0
    span = chance.choice([40, 400, 4000])
    for clock in range(400):
        action = chance.random()
        address = chance.randrange(span)
        if action < 0.5:
            piece = Piece(address, chance.randrange(1, 30), born=clock)
            overlapped = [
                old for old in naive if old.address < piece.end and piece.address < old.end
            ]
            replaced += len(overlapped)
            naive = [old for old in naive if old not in overlapped] + [piece]
            assert index.add(piece) == sorted(overlapped, key=lambda old: old.address)
        elif action < 0.75:
            if naive and chance.random() < 0.8:
                address = chance.choice(naive).address
            expected = next((old for old in naive if old.address == address), None)
            unknown += expected is None
            naive = [old for old in naive if old is not expected]
            assert index.remove(address) == expected
        for probe in (address, address - 1, address + 1, chance.randrange(span)):
            holds = [old for old in naive if old.address <= probe < old.end]
            assert index.find(probe) == (holds[0] if holds else None)
        start = chance.randrange(span)
        end = start + chance.randrange(-2, 60)
        expected_overlap = [
            old for old in naive if end > start and old.address < end and start < old.end
        ]
        assert index.overlapping(start, end) == sorted(
            expected_overlap, key=lambda old: old.address
        )
        assert len(index) == len(naive)
    assert (index.replaced, index.unknown_frees) == (replaced, unknown)


def _alloc(address: int, size: int, flags: int = 0, device: int = 0, clock: int = 0) -> Alloc:
    return Alloc(clock=clock, address=address, size=size, device=device, flags=flags, stream=0)


def _tensor(cls: type, address: int, size: int, device: int = 0) -> TensorAlloc | TensorFree:
    return cls(address=address, size=size, allocated=0, reserved=0, device=device, stream=0)


def test_tensors_lie_over_objects_and_an_access_belongs_to_the_tensor():
    memory = MemoryIndex()
    memory.apply(_alloc(1000, 1000))
    memory.apply(_tensor(TensorAlloc, 1000, 512))
    memory.apply(Sync(what=1, stream=0))
    assert memory.resolve(1511).what == TENSOR
    assert memory.resolve(1512) == Piece(1000, 1000)
    assert memory.resolve(2000) is None
    assert memory.apply(_tensor(TensorFree, 1000, 512)) == [Piece(1000, 512, TENSOR)]
    assert memory.resolve(1000) == Piece(1000, 1000)
    assert memory.apply(_tensor(TensorFree, 1000, 512)) == []
    assert memory.tensors.unknown_frees == 1


def test_live_bytes_are_per_device_without_modules_and_pinned_host_memory():
    memory = MemoryIndex()
    memory.apply(_alloc(0x1000, 100))
    memory.apply(_alloc(0x2000, 200, device=1))
    memory.apply(_alloc(0x3000, 400, flags=0x1))  # a module's
    memory.apply(_alloc(0x4000, 800, flags=0x8))  # pinned host memory
    memory.apply(_alloc(0x5000, 1600, flags=0x6))  # managed
    memory.apply(_alloc(0x6000, 3200, flags=0xA))  # managed and pinned
    assert dict(memory.object_bytes) == {0: 100 + 1600 + 3200, 1: 200}
    memory.apply(_alloc(0x1000, 50))  # its free was missed
    assert memory.object_bytes[0] == 50 + 1600 + 3200
    for address in (0x1000, 0x2000, 0x3000, 0x4000, 0x5000, 0x6000):
        memory.apply(Free(address=address, size=0, device=0, flags=0, stream=0))
    assert dict(memory.object_bytes) == {0: 0, 1: 0}


def test_the_owner_of_an_address_at_an_earlier_clock():
    history = OwnerHistory()
    first, second = Piece(0, 10), Piece(0, 20)
    history.note(5, 10, first)
    history.note(5, 20, None)
    history.note(5, 30, second)
    assert [history.at(5, clock) for clock in (9, 10, 19, 20, 29, 30, 99)] == [
        None, first, first, None, None, second, second,
    ]  # fmt: skip
    assert history.at(6, 99) is None

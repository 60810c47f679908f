"""Blocks of the caching allocator: against a model of the allocator, and C++ against Python."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from accel_trace.handlers.blocks import Blocks, Ranges, rounded
from torch_support import COMPILER, PACKAGE

MIB = 1 << 20


@dataclass
class _Block:
    address: int
    size: int
    segment: int
    taken: bool


class _Allocator:
    """PyTorch's rules, written down once more and in another way: a list of blocks a segment.

    Small blocks (up to 1 MiB) come from segments of 2 MiB, others from 20 MiB or, from 10 MiB on,
    from segments of their own in steps of 2 MiB. A remainder is split off from 512 B on in small
    segments, and above 1 MiB in the others.
    """

    def __init__(self) -> None:
        self.blocks: list[_Block] = []
        self.segments: dict[int, tuple[int, bool]] = {}
        self.next = 1 << 40

    def malloc(self, asked: int) -> tuple[list[tuple[str, int, int]], _Block]:
        size = max(512, (asked + 511) // 512 * 512)
        small = size <= MIB
        entries = []
        fitting = [
            b for b in self.blocks
            if not b.taken and b.size >= size and self.segments[b.segment][1] == small
        ]  # fmt: skip
        if fitting:
            block = min(fitting, key=lambda b: (b.size, b.address))
        else:
            step = 2 * MIB
            whole = step if small else 20 * MIB if size < 10 * MIB else -(-size // step) * step
            block = _Block(self.next, whole, self.next, False)
            self.segments[self.next] = (whole, small)
            self.next += whole  # the next segment touches this one
            self.blocks.append(block)
            entries.append(("segment_alloc", block.address, whole))
        rest = block.size - size
        if rest >= 512 if small else rest > MIB:
            self.blocks.append(_Block(block.address + size, rest, block.segment, False))
            block.size = size
        block.taken = True
        entries.append(("alloc", block.address, asked))
        return entries, block

    def free(self, block: _Block) -> list[tuple[str, int, int]]:
        block.taken = False
        entries = [("free_completed", block.address, 0)]
        for other in list(self.blocks):
            if other is block or other.taken or other.segment != block.segment:
                continue
            if other.address + other.size == block.address:
                block.address = other.address
            elif block.address + block.size != other.address:
                continue
            block.size += other.size
            self.blocks.remove(other)
        return entries

    def empty_cache(self) -> Iterator[tuple[str, int, int]]:
        for block in list(self.blocks):
            whole, _ = self.segments[block.segment]
            if not block.taken and block.size == whole:
                self.blocks.remove(block)
                del self.segments[block.segment]
                yield "segment_free", block.address, whole


def _run(seed: int, steps: int = 1500) -> Iterator[tuple[str, int, int, int, int]]:
    """Trace entries of a random program, with the block's size and the bytes handed out."""
    chance = random.Random(seed)
    model = _Allocator()
    taken: list[_Block] = []
    for _ in range(steps):
        if chance.random() < 0.02:
            for action, address, size in model.empty_cache():
                yield action, address, size, size, sum(b.size for b in taken)
        elif taken and chance.random() < 0.48:
            block = taken.pop(chance.randrange(len(taken)))
            address, size = block.address, block.size
            model.free(block)
            yield "free_completed", address, size, size, sum(b.size for b in taken)
        else:
            top = chance.choice([2_000, MIB, 9 * MIB, 60 * MIB])
            entries, block = model.malloc(chance.randrange(1, top))
            for action, address, size in entries[:-1]:
                yield action, address, size, size, sum(b.size for b in taken)
            taken.append(block)
            _, address, asked = entries[-1]
            yield "alloc", address, asked, block.size, sum(b.size for b in taken)


def _feed(blocks: Blocks, action: str, address: int, size: int) -> int:
    if action == "alloc":
        return blocks.take(address, size)
    if action == "free_completed":
        return blocks.give(address)
    if action in ("segment_alloc", "segment_map"):
        blocks.add(address, size, mapped=action == "segment_map")
    else:
        blocks.remove(address, size)
    return size


@pytest.mark.parametrize("seed", range(6))
def test_blocks_have_the_sizes_that_the_allocator_gives_them(seed: int) -> None:
    blocks = Blocks()
    remainders = 0
    for action, address, asked, size, allocated in _run(seed):
        assert _feed(blocks, action, address, asked) == size, (action, address, asked)
        assert blocks.allocated == allocated
        remainders += action == "alloc" and size > rounded(asked)
    assert blocks.surprises == 0
    assert remainders > 10  # the case that makes following the free ranges necessary


def test_a_remainder_of_up_to_a_mebibyte_stays_with_a_large_block() -> None:
    blocks = Blocks()
    blocks.add(0, 4 * MIB)
    assert blocks.take(0, 3 * MIB) == 4 * MIB
    blocks.give(0)
    assert blocks.take(0, 3 * MIB - 512) == 3 * MIB - 512
    assert (blocks.allocated, blocks.reserved, blocks.surprises) == (3 * MIB - 512, 4 * MIB, 0)


def test_expandable_segments_grow_and_split_at_512_bytes() -> None:
    blocks = Blocks()
    blocks.add(0, 2 * MIB, mapped=True)
    blocks.add(2 * MIB, 2 * MIB, mapped=True)  # joins the hole before it
    assert blocks.take(0, 3 * MIB) == 3 * MIB
    blocks.give(0)
    blocks.remove(2 * MIB, 2 * MIB)
    assert blocks.reserved == 2 * MIB
    assert blocks.take(0, 2 * MIB) == 2 * MIB
    assert blocks.surprises == 0


def test_segments_that_touch_are_not_joined() -> None:
    blocks = Blocks()
    blocks.add(0, 2 * MIB)
    blocks.add(2 * MIB, 2 * MIB)
    assert blocks.take(0, 3 * MIB) == 3 * MIB  # no hole is so large
    assert blocks.surprises == 1


def test_lost_entries_are_counted_and_do_not_break_the_totals() -> None:
    blocks = Blocks()
    assert blocks.give(512) == 0
    assert blocks.take(4096, 100) == 512  # no segment is known
    assert blocks.take(4096, 100) == 512  # its free was lost
    assert blocks.allocated == 512
    assert blocks.surprises == 4
    assert blocks.give(4096) == 512
    assert blocks.allocated == 0


def test_ranges_cut_in_the_middle() -> None:
    ranges = Ranges()
    ranges.add(0, 100)
    ranges.add(200, 300)
    ranges.cut(50, 250)
    assert (ranges.starts, ranges.ends) == ([0, 250], [50, 300])
    assert ranges.around(49) == (0, 50)
    assert ranges.around(50) is None


_CHECK = r"""
#include <cstdio>
#include <cstring>
#include "blocks.h"
int main() {
  accel_trace::Blocks blocks;
  char action[32];
  unsigned long address, size;
  while (std::scanf("%31s %lu %lu", action, &address, &size) == 3) {
    unsigned long result = size;
    if (!std::strcmp(action, "alloc")) result = blocks.take(address, size);
    else if (!std::strcmp(action, "free_completed")) result = blocks.give(address);
    else if (!std::strcmp(action, "segment_alloc")) blocks.add(address, size, false);
    else if (!std::strcmp(action, "segment_map")) blocks.add(address, size, true);
    else blocks.remove(address, size);
    std::printf("%lu %lu %lu %lu\n", result, (unsigned long)blocks.allocated,
                (unsigned long)blocks.reserved, (unsigned long)blocks.surprises);
  }
}
"""


def _wild(seed: int) -> Iterator[tuple[str, int, int]]:
    """Entries that no allocator makes: both sides must bear them, and alike."""
    chance = random.Random(seed)
    for _ in range(400):
        action = chance.choice(
            ["alloc", "free_completed", "segment_alloc", "segment_map", "segment_free"]
        )
        yield action, chance.randrange(40) * 2**18, chance.randrange(1, 12) * 2**18


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
def test_cpp_follows_blocks_as_python_does(tmp_path: Path) -> None:
    source = tmp_path / "check.cc"
    source.write_text(_CHECK)
    program = tmp_path / "check"
    subprocess.run(
        [str(COMPILER), "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror",
         "-fsanitize=address,undefined", f"-I{PACKAGE / 'handlers'}", str(source), "-o", program],
        check=True, timeout=180,
    )  # fmt: skip
    streams = [[(a, p, n) for a, p, n, _, _ in _run(seed)] for seed in (11, 12)]
    # Without segments: no driver gives memory that overlaps.
    streams += [[entry for entry in _wild(seed) if "segment" not in entry[0]] for seed in (1, 2)]
    streams.append(list(_mapped(5)))
    for stream in streams:
        said = subprocess.run(
            [program], input="".join(f"{a} {p} {n}\n" for a, p, n in stream), text=True,
            capture_output=True, check=True, timeout=60,
        ).stdout.splitlines()  # fmt: skip
        blocks = Blocks()
        for entry, line in zip(stream, said, strict=True):
            result = _feed(blocks, *entry)
            mine = [result, blocks.allocated, blocks.reserved, blocks.surprises]
            assert line == " ".join(map(str, mine)), entry


def _mapped(seed: int) -> Iterator[tuple[str, int, int]]:
    """An expandable segment: pages of 2 MiB come and go, blocks in between."""
    chance = random.Random(seed)
    pages: set[int] = set()
    live: dict[int, int] = {}
    page = 2 * MIB
    blocks = Blocks()
    for _ in range(600):
        number = chance.randrange(12)
        start = number * page
        busy = any(a < start + page and start < a + n for a, n in live.items())
        if number not in pages:
            pages.add(number)
            entry = ("segment_map", start, page)
        elif not busy and chance.random() < 0.3:
            pages.discard(number)
            entry = ("segment_unmap", start, page)
        elif live and chance.random() < 0.5:
            entry = ("free_completed", chance.choice(list(live)), 0)
        else:
            holes = list(zip(blocks._holes.starts, blocks._holes.ends, strict=True))
            if not holes:
                continue
            low, high = chance.choice(holes)
            entry = ("alloc", low, chance.randrange(1, high - low + 1))
        size = _feed(blocks, *entry)
        if entry[0] == "alloc":
            live[entry[1]] = size
        elif entry[0] == "free_completed":
            del live[entry[1]]
        yield entry
    assert blocks.surprises == 0

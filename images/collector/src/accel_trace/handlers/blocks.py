"""Blocks of PyTorch's caching allocator, followed from its trace: blocks.h in Python.

A trace entry names the bytes that were asked for, not the block's. The paper's tensor is the block
(512 B granularity, a remainder that was not split off included; docs/papers/pasta.md, 3.3), so
the allocator's free ranges are followed and its splitting rule is applied to them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

GRANULE = 512  # bytes; all blocks are multiples of it
SMALL_BLOCK = 1 << 20  # bytes; up to here a block lies in the pool of small blocks


def rounded(size: int) -> int:
    """Bytes of the smallest block for `size` bytes."""
    return max(GRANULE, -(-size // GRANULE) * GRANULE)


class Ranges:
    """Disjoint half-open ranges of addresses, by start."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Put in a range that overlaps none."""
        at = bisect_left(self.starts, start)
        self.starts.insert(at, start)
        self.ends.insert(at, end)

    def starting(self, start: int) -> int | None:
        """End of the range that starts exactly there."""
        at = bisect_left(self.starts, start)
        return self.ends[at] if at < len(self.starts) and self.starts[at] == start else None

    def ending(self, end: int) -> int | None:
        """Start of the range that ends exactly there."""
        at = bisect_left(self.starts, end) - 1
        return self.starts[at] if at >= 0 and self.ends[at] == end else None

    def around(self, address: int) -> tuple[int, int] | None:
        """The range that holds an address."""
        at = bisect_right(self.starts, address) - 1
        if at < 0 or self.ends[at] <= address:
            return None
        return self.starts[at], self.ends[at]

    def pop(self, start: int) -> None:
        """Take out the range that starts exactly there."""
        at = bisect_left(self.starts, start)
        del self.starts[at], self.ends[at]

    def cut(self, start: int, end: int) -> None:
        """Take [start, end) out of all ranges."""
        at = max(bisect_right(self.starts, start) - 1, 0)
        while at < len(self.starts) and self.starts[at] < end:
            low, high = self.starts[at], self.ends[at]
            if high <= start:
                at += 1
                continue
            del self.starts[at], self.ends[at]
            if low < start:
                self.add(low, start)
                at += 1
            if high > end:
                self.add(end, high)
                at += 1


class Blocks:
    """The blocks of one device: `allocated` and `reserved` bytes, and entries that did not fit."""

    def __init__(self) -> None:
        self.allocated = 0
        self.reserved = 0
        self.surprises = 0
        self.live: dict[int, int] = {}
        self._holes = Ranges()
        self._segments = Ranges()
        self._mapped: set[int] = set()  # starts of expandable segments

    def add(self, address: int, size: int, *, mapped: bool = False) -> None:
        """Memory came from the driver; `mapped` for a piece of an expandable segment."""
        if size == 0:
            return
        self.reserved += size
        start, end = address, address + size
        if mapped:  # pieces of one expandable segment that touch are one range
            after = self._segments.starting(end)
            if after is not None and end in self._mapped:
                self._drop_segment(end)
                end = after
            before = self._segments.ending(start)
            if before is not None and before in self._mapped:
                self._drop_segment(before)
                start = before
            self._mapped.add(start)
        self._segments.add(start, end)
        self._release(address, address + size)

    def remove(self, address: int, size: int) -> None:
        """Memory went back to the driver."""
        self.reserved -= min(size, self.reserved)
        end = address + size
        self._holes.cut(address, end)
        whole = self._segments.around(address)
        mapped = whole is not None and whole[0] in self._mapped
        self._segments.cut(address, end)
        if whole is not None and mapped:
            if whole[0] >= address:
                self._mapped.discard(whole[0])
            if whole[1] > end:
                self._mapped.add(end)

    def take(self, address: int, requested: int) -> int:
        """A block was handed out for `requested` bytes; returns the block's size."""
        size = rounded(requested)
        end = self._holes.starting(address)
        if end is None or end - address < size:
            self.surprises += 1  # an allocator setting that is not followed here
            self._holes.cut(address, address + size)
        else:
            rest = end - address - size
            segment = self._segments.around(address)
            mapped = segment is not None and segment[0] in self._mapped
            split = rest >= GRANULE if size <= SMALL_BLOCK or mapped else rest > SMALL_BLOCK
            self._holes.pop(address)
            if split:
                self._holes.add(address + size, end)
            else:
                size += rest
        self.keep(address, size)
        return size

    def keep(self, address: int, size: int) -> None:
        """A block that is handed out, of known size."""
        self._holes.cut(address, address + size)
        lost = self.live.get(address, 0)
        self.surprises += lost > 0  # its free was not seen
        self.live[address] = size
        self.allocated += size - lost

    def give(self, address: int) -> int:
        """A block may be handed out again; returns its size, 0 when it was never seen."""
        size = self.live.pop(address, 0)
        if not size:
            self.surprises += 1
            return 0
        self.allocated -= size
        self._release(address, address + size)
        return size

    def _drop_segment(self, start: int) -> None:
        self._segments.pop(start)
        self._mapped.discard(start)

    def _release(self, start: int, end: int) -> None:
        self._holes.cut(start, end)  # nothing to cut, unless an entry was lost
        segment = self._segments.around(start)
        if segment is not None and segment[1] >= end:
            after = self._holes.starting(end)
            if after is not None and end < segment[1]:
                self._holes.pop(end)
                end = after
            before = self._holes.ending(start)
            if before is not None and before >= segment[0]:
                self._holes.pop(before)
                start = before
        self._holes.add(start, end)

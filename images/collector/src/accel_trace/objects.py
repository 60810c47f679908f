"""The index of live pieces of memory: objects (driver level) and tensors over them.

Every look-up checks both bounds, so an address in a gap belongs to nothing. PASTA's own comparison
looks at starts only and charges a gap to the piece before it (docs/papers/pasta.md, 3.2).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from accel_trace.events import MEMORY_FLAGS, Alloc, Event, Free, TensorAlloc, TensorFree

OBJECT = 0
TENSOR = 1
MODULE = MEMORY_FLAGS["module"]
_MANAGED = MEMORY_FLAGS["managed"]
_PINNED = MEMORY_FLAGS["host_pinned"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One live piece: bytes [address, address + size); `what` as in events.Touched.

    `born` is the logical clock of its allocation.
    """

    address: int
    size: int
    what: int = OBJECT
    flags: int = 0
    device: int = 0
    born: int = 0

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.size

    @property
    def on_gpu(self) -> bool:
        """Whether it counts into a footprint: no module's own memory, no pinned host memory."""
        return not self.flags & MODULE and bool(self.flags & _MANAGED or not self.flags & _PINNED)


class PieceIndex:
    """Live pieces of one kind, which never overlap; sorted by address.

    `replaced` counts pieces that a later one overlapped (their frees were missed), `unknown_frees`
    the frees of addresses at which no piece starts, `empty` allocations of no bytes.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: dict[int, Piece] = {}
        self.replaced = 0
        self.unknown_frees = 0
        self.empty = 0

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Piece]:
        return (self._pieces[start] for start in self._starts)

    def add(self, piece: Piece) -> list[Piece]:
        """Make `piece` live; returns the pieces that it overlaps, which are live no more."""
        if piece.size <= 0:
            self.empty += 1
            return []
        gone = self.overlapping(piece.address, piece.end)
        for old in gone:
            self._take(old.address)
        self.replaced += len(gone)
        self._starts.insert(bisect_left(self._starts, piece.address), piece.address)
        self._pieces[piece.address] = piece
        return gone

    def remove(self, address: int) -> Piece | None:
        """Take out the piece that starts at `address`; None where no piece starts there."""
        if address not in self._pieces:
            self.unknown_frees += 1
            return None
        return self._take(address)

    def find(self, address: int) -> Piece | None:
        """Return the piece that holds the byte at `address`."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        piece = self._pieces[self._starts[at]]
        return piece if address < piece.end else None

    def overlapping(self, start: int, end: int) -> list[Piece]:
        """Return the pieces that share a byte with [start, end), by address."""
        if end <= start:
            return []
        first = max(bisect_right(self._starts, start) - 1, 0)
        last = bisect_left(self._starts, end)
        pieces = (self._pieces[at] for at in self._starts[first:last])
        return [piece for piece in pieces if piece.end > start]

    def _take(self, address: int) -> Piece:
        del self._starts[bisect_left(self._starts, address)]
        return self._pieces.pop(address)


class MemoryIndex:
    """Objects and tensors of one process, kept by `apply`, with bytes live per device.

    Addresses are those of the unified address space, so one index serves all devices.
    """

    def __init__(self) -> None:
        self.objects = PieceIndex()
        self.tensors = PieceIndex()
        self.object_bytes: defaultdict[int, int] = defaultdict(int)  # only pieces `on_gpu`
        self.tensor_bytes: defaultdict[int, int] = defaultdict(int)

    def apply(self, event: Event) -> list[Piece]:
        """Take in an allocation or a free; other events change nothing.

        Returns the pieces that are live no more: the freed one, or those that were replaced.
        """
        if isinstance(event, Alloc):
            piece = Piece(event.address, event.size, OBJECT, event.flags, event.device, event.clock)
            return self._add(self.objects, self.object_bytes, piece)
        if isinstance(event, TensorAlloc):
            piece = Piece(event.address, event.size, TENSOR, 0, event.device, event.clock)
            return self._add(self.tensors, self.tensor_bytes, piece)
        if isinstance(event, Free):
            return self._remove(self.objects, self.object_bytes, event.address)
        if isinstance(event, TensorFree):
            return self._remove(self.tensors, self.tensor_bytes, event.address)
        return []

    def resolve(self, address: int) -> Piece | None:
        """Return what an access to `address` belongs to: the tensor there, else the object."""
        return self.tensors.find(address) or self.objects.find(address)

    def _add(self, index: PieceIndex, live: defaultdict[int, int], piece: Piece) -> list[Piece]:
        gone = index.add(piece)
        for old in gone:
            live[old.device] -= old.size * old.on_gpu
        live[piece.device] += max(piece.size, 0) * piece.on_gpu
        return gone

    def _remove(self, index: PieceIndex, live: defaultdict[int, int], address: int) -> list[Piece]:
        piece = index.remove(address)
        if piece is None:
            return []
        live[piece.device] -= piece.size * piece.on_gpu
        return [piece]


class OwnerHistory:
    """Which object held an address at an earlier clock; for events that come after their launch."""

    def __init__(self) -> None:
        self._clocks: defaultdict[int, list[int]] = defaultdict(list)
        self._owners: defaultdict[int, list[Piece | None]] = defaultdict(list)

    def note(self, address: int, clock: int, owner: Piece | None) -> None:
        """Remember that `owner` held `address` from `clock` on; clocks grow."""
        self._clocks[address].append(clock)
        self._owners[address].append(owner)

    def at(self, address: int, clock: int) -> Piece | None:
        """Return what held `address` at `clock`; None when nothing is known of it."""
        index = bisect_right(self._clocks.get(address, []), clock) - 1
        return self._owners[address][index] if index >= 0 else None

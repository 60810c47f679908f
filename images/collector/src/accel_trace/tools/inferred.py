"""Launches that were not analysed, inferred from an iteration that was (`run --distinct`).

A launch is matched with that at the same place of the iteration that was analysed last: function,
grid, block, and every address among its arguments relative to the piece of memory that it lies in.
It touches the pieces that its arguments name where the other touched those that its arguments
named; pieces that no argument names must be the same. Numbers among the arguments may differ.
Iterations that are analysed again are inferred too, and compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from accel_trace.events import (
    Alloc,
    Argument,
    Event,
    Free,
    Iteration,
    Launch,
    TensorAlloc,
    TensorFree,
    TensorMap,
)
from accel_trace.objects import OBJECT, TENSOR, MemoryIndex, Piece
from accel_trace.session import Process
from accel_trace.tools.launch_sets import LaunchSet, LaunchSets, overlap

_KINDS: tuple[type[Event], ...] = (
    Alloc, Free, TensorAlloc, TensorFree, Launch, TensorMap, Argument, Iteration,
)  # fmt: skip
_OTHER = "memory that no argument names is other memory"
_MAP = 1 << 32  # places of tensor maps, behind those of arguments


@dataclass
class Call:
    """One launch with the pieces that its arguments name, as they were then."""

    launch: Launch
    pieces: dict[int, tuple[Piece, int]] = field(default_factory=dict)  # place to piece, offset

    def name(self, place: int, piece: Piece | None, address: int) -> None:
        """Take in an address among its arguments."""
        if piece is not None:
            self.pieces[place] = (piece, address - piece.address)

    def form(self) -> tuple[object, ...]:
        """Return what launches of one kernel share that do the same."""
        launch = self.launch
        return (
            launch.name, launch.device, launch.grid_x, launch.grid_y, launch.grid_z,
            launch.block_x, launch.block_y, launch.block_z,
        )  # fmt: skip

    def named(self, place: int) -> str:
        """What an argument names, wherever it lies."""
        if place not in self.pieces:
            return "no memory"
        piece, offset = self.pieces[place]
        return (
            f"byte {offset} of {'a tensor' if piece.what == TENSOR else 'memory'} of {piece.size}"
        )

    def unlike(self, other: Call) -> str:
        """Return how it differs from another launch in more than where memory lies; or ""."""
        if self.form() != other.form():
            return "the kernel at its place, its grid or its blocks are others"
        for place in sorted({*self.pieces, *other.pieces}):
            here, there = self.named(place), other.named(place)
            if here != there:
                return f"{place_name(place)} names {here}, and named {there}"
        return ""


def place_name(place: int) -> str:
    """The place of an address among a launch's arguments, in words; both count from 0."""
    if place >= _MAP:
        return f"tensor map {place - _MAP}"
    number, word = divmod(place, 1 << 16)  # as in Argument.place
    return f"argument {number}" + (f", word {word}," if word else "")


@dataclass
class Inferred:
    """What was inferred of one process: rows by launch, and how the checks came out."""

    rows: list[LaunchSet] = field(default_factory=list)
    # Launches of iterations that are as none of the analysed one, by kernel and reason.
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    outside: int = 0  # launches in no iteration, or before the first that was analysed
    checked: int = 0  # launches that were inferred and analysed
    mismatches: int = 0  # of them

    @property
    def unmatched(self) -> int:
        """Launches of iterations that are as none of the analysed one."""
        return self.reasons.total()


def infer(process: Process, sets: LaunchSets) -> Inferred:
    """Return the sets of launches that were not analysed, as far as they can be inferred."""
    reader = _Reader({row.launch.launch: row for row in sets.rows})
    for event in process.events(_KINDS):
        reader.take(event)
    reader.finish()
    return reader.out


class _Reader:
    """Takes events in their order; a launch is looked at when all its arguments are known."""

    def __init__(self, measured: Mapping[int, LaunchSet]) -> None:
        self.out = Inferred()
        self._measured = measured
        self._memory = MemoryIndex()
        self._reference: list[Call] = []  # launches of the iteration that was analysed last
        self._calls: list[Call] = []  # of this one
        self._inside: Iteration | None = None
        self._call: Call | None = None
        self._maps = 0

    def take(self, event: Event) -> None:
        """Take in the next event."""
        if isinstance(event, Argument | TensorMap):
            if self._call is None or self._call.launch.launch != event.launch:
                return
            place = event.place if isinstance(event, Argument) else _MAP + self._maps
            self._maps += isinstance(event, TensorMap)
            self._call.name(place, self._memory.resolve(event.address), event.address)
            return
        self.finish()
        if isinstance(event, Launch):
            self._call, self._maps = Call(event), 0
        elif isinstance(event, Iteration):
            if self._inside is not None and self._inside.analysed:
                self._reference = self._calls
            self._calls = []
            self._inside = event if event.began else None
        else:
            self._memory.apply(event)

    def finish(self) -> None:
        """Look at the last launch, in the memory of its time."""
        call, self._call = self._call, None
        if call is None:
            return
        place = len(self._calls)
        self._calls.append(call)
        if self._inside is None or not self._reference:
            self.out.outside += call.launch.analysed == 0
            return
        row: LaunchSet | str = "the analysed iteration is shorter"
        if place < len(self._reference):
            row = self._row(call, self._reference[place])
        own = self._measured.get(call.launch.launch)
        if call.launch.analysed == 0:
            if isinstance(row, str):
                self.out.reasons[call.launch.name, row] += 1
            else:
                self.out.rows.append(row)
        elif own is not None and not isinstance(row, str):
            self.out.checked += 1
            self.out.mismatches += (row.tensors, row.ws) != (own.tensors, own.ws)

    def _row(self, call: Call, model: Call) -> LaunchSet | str:
        """Return what `call` touches if it does as `model` did, or why that cannot be said."""
        known = self._measured.get(model.launch.launch)
        if known is None:
            return "the analysed one's data is lost"
        if unlike := call.unlike(model):
            return unlike
        moved = {
            (piece.what, piece.address): call.pieces[place][0].address
            for place, (piece, _) in model.pieces.items()
        }
        memory, device = self._memory, call.launch.device
        row = LaunchSet(
            call.launch, memory.object_bytes[device], memory.tensor_bytes[device],
            by_descriptor=known.by_descriptor, undescribed=known.undescribed,
            elsewhere=known.elsewhere, inferred=True,
        )  # fmt: skip
        for address, size in known.tensors.items():
            piece = memory.tensors.find(moved.get((TENSOR, address), address))
            if piece is None or piece.size != size:
                return _OTHER
            row.tensors[piece.address] = size
            for owner in memory.objects.overlapping(piece.address, piece.end):
                row.objects[owner.address] = owner.size
        for address, size in known.objects.items():
            if any(overlap(address, size, *tensor) for tensor in known.tensors.items()):
                continue
            piece = memory.objects.find(moved.get((OBJECT, address), address))
            if piece is None or piece.size != size:
                return _OTHER
            row.objects[piece.address] = size
        return row

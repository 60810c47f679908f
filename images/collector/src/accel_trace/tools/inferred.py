"""Launches that were not analysed, inferred from an iteration that was (`run --distinct`).

A launch is matched with that at the same place of the iteration that was analysed last: function,
grid, block, and every address among its arguments relative to the piece of memory that it lies in.
It touches the pieces that its arguments name where the other touched those that its arguments
named; pieces that no argument names must be the same. Numbers among the arguments may differ, and
so may words that are none: compilers leave parts of a structure unset, and what lay there before
may look like an address. A word is one of those where the analysed launch did not touch what it
named, or where analysed launches of the kernel never touched what it named.
Iterations that are analysed again are inferred too, and compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
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
from accel_trace.objects import OBJECT, TENSOR, MemoryIndex, Piece, PieceIndex
from accel_trace.session import Process
from accel_trace.tools.launch_sets import LaunchSet, LaunchSets, overlap

_KINDS: tuple[type[Event], ...] = (
    Alloc, Free, TensorAlloc, TensorFree, Launch, TensorMap, Argument, Iteration,
)  # fmt: skip
_OTHER = "memory that no argument names is other memory"
_TWO = "its arguments name two pieces of memory where they named one"
_MAP = 1 << 32  # places of tensor maps, behind those of arguments
Moved = dict[tuple[int, int], Piece]  # kind and address of a piece to the one in its place


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

    def unlike(self, model: Call, place: int) -> str:
        """Say what an argument names, and what it named in the launch that was analysed."""
        return f"{place_name(place)} names {self.named(place)}, and named {model.named(place)}"


def place_name(place: int) -> str:
    """The place of an address among a launch's arguments, in words; both count from 0."""
    if place >= _MAP:
        return f"tensor map {place - _MAP}"
    number, word = divmod(place, 1 << 16)  # as in Argument.place
    return f"argument {number}" + (f", word {word}," if word else "")


def _same(index: PieceIndex, address: int, size: int) -> Piece | None:
    """The live piece of these very bytes."""
    piece = index.find(address)
    return piece if piece is not None and (piece.address, piece.size) == (address, size) else None


def touches(row: LaunchSet, piece: Piece) -> bool:
    """Whether a launch touched a tensor, or an object outside of all tensors that it touched."""
    if piece.what == TENSOR:
        return piece.address in row.tensors
    return piece.address in row.objects and not any(
        overlap(piece.address, piece.size, *tensor) for tensor in row.tensors.items()
    )


@dataclass
class Inferred:
    """What was inferred of one process: rows by launch, and how the checks came out.

    Every launch is in one of `rows`, `reasons`, `outside` and `nodes`, where it was not analysed,
    else in one of `checked`, `unchecked` and `first`.
    """

    rows: list[LaunchSet] = field(default_factory=list)
    # Launches of iterations that are as none of the analysed one, by kernel and reason.
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    outside: int = 0  # launches in no iteration, or before the first that was analysed
    nodes: int = 0  # of CUDA graphs, without a result of their own
    partly: set[int] = field(default_factory=set)  # iterations of which launches are left out
    checks: list[LaunchSet] = field(default_factory=list)  # what is inferred of analysed launches
    mismatches: int = 0  # of them
    # Analysed launches that could not be inferred, or whose own result is lost, as `reasons`.
    doubts: Counter[tuple[str, str]] = field(default_factory=Counter)
    first: int = 0  # analysed ones with no analysed iteration before them

    @property
    def unmatched(self) -> int:
        """Launches of iterations that are as none of the analysed one."""
        return self.reasons.total()

    @property
    def checked(self) -> int:
        """Launches that were inferred and analysed."""
        return len(self.checks)

    @property
    def unchecked(self) -> int:
        """Launches that were analysed and could not be compared."""
        return self.doubts.total()


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
        # Places of a kernel's arguments that named memory which an analysed launch of it touched.
        self._used: defaultdict[str, set[int]] = defaultdict(set)
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
                self._learn()
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
        if call.launch.analysed in (3, 4):
            self.out.nodes += 1
            self._left_out()
            return
        if self._inside is None or not self._reference:
            self.out.outside += call.launch.analysed == 0
            self.out.first += call.launch.analysed != 0
            return
        row: LaunchSet | str = "the analysed iteration is shorter"
        if place < len(self._reference):
            row = self._row(call, self._reference[place])
        own = self._measured.get(call.launch.launch)
        if call.launch.analysed == 0:
            if isinstance(row, str):
                self.out.reasons[call.launch.name, row] += 1
                self._left_out()
            else:
                self.out.rows.append(row)
        elif own is None or isinstance(row, str):
            why = row if isinstance(row, str) else "its own data is lost"
            self.out.doubts[call.launch.name, why] += 1
        else:
            self.out.checks.append(row)
            self.out.mismatches += (row.tensors, row.ws) != (own.tensors, own.ws)

    def _left_out(self) -> None:
        if self._inside is not None and not self._inside.analysed and self._reference:
            self.out.partly.add(self._inside.iteration)

    def _learn(self) -> None:
        """Take in which words of the analysed iteration's arguments named what was touched."""
        for call in self._reference:
            known = self._measured.get(call.launch.launch)
            if known is not None:
                self._used[call.launch.name] |= {
                    place for place, (piece, _) in call.pieces.items() if touches(known, piece)
                }

    def _moved(self, call: Call, model: Call, known: LaunchSet) -> Moved | str:
        """Return what `call` names in place of what `model` named and touched, or why not."""
        if call.form() != model.form():
            return "the kernel at its place, its grid or its blocks are others"
        moved: Moved = {}
        absent = []
        for place in sorted({*call.pieces, *model.pieces}):
            if place not in model.pieces:
                if place in self._used[call.launch.name]:
                    return call.unlike(model, place)
                continue
            piece, offset = model.pieces[place]
            if not touches(known, piece):
                continue
            if place not in call.pieces:
                absent.append(place)
                continue
            own, shift = call.pieces[place]
            if (own.what, shift) != (piece.what, offset):
                return call.unlike(model, place)
            if moved.setdefault((piece.what, piece.address), own) != own:
                return _TWO
        for place in absent:
            piece, _ = model.pieces[place]
            if (piece.what, piece.address) not in moved:
                return call.unlike(model, place)
        return moved

    def _row(self, call: Call, model: Call) -> LaunchSet | str:
        """Return what `call` touches if it does as `model` did, or why that cannot be said."""
        known = self._measured.get(model.launch.launch)
        if known is None:
            return "the analysed one's data is lost"
        moved = self._moved(call, model, known)
        if isinstance(moved, str):
            return moved
        memory, device = self._memory, call.launch.device
        row = LaunchSet(
            call.launch, memory.object_bytes[device], memory.tensor_bytes[device],
            by_descriptor=known.by_descriptor, undescribed=known.undescribed,
            elsewhere=known.elsewhere, inferred=True,
        )  # fmt: skip
        for address, size in known.tensors.items():
            piece = moved.get((TENSOR, address)) or _same(memory.tensors, address, size)
            if piece is None:
                return _OTHER
            row.tensors[piece.address] = piece.size
            for owner in memory.objects.overlapping(piece.address, piece.end):
                row.objects[owner.address] = owner.size
        for address, size in known.objects.items():
            if any(overlap(address, size, *tensor) for tensor in known.tensors.items()):
                continue
            piece = moved.get((OBJECT, address)) or _same(memory.objects, address, size)
            if piece is None:
                return _OTHER
            row.objects[piece.address] = piece.size
        return row

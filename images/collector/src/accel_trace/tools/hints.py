"""Inefficiency hints: patterns in the events that often cost time or memory for nothing.

A hint is a place to look at, not a verdict. Every hint says how often, how much, and where.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from accel_trace.events import (
    Alloc,
    Event,
    Free,
    KernelTime,
    Launch,
    Memcpy,
    Memset,
    TensorAlloc,
    TensorFree,
    TensorMap,
    Touched,
)
from accel_trace.objects import MODULE, TENSOR, MemoryIndex, Piece
from accel_trace.session import Process, Session
from accel_trace.tools.base import Needs, Option, Record, Report, Tool, bytes_text
from accel_trace.tools.kernel_frequency import short_name
from accel_trace.unseen import touched_by_map

_HOST_TO_DEVICE = 2
_DIRECTIONS = ("unknown", "HtoH", "HtoD", "DtoH", "DtoD")
_PLACES = 3
_Uses = defaultdict[tuple[int, int], list[int]]  # what and address of a piece to clocks of use


@dataclass
class Hint:
    """One pattern: how often it occurred, bytes or ns it concerns, and where, most first."""

    name: str
    words: str
    count: int = 0
    bytes: int = 0
    ns: int = 0
    places: Counter[str] = field(default_factory=Counter)

    def add(self, place: str, size: int = 0, ns: int = 0) -> None:
        """Count one occurrence."""
        self.count += 1
        self.bytes += size
        self.ns += ns
        self.places[place] += 1

    @property
    def where(self) -> str:
        """The places, most first."""
        shown = [f"{place} ({n}x)" for place, n in self.places.most_common(_PLACES)]
        left = len(self.places) - len(shown)
        return "; ".join(shown) + (f"; and {left} more" if left > 0 else "")


def _place(launch: Launch | None) -> str:
    """Say where in the program something was: region and operator, else the launch before it."""
    if launch is None:
        return "before the first launch"
    names = [name for name in (launch.region, launch.operator) if name]
    return " / ".join(names) if names else f"after {short_name(launch.name)}"


def tiny_grids(process: Process, blocks: int) -> Hint:
    """Launches of fewer than `blocks` blocks, which leave most of a GPU idle."""
    hint = Hint("tiny_grids", f"launches of fewer than {blocks} blocks")
    times: dict[int, int] = {}
    for event in process.events([KernelTime]):
        assert isinstance(event, KernelTime)
        times[event.launch] = event.end_ns - event.start_ns
    for event in process.events([Launch]):
        assert isinstance(event, Launch)
        if event.grid_x * event.grid_y * event.grid_z < blocks:
            hint.add(short_name(event.name), ns=times.get(event.launch, 0))
    return hint


def repeated_copies(process: Process, repeats: int) -> Hint:
    """Copies from the host of the same size, from and to the same address, all but the first.

    Only those made at least `repeats` times. What was copied is not looked at: it may have changed.
    """
    hint = Hint(
        "repeated_copies",
        f"copies to the GPU of the same bytes' place to the same place, {repeats} times or more",
    )
    copies: Counter[tuple[int, int, int]] = Counter()
    for event in process.events([Memcpy]):
        if isinstance(event, Memcpy) and event.direction == _HOST_TO_DEVICE:
            copies[event.source, event.destination, event.size] += 1
    for (_, destination, size), count in copies.items():
        if count >= repeats:
            for _ in range(count - 1):
                hint.add(f"{bytes_text(size)} to {destination:#x}", size)
    return hint


def redundant_memsets(process: Process) -> Hint:
    """Memsets of a range that still has that value: no launch and no copy into it since."""
    hint = Hint("redundant_memsets", "memsets of what had just been set to the same value")
    fresh: dict[tuple[int, int], tuple[int, int]] = {}  # range to (value, element)
    last: Launch | None = None
    for event in process.events((Memset, Memcpy, Launch, Alloc, Free)):
        if isinstance(event, Launch):
            fresh.clear()  # a kernel may write anywhere
            last = event
        elif isinstance(event, Memset):
            bounds = (event.address, event.address + event.size)
            if fresh.get(bounds) == (event.value, event.element):
                hint.add(_place(last), event.size)
            _forget(fresh, *bounds)
            fresh[bounds] = (event.value, event.element)
        elif isinstance(event, Memcpy):
            _forget(fresh, event.destination, event.destination + event.size)
        elif isinstance(event, Alloc | Free):
            _forget(fresh, event.address, event.address + event.size)
    return hint


def _forget(ranges: dict[tuple[int, int], tuple[int, int]], start: int, end: int) -> None:
    for low, high in [bounds for bounds in ranges if bounds[0] < end and start < bounds[1]]:
        del ranges[low, high]


def synchronous_copies(process: Process, repeats: int) -> Hint:
    """Synchronous copies of one direction and size, `repeats` times or more at one place."""
    hint = Hint("synchronous_copies", f"synchronous copies in a loop, {repeats} times or more")
    found: defaultdict[tuple[str, int, int], int] = defaultdict(int)
    last: Launch | None = None
    for event in process.events((Memcpy, Launch)):
        if isinstance(event, Launch):
            last = event
        elif isinstance(event, Memcpy) and not event.asynchronous:
            found[_place(last), event.direction, event.size] += 1
    for (place, direction, size), count in found.items():
        if count >= repeats:
            name = _DIRECTIONS[direction] if direction < len(_DIRECTIONS) else "unknown"
            for _ in range(count):
                hint.add(f"{name} {bytes_text(size)}, {place}", size)
    return hint


def untouched_pieces(process: Process, least: int) -> Hint:
    """Pieces of at least `least` bytes that no kernel, copy or memset touched while allocated.

    An object counts as touched when a tensor in it is, and a tensor with its object's copies.
    """
    hint = Hint("untouched_pieces", f"pieces of {bytes_text(least)} or more, never touched")
    clocks: dict[int, int] = {}
    lives: list[tuple[Piece, int]] = []  # with the clock of the end
    uses: _Uses = defaultdict(list)
    memory = MemoryIndex()
    touched: list[Touched] = []
    kinds: tuple[type[Event], ...] = (
        Alloc, Free, TensorAlloc, TensorFree, Launch, Touched, Memcpy, Memset,
        TensorMap,
    )  # fmt: skip
    owners: dict[tuple[int, int], int] = {}  # tensor's address and birth to its object's address
    clock = 0
    for event in process.events(kinds):
        clock = event.clock
        if isinstance(event, Launch):
            clocks[event.launch] = clock
        elif isinstance(event, Touched | TensorMap):
            touched += [event] if isinstance(event, Touched) else touched_by_map(event, memory)
        elif isinstance(event, Memcpy | Memset):
            starts = [event.address] if isinstance(event, Memset) else [
                event.source, event.destination
            ]  # fmt: skip
            for start in starts:
                for index in (memory.objects, memory.tensors):
                    for piece in index.overlapping(start, start + event.size):
                        uses[piece.what, piece.address].append(clock)
        else:
            lives += [(piece, clock) for piece in memory.apply(event)]
            if isinstance(event, TensorAlloc):
                owner = memory.objects.find(event.address)
                if owner is not None:
                    owners[event.address, clock] = owner.address
    lives += [(piece, clock + 1) for index in (memory.objects, memory.tensors) for piece in index]
    for event in touched:
        if event.launch in clocks:
            uses[event.what, event.address].append(clocks[event.launch])
    _report_unused(hint, lives, uses, owners, least)
    return hint


def _report_unused(
    hint: Hint,
    lives: Sequence[tuple[Piece, int]],
    uses: _Uses,
    owners: dict[tuple[int, int], int],
    least: int,
) -> None:
    for clocks in uses.values():
        clocks.sort()
    busy: defaultdict[int, list[int]] = defaultdict(list)  # object's address to births in it
    for piece, end in lives:
        if piece.what == TENSOR and _between(uses.get((TENSOR, piece.address)), piece.born, end):
            owner = owners.get((piece.address, piece.born))
            if owner is not None:
                busy[owner].append(piece.born)
    for births in busy.values():
        births.sort()
    for piece, end in lives:
        if piece.size < least or piece.flags & MODULE:
            continue
        if _between(uses.get((piece.what, piece.address)), piece.born, end):
            continue
        if piece.what == TENSOR:
            hint.add(f"tensors of {bytes_text(piece.size)}", piece.size)
        elif not _between(busy.get(piece.address), piece.born, end):
            hint.add(f"objects of {bytes_text(piece.size)}", piece.size)


def _between(clocks: list[int] | None, after: int, before: int) -> bool:
    """Whether one of the sorted `clocks` lies between the two."""
    if not clocks:
        return False
    at = bisect_right(clocks, after)
    return at < len(clocks) and clocks[at] < before


class Hints(Tool):
    """Patterns that often cost time or memory for nothing, with count, size and place."""

    name = "hints"
    help = "tiny grids, repeated copies, redundant memsets, memory never touched, copies in a loop"
    needs = Needs(mode="touch", handlers=("sanitizer", "torch"))
    options = (
        Option("blocks", 8, "a grid of fewer blocks is tiny"),
        Option("repeats", 3, "copies of one place that often are repeated"),
        Option("loop", 10, "synchronous copies that often are a loop"),
        Option("least", 1 << 20, "bytes of a piece that is worth a hint"),
    )

    def run(self, session: Session) -> Report:
        blocks, repeats, loop, least = (
            int(self.number(name)) for name in ("blocks", "repeats", "loop", "least")
        )
        finders: list[Callable[[Process], Hint]] = [
            lambda process: tiny_grids(process, blocks),
            lambda process: repeated_copies(process, repeats),
            redundant_memsets,
            lambda process: synchronous_copies(process, loop),
        ]
        records: list[Record] = []
        lines: list[str] = []
        for process in session.processes:
            coverage = process.coverage
            found = [finder(process) for finder in finders]
            whole = not (coverage.filtered or coverage.damage or coverage.dropped_events)
            if whole and coverage.launches and process.analysis == "touch":
                found.append(untouched_pieces(process, least))
            else:
                lines.append(
                    f"process {process.label}: memory that is never touched is not looked for, "
                    "since not every launch was analysed for what it touches"
                )
            for hint in found:
                labels = {"process": process.label, "hint": hint.name}
                records.append(Record("hints", "times", (hint.count,), labels, note=hint.where))
                records.append(Record("hint_bytes", "B", (hint.bytes,), labels))
                size = f", {bytes_text(hint.bytes)}" if hint.bytes else ""
                time = f", {hint.ns / 1e6:.3f} ms on the GPU" if hint.ns else ""
                lines.append(
                    f"process {process.label}: {hint.count} {hint.words}{size}{time}"
                    + (f": {hint.where}" if hint.count else "")
                )
        return Report(tuple(records), "\n".join(lines))

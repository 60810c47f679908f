"""uvm_advisor: which managed objects and tensors each outermost operator touches, as advice.

Objects are driver-level managed allocations, tensors the framework's blocks inside of them; both
above 1 MiB, numbered by appearance. A group is an outermost operator; what its launches touched and
was there before it is what a replay prefetches. The artifact keeps only the last kernel's list per
group (docs/papers/pasta.md, 4.2 item 10); this is the union over all of its kernels.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from accel_trace.events import (
    MEMORY_FLAGS,
    Alloc,
    Event,
    Free,
    Launch,
    OperatorEnd,
    OperatorStart,
    RegionEnd,
    RegionStart,
    TensorAlloc,
    TensorFree,
    TensorMap,
    Touched,
)
from accel_trace.objects import OBJECT, TENSOR, MemoryIndex, OwnerHistory, Piece, PieceIndex
from accel_trace.session import Process, Session
from accel_trace.tools.base import Needs, Option, Record, Report, Tool, bytes_text, need, write_file
from accel_trace.unseen import touched_by_map
from accel_trace.uvm.advice import REGION, THRESHOLD, Advice, Group

_KINDS: tuple[type[Event], ...] = (
    Alloc, Free, TensorAlloc, TensorFree, OperatorStart, OperatorEnd, RegionStart, RegionEnd,
    Launch, TensorMap, Touched,
)  # fmt: skip


class Numbers:
    """Pieces of one kind by number, and which number an address had at which clock."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.born: list[int] = []  # clocks
        self._live: dict[int, int] = {}
        self._clocks: dict[int, list[int]] = {}
        self._numbers: dict[int, list[int]] = {}

    def begin(self, address: int, size: int, clock: int) -> None:
        """Give the next number to a piece."""
        number = len(self.sizes)
        self.sizes.append(size)
        self.born.append(clock)
        self._live[address] = number
        self._note(address, clock, number)

    def end(self, address: int, clock: int) -> None:
        """A piece is gone; one without a number changes nothing."""
        if self._live.pop(address, None) is not None:
            self._note(address, clock, -1)

    def at(self, address: int, clock: int) -> int | None:
        """The number that was alive at an address at a clock."""
        found = bisect_right(self._clocks.get(address, ()), clock) - 1
        number = self._numbers[address][found] if found >= 0 else -1
        return None if number < 0 else number

    def _note(self, address: int, clock: int, number: int) -> None:
        self._clocks.setdefault(address, []).append(clock)
        self._numbers.setdefault(address, []).append(number)


@dataclass
class OpenGroup:
    """A group as it is collected."""

    operator: str
    start: int  # clock
    objects: set[int] = field(default_factory=set)
    tensors: set[int] = field(default_factory=set)


class Advisor:
    """Takes events in their order; `advice` is the result. Counts what belongs to no group."""

    def __init__(self, *, threshold: int = THRESHOLD, region: str = "") -> None:
        """With `region`, only operators that start inside of it are groups."""
        self.threshold = threshold
        self.region = region
        self.outside = 0  # analysed launches in no group
        self.objects = Numbers()
        self.tensors = Numbers()
        self.groups: list[OpenGroup] = []
        self._live = MemoryIndex()
        self._managed = PieceIndex()
        self._holders = OwnerHistory()  # objects of tensors of any size
        self._open: dict[int, tuple[int, int]] = {}  # by thread: operator's index, its group
        self._inside = 0
        self._launches: dict[int, tuple[int, int]] = {}  # clock and group

    def take(self, event: Event) -> None:
        """Take in the next event."""
        if isinstance(event, Alloc | Free | TensorAlloc | TensorFree):
            self._live.apply(event)
            self._memory(event)
        elif isinstance(event, RegionStart | RegionEnd):
            if event.name == self.region:
                self._inside += 1 if isinstance(event, RegionStart) else -1
        elif isinstance(event, OperatorStart):
            if event.thread not in self._open:
                self._open[event.thread] = (event.index, self._group(event))
        elif isinstance(event, OperatorEnd):
            if self._open.get(event.thread, (-1, -1))[0] == event.index:
                del self._open[event.thread]
        elif isinstance(event, Launch):
            self._launch(event)
        elif isinstance(event, TensorMap):
            for piece in touched_by_map(event, self._live):
                self._touched(piece)
        elif isinstance(event, Touched):
            self._touched(event)

    def advice(self) -> Advice:
        """What was found so far."""
        groups = tuple(
            Group(group.operator, tuple(sorted(group.objects)), tuple(sorted(group.tensors)))
            for group in self.groups
        )
        sizes = tuple(self.objects.sizes), tuple(self.tensors.sizes)
        return Advice(*sizes, groups, self.threshold, self.region or REGION)

    def _memory(self, event: Alloc | Free | TensorAlloc | TensorFree) -> None:
        if isinstance(event, Alloc):
            if event.flags & MEMORY_FLAGS["managed"]:
                self._managed.add(Piece(event.address, event.size, OBJECT, event.flags))
                if event.size > self.threshold:
                    self.objects.begin(event.address, event.size, event.clock)
        elif isinstance(event, Free):
            self._managed.remove(event.address)
            self.objects.end(event.address, event.clock)
        elif isinstance(event, TensorAlloc):
            holder = self._managed.find(event.address)
            self._holders.note(event.address, event.clock, holder)
            if event.size > self.threshold and holder is not None:
                self.tensors.begin(event.address, event.size, event.clock)
        else:
            self.tensors.end(event.address, event.clock)

    def _group(self, event: OperatorStart) -> int:
        if self.region and self._inside <= 0:
            return -1
        self.groups.append(OpenGroup(event.name, event.clock))
        return len(self.groups) - 1

    def _launch(self, event: Launch) -> None:
        if event.analysed not in (1, 2):
            return
        _, group = self._open.get(event.thread, (-1, -1))
        if group < 0:
            self.outside += 1
        else:
            self._launches[event.launch] = (event.clock, group)

    def _touched(self, event: Touched) -> None:
        found = self._launches.get(event.launch)
        if found is None:
            return
        clock, number = found
        group = self.groups[number]
        address = event.address
        if event.what == TENSOR:
            self._add(group.tensors, self.tensors, address, clock, group.start)
            holder = self._holders.at(address, clock)  # its object is touched as well
            if holder is None:
                return
            address = holder.address
        self._add(group.objects, self.objects, address, clock, group.start)

    @staticmethod
    def _add(into: set[int], pieces: Numbers, address: int, clock: int, start: int) -> None:
        number = pieces.at(address, clock)
        if number is not None and pieces.born[number] < start:
            into.add(number)


def advise(events: Iterable[Event], *, threshold: int = THRESHOLD, region: str = "") -> Advice:
    """The advice of a stream of events."""
    advisor = Advisor(threshold=threshold, region=region)
    for event in events:
        advisor.take(event)
    return advisor.advice()


class UvmAdvisor(Tool):
    """Writes `advice.json` for uvm/replay.py."""

    name = "uvm_advisor"
    help = "what each outermost operator touches in managed memory, as advice for prefetching"
    needs = Needs(mode="touch", handlers=("sanitizer", "torch", "operators"))
    options = (
        Option("threshold", THRESHOLD, "bytes; pieces up to this size are left out"),
        Option("region", REGION, "count operators inside of this region; the whole program where "
               "it has no such region"),
    )  # fmt: skip

    def run(self, session: Session) -> Report:
        records: list[Record] = []
        lines: list[str] = []
        files = []
        alone = len(session.processes) == 1
        for process in session.processes:
            need(process, "touch")
            region = self.word("region")
            advisor = Advisor(
                threshold=int(self.number("threshold")),
                region=region if _has(process, region) else "",
            )
            for event in process.events(_KINDS):
                advisor.take(event)
            advice = advisor.advice()
            path = self.out / ("advice.json" if alone else f"advice-{process.label}.json")
            files.append(write_file(path, advice.save))
            labels = {"process": process.label}
            for metric, value in (
                ("groups", len(advice.groups)),
                ("objects", len(advice.objects)),
                ("tensors", len(advice.tensors)),
                ("launches_outside", advisor.outside),
            ):
                records.append(Record(metric, "count", (float(value),), labels))
            asked = {policy: advice.asked(policy) for policy in ("object", "tensor")}
            for policy, size in asked.items():
                records.append(Record("asked", "B", (float(size),), labels | {"policy": policy}))
            lines += [
                f"process {process.label}: {len(advice.groups)} outermost operators, "
                f"{len(advice.objects)} managed objects and {len(advice.tensors)} tensors above "
                f"{bytes_text(advice.threshold)}; {advisor.outside} launches in no operator",
                f"  prefetching objects asks for {bytes_text(asked['object'])}, "
                f"tensors for {bytes_text(asked['tensor'])}: {path.name}",
            ]
            if not advice.objects:
                lines.append(
                    "  no managed memory was seen: run the program in "
                    "accel_trace.uvm.managed.managed_pool()"
                )
        return Report(tuple(records), "\n".join(lines), tuple(files))


def _has(process: Process, region: str) -> bool:
    events = process.events((RegionStart,))
    return any(isinstance(event, RegionStart) and event.name == region for event in events)

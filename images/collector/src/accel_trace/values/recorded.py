"""A recorded process replayed: effects on memory and patterns, from its log and its values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from accel_trace.events import (
    MEMORY_FLAGS,
    Alloc,
    Event,
    Free,
    Launch,
    Memcpy,
    Memset,
    RegionEnd,
    RegionStart,
)
from accel_trace.moved import Recorded
from accel_trace.session import Process
from accel_trace.unpatched import USES, Uses
from accel_trace.values import raw
from accel_trace.values.accesses import Accesses, Contents
from accel_trace.values.elements import CODES, Element, candidates
from accel_trace.values.findings import LEAST, Finding, merged, narrowed
from accel_trace.values.items import Items, collect
from accel_trace.values.names import kernel_name
from accel_trace.values.patterns import Pattern, patterns_of
from accel_trace.values.shadow import READS_UNSEEN, SEEN, WRITES_UNSEEN, Shadow, Thing
from accel_trace.values.told import HINT, tell

TO_DEVICE, TO_HOST, ON_DEVICE = 2, 3, 4  # Memcpy.direction
ITEMS = 16  # elements below which no pattern is looked for
_KINDS: tuple[type[Event], ...] = (
    Alloc, Free, Memcpy, Memset, Launch, RegionStart, RegionEnd,
)  # fmt: skip
_READ, _WRITE = "read", "write"
OBJECT = "object"
_SHARED = MEMORY_FLAGS["managed"] | MEMORY_FLAGS["host_mapped"] | MEMORY_FLAGS["host_pinned"]
_WRITES = USES["tensor map stores"] | USES["tensor map reductions"] | USES["surface accesses"]


@dataclass(frozen=True, eq=False)
class View:
    """What one kernel context read or wrote of one object, as elements of one type."""

    context: str
    thing: Thing
    direction: str
    items: Items
    patterns: tuple[Pattern, ...]
    bytes: int
    source: str  # who told the type: record, opcode, hint, object (its other accesses); "" nobody

    @property
    def known(self) -> bool:
        """Whether anybody told the type; else it was tried."""
        return bool(self.source)

    @property
    def place(self) -> str:
        """The kernel and what it did."""
        return f"{self.context}, {self.direction}"


@dataclass
class Replay:
    """Everything that was found in one process."""

    shadow: Shadow = field(default_factory=Shadow)
    views: list[View] = field(default_factory=list)
    moved: dict[str, int] = field(default_factory=dict)  # bytes by kernel context
    accesses: int = 0
    atomics: int = 0  # whose values nobody tells
    unseen: int = 0  # launches that were not analysed
    partly: int = 0  # launches of which some writes were not recorded
    blocks: int = 1  # one in so many was recorded
    uncompared: int = 0  # mode copies: copies and fills that were not compared


def has_values(process: Process) -> bool:
    """Whether values lie beside the process' log."""
    return raw.recorded(process.readers[0].path.parent, process.pid)


def values_of(process: Process) -> tuple[Accesses, Contents]:
    """A process' values as they were recorded. Raises ValuesError for files that are not whole."""
    return raw.read(process.readers[0].path.parent, process.pid)


def replay(process: Process, values: tuple[Accesses, Contents] | None = None) -> Replay:
    """Replay a process, by its `values` where they were read already, with types as they have them.

    Raises ValuesError.
    """
    if values is None:
        accesses, contents = values_of(process)
        accesses = tell(process, accesses)[0]
    else:
        accesses, contents = values
    found = Replay(accesses=len(accesses), atomics=int(accesses.atomics.sum()))
    order = np.argsort(accesses.launch, kind="stable")
    accesses = accesses.take(order)
    bounds = np.searchsorted(accesses.launch, np.arange(int(accesses.launch.max(initial=0)) + 2))
    groups: dict[tuple[str, Thing], list[Accesses]] = {}
    gaps = _Gaps(process)
    found.blocks = gaps.blocks
    for event, context, number in calls(process):
        apply(found.shadow, event, context, contents, number)
        if isinstance(event, Launch):
            if event.launch + 1 < len(bounds):
                mine = accesses.take(np.arange(bounds[event.launch], bounds[event.launch + 1]))
            else:
                mine = accesses.take(np.arange(0))
            lacks = gaps.of(event)
            found.unseen += event.analysed != 1
            found.partly += event.analysed == 1 and lacks == WRITES_UNSEEN
            found.shadow.kernel(mine, context, lacks)
            found.moved[context] = found.moved.get(context, 0) + int(mine.size.sum())
            for thing, part in _by_thing(mine, found.shadow):
                groups.setdefault((context, thing), []).append(part)
    for (context, thing), parts in groups.items():
        found.views += _views(context, thing, _lent(_joined(parts)).split())
    return found


class _Gaps:
    """What the record of each launch lacks; a replay's lacks nothing."""

    def __init__(self, process: Process) -> None:
        self._whole = process.facts.get("mode") != "values"
        self._recorded: dict[int, Recorded] = {}
        self._uses: dict[int, int] = {}
        for event in process.events((Recorded, Uses)):
            if isinstance(event, Recorded):
                self._recorded[event.launch] = event
            elif isinstance(event, Uses):
                self._uses[event.launch] = event.what
        self.blocks = max((one.blocks for one in self._recorded.values()), default=1)

    def of(self, launch: Launch) -> int:
        """SEEN, READS_UNSEEN or WRITES_UNSEEN."""
        if self._whole:
            return SEEN
        one, uses = self._recorded.get(launch.launch), self._uses.get(launch.launch, 0)
        if one is None or one.kept < one.accesses or one.blocks > 1 or one.writes or uses & _WRITES:
            return WRITES_UNSEEN
        return READS_UNSEEN if one.reads or uses else SEEN


def calls(process: Process, *more: type[Event]) -> Iterator[tuple[Event, str, int]]:
    """Events with their calling context, and the number of a copy among the copies."""
    regions: list[str] = []
    last, copies = "", 0
    for event in process.events((*_KINDS, *more)):
        if isinstance(event, RegionStart):
            regions.append(event.name)
        elif isinstance(event, RegionEnd):
            regions = regions[:-1]
        elif isinstance(event, Launch):
            last = kernel_name(event.name)
            where = event.operator or event.region
            yield event, f"{last} in {where}" if where else last, 0
        else:
            yield event, regions[-1] if regions else f"after {last or 'the start'}", copies
            copies += isinstance(event, Memcpy)


def apply(shadow: Shadow, event: Event, context: str, contents: Contents, number: int) -> None:
    """What an event that is no launch did to memory; `number` of a copy among the copies."""
    if isinstance(event, Alloc):
        shadow.alloc(event.address, event.size, context, bool(event.flags & _SHARED))
    elif isinstance(event, Free):
        shadow.free(event.address)
    elif isinstance(event, Memset):
        pattern = event.value.to_bytes(8, "little")[: event.element]
        shadow.fill(event.address, pattern, event.size, context)
    elif isinstance(event, Memcpy):
        data = contents.of(number)
        if event.direction == TO_HOST:
            shadow.download(event.source, data, context)
        elif event.direction == ON_DEVICE:
            shadow.copy(event.destination, event.source, event.size, context)
        elif event.direction == TO_DEVICE and len(data) == event.size:
            shadow.upload(event.destination, data, context)
        else:  # what it wrote was not kept
            shadow.lose(event.destination, event.size)


def _by_thing(accesses: Accesses, shadow: Shadow) -> Iterator[tuple[Thing, Accesses]]:
    for thing in shadow.things():
        start = np.uint64(thing.address)
        mine = (accesses.address >= start) & (accesses.address < start + np.uint64(thing.size))
        if mine.any():
            yield thing, accesses.take(mine)


def _joined(parts: list[Accesses]) -> Accesses:
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in Accesses.__dataclass_fields__
        if name not in ("sites", "sources")
    }
    return Accesses(**columns, sites=parts[0].sites, sources=parts[0].sources)


def _lent(accesses: Accesses) -> Accesses:
    """Accesses of no told type get that of the kernel's others to the object, where it is one."""
    blank = accesses.element == 0
    element, unit = accesses.element.copy(), accesses.unit.copy()
    told = np.unique(element[~blank])
    if not blank.any() or len(told) != 1:
        return accesses
    size = CODES[told[0]].size
    fits = blank & (accesses.size % size == 0)
    element[fits], unit[fits] = told[0], size
    return replace(accesses, element=element, unit=unit)


def _views(context: str, thing: Thing, accesses: Accesses) -> Iterator[View]:
    """One view for each direction and type; of an unknown type the candidate that says more."""
    for direction, chosen in ((_READ, accesses.reads), (_WRITE, accesses.writes)):
        mine = accesses.take(chosen)
        kinds = np.unique(np.stack([mine.element, mine.size]), axis=1).T if len(mine) else ()
        for code, size in kinds:
            part = mine.take((mine.element == code) & (mine.size == size))
            tried = [
                _view(context, thing, direction, part, element, _source(part) if code else "")
                for element in candidates(int(code), int(size))
                if ((part.address - np.uint64(thing.address)) % np.uint64(element.size) == 0).all()
            ]
            yield from sorted(tried, key=lambda view: -len(view.patterns))[:1]


def _source(part: Accesses) -> str:
    told = [part.sources[pc] for pc in np.unique(part.pc)] if part.sources else []
    return next((source for source in told if source), OBJECT)


def _view(
    context: str, thing: Thing, direction: str, part: Accesses, element: Element, source: str
) -> View:
    items = collect(part, thing.address, element)
    patterns = tuple(patterns_of(items)) if len(items) >= ITEMS else ()
    return View(context, thing, direction, items, patterns, int(part.size.sum()), source)


def fine(found: Replay, least: int = LEAST) -> list[Finding]:
    """The patterns of values as findings: what a kernel could spare of what it moves."""
    findings = []
    for view in found.views:
        for pattern in view.patterns:
            stake, work = view.bytes, 1.0
            if pattern.name == "heavy_type":
                stake, work = narrowed(float(pattern.numbers["ratio"]), view.bytes), 0.0
            elif pattern.name == "structured":
                work = 0.0
            elif pattern.name == "frequent_values":
                work = float(pattern.numbers["top_share"])
                stake = int(view.bytes * work)
            if view.bytes >= least:
                as_ = f"taken as {view.items.element.words}"
                kind = {
                    "": f"{as_}: ", HINT: f"{as_} by the hint: ",
                    OBJECT: f"{as_}, as the object's others: ",
                }.get(view.source, "")  # fmt: skip
                findings.append(
                    Finding(
                        pattern.name, view.place, view.thing.context, stake,
                        found.moved[view.context], 1, kind + pattern.text, work,
                    )
                )  # fmt: skip
    return merged(findings)


def element_name(code: int) -> str:
    """The name of a record's type, for tables."""
    element = CODES[code]
    return element.name if element else "unknown"

"""What each launch touched, and what was allocated then: the rows behind working sets."""

from __future__ import annotations

from dataclasses import dataclass, field

from accel_trace.events import (
    Alloc,
    Event,
    Free,
    Launch,
    Nothing,
    TensorAlloc,
    TensorFree,
    TensorMap,
    Touched,
)
from accel_trace.objects import MODULE, OBJECT, MemoryIndex, OwnerHistory
from accel_trace.session import Process
from accel_trace.tools.base import need
from accel_trace.unseen import touched_by_map

_KINDS: tuple[type[Event], ...] = (
    Alloc, Free, TensorAlloc, TensorFree, Launch, TensorMap, Touched,
    Nothing,
)  # fmt: skip


@dataclass(slots=True)
class LaunchSet:
    """One launch; all sizes in bytes, `tensors` and `objects` by address.

    `footprint` and `tensor_footprint` are what the launch's device had allocated at the launch.
    """

    launch: Launch
    footprint: int
    tensor_footprint: int
    tensors: dict[int, int] = field(default_factory=dict)
    objects: dict[int, int] = field(default_factory=dict)  # touched in a tensor, or outside of all
    elsewhere: bool = False  # it also accessed memory that nobody allocated, as far as known
    bound: int = 0  # variant args: what its operator's arguments hold
    by_descriptor: str = ""  # how its tensor maps' tensors are used: read, or read or written
    undescribed: bool = False  # it copies by tensor maps of which none was found
    inferred: bool = False  # from another launch (`inferred`), not analysed
    nodes: int = 0  # of a CUDA graph that this row stands for, from the launch on; 0: no graph

    @property
    def ws_tensor(self) -> int:
        """Bytes of the tensors of which a byte was touched."""
        return sum(self.tensors.values())

    @property
    def ws_object(self) -> int:
        """Bytes of the driver-level allocations of which a byte was touched."""
        return sum(self.objects.values())

    @property
    def ws(self) -> int:
        """Bytes of touched tensors, and of touched objects in which no tensor was touched.

        A framework's segment counts by its tensors, memory that is no framework's as a whole.
        """
        return self.ws_tensor + sum(
            size
            for start, size in self.objects.items()
            if not any(overlap(start, size, *tensor) for tensor in self.tensors.items())
        )

    @property
    def name(self) -> str:
        """The kernel's, or for a person what the row stands for."""
        name = self.launch.name
        return f"CUDA graph of {self.nodes} kernels, the first {name}" if self.nodes else name

    @property
    def pieces(self) -> int:
        """How many pieces were touched."""
        return len(self.tensors) + len(self.objects)


def overlap(start: int, size: int, other: int, length: int) -> bool:
    """Whether two stretches of addresses share a byte."""
    return other < start + size and start < other + length


@dataclass
class LaunchSets:
    """The launches of one process that were analysed, and what could not be used."""

    rows: list[LaunchSet] = field(default_factory=list)
    module_pieces: int = 0  # pieces of a module's own memory that were touched: left out
    orphans: int = 0  # touched pieces of launches that are not in the log
    lost: int = 0  # analysed launches whose result was lost, or not written before a log was cut
    unknown: int = 0  # that touched nothing which is known, and copy by unknown tensor maps


def launch_sets(process: Process) -> LaunchSets:
    """Return the sets of all analysed launches of one process, in order of launches.

    Touched events come later than their launch, so the object that holds a tensor is looked up as
    it was at the launch. Raises ToolError where it was not recorded what launches touched.
    """
    need(process, "touch")
    sets = LaunchSets()
    memory = MemoryIndex()
    owners = OwnerHistory()
    rows: dict[int, LaunchSet] = {}
    graphs: dict[int, LaunchSet] = {}  # thread to the graph that it launched last
    told: set[int] = set()  # launches of which a result was written
    for event in process.events(_KINDS):
        if isinstance(event, Launch):
            _begin(event, rows, graphs, process, memory)
        elif isinstance(event, TensorMap):
            if event.launch in rows:
                for piece in touched_by_map(event, memory):
                    _add(sets, rows, piece, owners)
        elif isinstance(event, Nothing | Touched):
            told.add(event.launch)
            if isinstance(event, Touched):
                _add(sets, rows, event, owners)
        else:
            memory.apply(event)
            if isinstance(event, TensorAlloc):
                owners.note(event.address, event.clock, memory.objects.find(event.address))
    kept = [row for row in rows.values() if row.launch.launch not in process.unseen.lost]
    if process.truncated:
        kept = [row for row in kept if row.launch.launch in told]
    sets.lost = len(rows) - len(kept)
    sets.rows = [row for row in kept if row.pieces or not row.undescribed]
    sets.unknown = len(kept) - len(sets.rows)
    return sets


def _begin(
    event: Launch, rows: dict[int, LaunchSet], graphs: dict[int, LaunchSet], process: Process,
    memory: MemoryIndex,
) -> None:  # fmt: skip
    """Make the row of a launch, or add it to the graph that its thread launches."""
    if event.analysed in (1, 2):
        rows[event.launch] = graphs[event.thread] = LaunchSet(
            event, memory.object_bytes[event.device], memory.tensor_bytes[event.device],
            by_descriptor=process.unseen.described(event.launch),
            undescribed=process.unseen.undescribed(event.launch), nodes=int(event.analysed == 2),
        )  # fmt: skip
    elif event.analysed == 4 and event.thread in graphs:
        graphs[event.thread].nodes += 1


def _add(
    sets: LaunchSets, rows: dict[int, LaunchSet], event: Touched, owners: OwnerHistory
) -> None:
    """Add a touched piece to its row; a module's own memory does not count."""
    row = rows.get(event.launch)
    if row is None:
        sets.orphans += 1
    elif event.flags & MODULE:
        sets.module_pieces += 1
    elif event.size == 0:
        row.elsewhere = True
    elif event.what == OBJECT:
        row.objects[event.address] = event.size
    else:
        row.tensors[event.address] = event.size
        owner = owners.at(event.address, row.launch.clock)
        if owner is not None and not owner.flags & MODULE:
            row.objects[owner.address] = owner.size

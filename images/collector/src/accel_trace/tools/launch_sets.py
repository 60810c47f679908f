"""What each launch touched, and what was allocated then: the rows behind working sets."""

from __future__ import annotations

from dataclasses import dataclass, field

from accel_trace.events import (
    Alloc,
    Event,
    Free,
    Launch,
    TensorAlloc,
    TensorFree,
    Touched,
)
from accel_trace.objects import MODULE, OBJECT, MemoryIndex, OwnerHistory
from accel_trace.session import Process

_KINDS: tuple[type[Event], ...] = (Alloc, Free, TensorAlloc, TensorFree, Launch, Touched)


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
            if not any(start <= tensor < start + size for tensor in self.tensors)
        )

    @property
    def pieces(self) -> int:
        """How many pieces were touched."""
        return len(self.tensors) + len(self.objects)


@dataclass
class LaunchSets:
    """The launches of one process that were analysed, and what could not be used."""

    rows: list[LaunchSet] = field(default_factory=list)
    module_pieces: int = 0  # pieces of a module's own memory that were touched: left out
    orphans: int = 0  # touched pieces of launches that are not in the log
    lost: int = 0  # analysed launches at the end of a cut log, whose result was not written


def launch_sets(process: Process) -> LaunchSets:
    """Return the sets of all analysed launches of one process, in order of launches.

    Touched events come later than their launch, so the object that holds a tensor is looked up as
    it was at the launch.
    """
    sets = LaunchSets()
    memory = MemoryIndex()
    owners = OwnerHistory()
    rows: dict[int, LaunchSet] = {}
    last = -1
    for event in process.events(_KINDS):
        if isinstance(event, Launch):
            if event.analysed in (1, 2):
                rows[event.launch] = LaunchSet(
                    event, memory.object_bytes[event.device], memory.tensor_bytes[event.device]
                )
        elif isinstance(event, Touched):
            last = max(last, event.launch)
            row = rows.get(event.launch)
            if row is None:
                sets.orphans += 1
            else:
                sets.module_pieces += not _add(row, event, owners)
        else:
            memory.apply(event)
            if isinstance(event, TensorAlloc):
                owners.note(event.address, event.clock, memory.objects.find(event.address))
    sets.rows = list(rows.values())
    if process.truncated:
        kept = [row for row in sets.rows if row.launch.launch <= last]
        sets.lost = len(sets.rows) - len(kept)
        sets.rows = kept
    return sets


def _add(row: LaunchSet, event: Touched, owners: OwnerHistory) -> bool:
    """Add a touched piece; False when it is a module's own memory, which does not count."""
    if event.flags & MODULE:
        return False
    if event.size == 0:
        row.elsewhere = True
        return True
    if event.what == OBJECT:
        row.objects[event.address] = event.size
        return True
    row.tensors[event.address] = event.size
    owner = owners.at(event.address, row.launch.clock)
    if owner is not None and not owner.flags & MODULE:
        row.objects[owner.address] = owner.size
    return True

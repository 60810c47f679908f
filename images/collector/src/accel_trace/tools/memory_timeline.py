"""What is allocated over time, per device. Source: PASTA, Figures 14 and 15."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from accel_trace.events import Alloc, Free, TensorAlloc, TensorFree
from accel_trace.objects import MemoryIndex
from accel_trace.session import Process, Session
from accel_trace.tools.base import (
    Needs,
    Option,
    Record,
    Report,
    Tool,
    bytes_text,
    write_table,
)

_COLUMNS = ("process", "device", "level", "index", "ns", "change", "allocated", "reserved")


@dataclass
class Timeline:
    """One device's events at one level: `tensor` (the framework's) or `object` (the driver's)."""

    ns: list[int] = field(default_factory=list)  # since the process' first event here
    change: list[int] = field(default_factory=list)  # bytes, negative for a free
    allocated: list[int] = field(default_factory=list)  # bytes after the event
    reserved: list[int] = field(default_factory=list)  # 0 at level object

    def add(self, ns: int, change: int, allocated: int, reserved: int) -> None:
        """Append one event."""
        self.ns.append(ns)
        self.change.append(change)
        self.allocated.append(allocated)
        self.reserved.append(reserved)


def timelines(process: Process) -> dict[tuple[int, str], Timeline]:
    """Return the timelines of one process by device and level."""
    found: dict[tuple[int, str], Timeline] = {}
    memory = MemoryIndex()
    start = None
    for event in process.events((Alloc, Free, TensorAlloc, TensorFree)):
        start = event.ns if start is None else start
        ns = event.ns - start
        if isinstance(event, TensorAlloc | TensorFree):
            change = event.size if isinstance(event, TensorAlloc) else -event.size
            line = found.setdefault((event.device, "tensor"), Timeline())
            line.add(ns, change, event.allocated, event.reserved)
        elif isinstance(event, Alloc | Free):
            before = dict(memory.object_bytes)
            memory.apply(event)
            for device, now in memory.object_bytes.items():
                change = now - before.get(device, 0)
                if change:
                    found.setdefault((device, "object"), Timeline()).add(ns, change, now, 0)
    return dict(sorted(found.items()))


def thinned(values: Sequence[int], points: int) -> list[float]:
    """Return at most `points` numbers, each the largest of its stretch: peaks are kept."""
    count = min(points, len(values))
    bounds = [len(values) * i // count for i in range(count + 1)] if count else []
    return [float(max(values[low:high])) for low, high in itertools.pairwise(bounds)]


class MemoryTimeline(Tool):
    """Allocated bytes over the index of the event and over time, per process and device."""

    name = "memory_timeline"
    help = "bytes allocated over time on each GPU, by the framework and by the driver"
    needs = Needs(mode="events", handlers=("sanitizer", "torch"))
    options = (Option("points", 2000, "points of a curve in the records; peaks are kept"),)

    def run(self, session: Session) -> Report:
        records: list[Record] = []
        lines: list[str] = []
        rows: list[tuple[object, ...]] = []
        for process in session.processes:
            if "tensors" in process.facts:
                lines.append(f"process {process.label}, tensor: {process.facts['tensors']}")
            for (device, level), line in timelines(process).items():
                labels = {"process": process.label, "device": device, "level": level}
                peak = max(line.allocated)
                where = line.allocated.index(peak)
                curve = thinned(line.allocated, max(int(self.number("points")), 1))
                note = f"the largest of every stretch of {len(line.ns)} events"
                records += [
                    Record("peak_allocated", "B", (peak,), labels),
                    Record("peak_position", "1", (where / max(len(line.ns) - 1, 1),), labels),
                    Record("memory_events", "events", (len(line.ns),), labels),
                    Record("allocations", "events", (sum(c > 0 for c in line.change),), labels),
                    Record("curve_allocated", "B", tuple(curve), labels, note=note),
                ]
                if level == "tensor":
                    records.append(Record("peak_reserved", "B", (max(line.reserved),), labels))
                lines.append(
                    f"process {process.label}, device {device}, {level}: {len(line.ns)} events, "
                    f"peak {bytes_text(peak)} at event {where}, "
                    f"{bytes_text(line.allocated[-1])} at the end"
                )
                rows += [
                    (process.label, device, level, index, *values)
                    for index, values in enumerate(
                        zip(line.ns, line.change, line.allocated, line.reserved, strict=True)
                    )
                ]
        if not rows:
            lines.append("nothing was allocated on a GPU")
        table = write_table(self.out / "memory-timeline.csv", _COLUMNS, rows)
        return Report(tuple(records), "\n".join(lines), (table,))

"""Records of a memory timeline, the same for Figures 14 and 15."""

from __future__ import annotations

from collections.abc import Sequence

from reprokit.records import RecordWriter

from pasta_workloads.errors import RunFailed

MIB = 2**20
POINTS = 100


def write_timeline(
    changes: Sequence[int], allocated: Sequence[int], labels: dict[str, str], out: RecordWriter
) -> None:
    """Peak, events by kind, and what is allocated at every percent of the events.

    Takes bytes, writes MiB. Raises RunFailed for a timeline without an event.
    """
    if not allocated:
        raise RunFailed(f"no memory event was seen ({labels})")
    peak = max(allocated)
    out.write("peak_allocated", "MiB", [peak / MIB], labels)
    position = allocated.index(peak) / max(len(allocated) - 1, 1)
    out.write("peak_position", "%", [100 * position], labels)
    for kind, count in (
        ("malloc", sum(change > 0 for change in changes)),
        ("free", sum(change < 0 for change in changes)),
    ):
        out.write("tensor_events", "events", [count], labels | {"kind": kind})
    for percent in range(POINTS + 1):
        index = round(percent / POINTS * (len(allocated) - 1))
        where = labels | {"progress": str(percent)}
        out.write("allocated", "MiB", [allocated[index] / MIB], where)

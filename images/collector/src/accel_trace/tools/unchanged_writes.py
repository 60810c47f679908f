"""Kernels that leave memory as it was, and pieces of memory that hold the same; no patches.

What a launch gets by its arguments is copied on the GPU before it and compared after it. A byte
that is as before was written again or not written at all: so the share that is unchanged is an
upper bound of what a kernel writes for nothing. Source: ValueExpert, coarse patterns.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from accel_trace.events import Kept, Launch
from accel_trace.session import Process, Session
from accel_trace.tools.base import (
    Needs,
    Option,
    Record,
    Report,
    Tool,
    ToolError,
    bytes_text,
    cut,
    write_table,
)

_WRITES = {0: "is const by its type", 1: "may be written, by its type", 2: "is an argument"}
_NOT_SEEN = {  # facts of the injection library, in bytes
    "freed": "that another thread freed before they were compared",
    "refused": "that the driver refused to read, though nobody was seen to free them",
}
_COLUMNS = ("process", "launch", "kernel", "operator", "region", "address", "size", "unchanged",
            "known", "zeros", "hash")  # fmt: skip


@dataclass
class _Place:
    """What the looked-at launches of one kernel, operator and region left as it was."""

    launches: set[int] = field(default_factory=set)
    size: int = 0  # bytes of what they got, less what is const by its type
    unchanged: int = 0
    typed: int = 0  # bytes of `size` that may be written by their type
    equal: int = 0  # bytes of pieces that hold after a launch what another one that it got holds


class UnchangedWrites(Tool):
    """Snapshots of what kernels get, compared on the GPU."""

    name = "unchanged_writes"
    help = (
        "kernels that leave memory as it was, and copies of what is there, by snapshots on the GPU"
    )
    options = (
        Option("budget", 256, "MiB of GPU memory for snapshots; what does not fit is counted"),
        Option("contexts", 64, "look at the first launch of each calling context (kernel, "
               "operator, region), and then at one in so many"),
        Option("top", 10, "places that are printed"),
        Option("least", 0.5, "share of unchanged bytes from which on a place is named"),
    )  # fmt: skip

    def needs_of(self, number: int, earlier: object) -> Needs:
        environment = {
            "ACCEL_TRACE_SNAPSHOT": str(int(self.number("budget"))),
            "ACCEL_TRACE_CONTEXTS": str(int(self.number("contexts"))),
        }
        handlers = ("sanitizer", "torch", "operators")
        return Needs(mode="copies", handlers=handlers, environment=environment)

    def run(self, session: Session) -> Report:
        if not any(process.facts.get("snapshot") for process in session.processes):
            raise ToolError("the record holds no snapshots: run --tool unchanged_writes")
        records: list[Record] = []
        lines: list[str] = []
        rows: list[tuple[object, ...]] = []
        for process in session.processes:
            places, looked = _read(process, rows)
            labels = {"process": process.label}
            lines.append(
                f"process {process.label}: {looked} of {process.coverage.launches} launches were "
                f"looked at, with {process.facts.get('snapshot', '0')} bytes for snapshots"
            )
            records.append(Record("looked_at", "launches", (looked,), labels))
            for why, words in _NOT_SEEN.items():
                size = int(process.facts.get(f"snapshot_{why}", "0"))
                records.append(Record("not_seen", "B", (size,), labels | {"why": why}))
                if size:
                    lines.append(f"  not seen: {bytes_text(size)} of what kernels got, {words}")
            found = sorted(places.items(), key=lambda item: -item[1].unchanged)
            named = [(key, one) for key, one in found
                     if one.size and one.unchanged >= self.number("least") * one.size]  # fmt: skip
            for key, one in named[: int(self.number("top"))]:
                lines += _lines(key, one)
            for (kernel, operator, region), one in found:
                where = labels | {"kernel": kernel, "operator": operator, "region": region}
                for metric, value in (("got", one.size), ("unchanged", one.unchanged),
                                      ("equal", one.equal)):  # fmt: skip
                    records.append(Record(metric, "B", (value,), where))
        table = write_table(self.out / "unchanged-writes.csv", _COLUMNS, rows)
        return Report(tuple(records), "\n".join(lines), (table,))


def _lines(key: tuple[str, str, str], one: _Place) -> list[str]:
    kernel, operator, region = key
    where = ", ".join(filter(None, [operator, f"region {region}" if region else ""]))
    lines = [
        f"  at most {bytes_text(one.unchanged)} of {bytes_text(one.size)} are written for nothing, "
        f"in {len(one.launches)} launches of {cut(kernel)}{f' ({where})' if where else ''}",
        f"    of all {bytes_text(one.size)}, {bytes_text(one.typed)} may be written by their type; "
        "the rest is known as an argument",
    ]
    if one.equal:
        lines.append(
            f"    {bytes_text(one.equal)} hold the same as another piece that the launch got"
        )
    return lines


def _read(
    process: Process, rows: list[tuple[object, ...]]
) -> tuple[dict[tuple[str, str, str], _Place], int]:
    """Return what was found by place, and how many launches were looked at; adds to the table."""
    places: defaultdict[tuple[str, str, str], _Place] = defaultdict(_Place)
    launches: dict[int, Launch] = {}
    kept: defaultdict[int, list[Kept]] = defaultdict(list)
    for event in process.events((Launch, Kept)):
        if isinstance(event, Launch):
            launches[event.launch] = event
        elif isinstance(event, Kept) and event.launch in launches:
            kept[event.launch].append(event)
    for number, pieces in kept.items():
        launch = launches[number]
        place = places[launch.name, launch.operator, launch.region]
        place.launches.add(number)
        hashes = [(one.size, one.hash_low, one.hash_high) for one in pieces]
        for one, own in zip(pieces, hashes, strict=True):
            rows.append((
                process.label, number, launch.name, launch.operator, launch.region, one.address,
                one.size, one.unchanged, _WRITES.get(one.writes, one.writes), one.zeros,
                f"{one.hash_high:016x}{one.hash_low:016x}",
            ))  # fmt: skip
            if one.writes == 0:
                continue
            place.size += one.size
            place.unchanged += one.unchanged
            place.typed += one.size if one.writes == 1 else 0
            place.equal += one.size if hashes.count(own) > 1 else 0
    return dict(places), len(kept)

"""The working set of each kernel. Source: PASTA, section 5.2 and Table V.

A launch's working set is the sum of the full sizes of the pieces of memory that it touches, not of
the bytes it touches of them. Levels: `tensor`; `object` (driver-level allocations); `all` (tensors,
and objects in which no tensor was touched).
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from reprokit.records import Evidence

from accel_trace.events import Launch, OperatorEnd, OperatorStart
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
from accel_trace.tools.inferred import infer
from accel_trace.tools.launch_sets import LaunchSet, LaunchSets, launch_sets

_REASONS = 5  # that are told
_LEVELS = {"all": "ws", "tensor": "ws_tensor", "object": "ws_object"}
_COLUMNS = (
    "process", "launch", "kernel", "device", "grid", "block", "ws", "ws_tensor", "ws_object",
    "footprint", "tensor_footprint", "pieces", "accesses_elsewhere", "operator", "region",
    "by_descriptor", "not_seen", "known",
)  # fmt: skip


class Statistics(NamedTuple):
    """Of one number per launch; percentiles are numpy's linear ones, as the paper's."""

    max: float
    min: float
    mean: float
    median: float
    p90: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Statistics:
        """Return the statistics of at least one value."""
        array = np.asarray(values, dtype=np.float64)
        median, p90 = np.percentile(array, [50, 90], method="linear")
        return cls(array.max(), array.min(), array.mean(), float(median), float(p90))


def nearest(rows: Sequence[LaunchSet], values: Sequence[float], value: float) -> LaunchSet:
    """Return the first launch whose number is nearest to `value`: the kernel behind a statistic."""
    return rows[int(np.argmin(np.abs(np.asarray(values, dtype=np.float64) - value)))]


class WorkingSet(Tool):
    """Working sets and footprints, per launch and over all launches of a process."""

    name = "working_set"
    infers = True
    help = "bytes of the memory pieces that each launch touches, and what is allocated then"
    options = (
        Option("variant", "gpu", "gpu: touch maps on the GPU; cpu, cpu_mt: raw accesses, resolved "
               "by one or several CPU threads; args: what an operator's arguments hold, an upper "
               "bound that patches nothing", ("gpu", "cpu", "cpu_mt", "args")),
        Option("workers", 0, "threads of cpu_mt; 0: one per CPU that is allowed"),
        Option("classes", "", "accesses to patch, comma separated; empty: the mode's own"),
    )  # fmt: skip

    def needs_of(self, number: int, earlier: Sequence[Session]) -> Needs:
        variant = self.word("variant")
        classes = tuple(filter(None, self.word("classes").split(",")))
        handlers = ("sanitizer", "torch")
        if variant == "gpu":
            return Needs(mode="touch", handlers=handlers, classes=classes)
        if variant == "args":
            return Needs(
                mode="events", handlers=(*handlers, "operators"),
                environment={"ACCEL_TRACE_ARGS": "1"},
            )  # fmt: skip
        workers = int(self.number("workers")) or len(os.sched_getaffinity(0))
        environment = {
            "ACCEL_TRACE_ANALYSIS": "touch",
            "ACCEL_TRACE_WORKERS": str(workers if variant == "cpu_mt" else 1),
        }
        return Needs(mode="trace", handlers=handlers, classes=classes, environment=environment)

    def run(self, session: Session) -> Report:
        variant = self.word("variant")
        records: list[Record] = []
        lines: list[str] = []
        rows: list[tuple[object, ...]] = []
        for process in session.processes:
            labels = {"process": process.label, "variant": variant}
            reasons: list[str] = []
            if variant == "args":
                sets, note = argument_sets(process, session)
            else:
                sets = launch_sets(process)
                note = _excluded(sets)
                if process.facts.get("distinct"):
                    text, reasons = _add_inferred(process, sets, labels, records)
                    note += f"; {text}"
            lines += [f"process {process.label}: {len(sets.rows)} launches; {note}", *reasons]
            records.append(Record("launches", "launches", (len(sets.rows),), labels, note=note))
            if not sets.rows:
                continue
            levels = {"bound": "bound"} if variant == "args" else _LEVELS
            found, words = _summary(sets.rows, levels, labels)
            records += found
            lines += words
            rows += [_row(process, row, variant) for row in sets.rows]
        if not rows:
            lines.append("no launch was analysed, so there is no working set to tell of")
        table = write_table(self.out / "working-set.csv", _COLUMNS, rows)
        return Report(tuple(records), "\n".join(lines), (table,))


def argument_sets(process: Process, session: Session) -> tuple[LaunchSets, str]:
    """Return each launch with the bytes that its operator's arguments hold, and what is left out.

    The innermost operator around the launch, on its thread, that has a line in
    `args-<pid>.jsonl` counts: {"operator": name, "index": of OperatorStart, "bytes": sum}.
    """
    path = session.folder / f"args-{process.pid}.jsonl"
    try:
        found = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        bounds = {int(line["index"]): int(line["bytes"]) for line in found}
    except FileNotFoundError:
        raise ToolError(
            f"{path.name} is missing: variant args needs a PyTorch program, whose operators are "
            "recorded"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ToolError(f"{path.name} cannot be read: {error}") from error
    stacks: defaultdict[int, list[int]] = defaultdict(list)
    sets = LaunchSets()
    without = 0
    for event in process.events((OperatorStart, OperatorEnd, Launch)):
        if isinstance(event, OperatorStart):
            stacks[event.thread].append(event.index)
        elif isinstance(event, OperatorEnd):
            stack = stacks[event.thread]
            if event.index in stack:
                del stack[stack.index(event.index) :]
        elif isinstance(event, Launch):
            index = next((i for i in reversed(stacks[event.thread]) if i in bounds), None)
            if index is None:
                without += 1
            else:
                sets.rows.append(LaunchSet(event, 0, 0, bound=bounds[index]))
    return sets, f"{without} launches outside of any operator with arguments are left out"


def _add_inferred(
    process: Process, sets: LaunchSets, labels: dict[str, str], records: list[Record]
) -> tuple[str, list[str]]:
    """Add what is inferred of launches that were not analysed; return what to say of it, and why
    the most of the others were not."""
    found = infer(process, sets)
    sets.rows = sorted([*sets.rows, *found.rows], key=lambda row: row.launch.launch)
    records.append(Record("inferred", "launches", (len(found.rows),), labels))
    for name in (
        "unmatched", "outside", "nodes", "checked", "mismatches", "unchecked", "first",
    ):  # fmt: skip
        why = {"unmatched": found.reasons, "unchecked": found.doubts}.get(name, Counter())
        note = "; ".join(f"{count} of {of}: {reason}" for (of, reason), count in why.items())
        records.append(Record(name, "launches", (getattr(found, name),), labels, note=note))
    numbers = ", ".join(map(str, sorted(found.partly)))
    records.append(Record("partly_known", "iterations", (len(found.partly),), labels, note=numbers))
    text = (
        f"inferred: {len(found.rows)} launches that were not analysed do as one that was; "
        f"{found.unmatched} are as none of the analysed iteration, {found.outside} lie before or "
        f"outside of iterations, and {found.nodes} are nodes of CUDA graphs that have no result of "
        f"their own: they are left out; {found.checked} inferred launches were analysed as well, "
        f"and {found.mismatches} of them came out otherwise; {found.unchecked} that were analysed "
        f"could not be inferred, and {found.first} had no analysed iteration before them"
    )
    if numbers:
        text += f"; of these iterations not all launches are known: {numbers}"
    return text, [
        f"  {what}: {count} launches of {cut(kernel)}: {reason}"
        for what, why in (("not inferred", found.reasons), ("not checked", found.doubts))
        for (kernel, reason), count in why.most_common(_REASONS)
    ]


def _excluded(sets: LaunchSets) -> str:
    nothing = sum(not row.pieces for row in sets.rows)
    elsewhere = sum(row.elsewhere for row in sets.rows)
    parts = [
        f"{sets.module_pieces} touched pieces of modules' own memory do not count",
        f"{nothing} launches touched no piece",
    ]
    if elsewhere:
        parts.append(f"{elsewhere} launches also accessed memory that belongs to no known piece")
    if sets.lost:
        parts.append(
            f"{sets.lost} launches whose result was lost, at the cut end of the log say, are "
            "unknown and left out"
        )
    if sets.unknown:
        parts.append(
            f"{sets.unknown} launches that touched nothing but by tensor maps that are not known "
            "are left out"
        )
    lower = sum(row.undescribed for row in sets.rows)
    if lower:
        parts.append(f"{lower} launches touched at least what is said, and more by such maps")
    if sets.orphans:
        parts.append(f"{sets.orphans} touched pieces of launches that are not in the log")
    return "; ".join(parts)


def _summary(
    rows: Sequence[LaunchSet], levels: dict[str, str], labels: dict[str, str]
) -> tuple[list[Record], list[str]]:
    records: list[Record] = []
    lines: list[str] = []
    how: Evidence = "inferred" if any(row.inferred for row in rows) else "measured"
    for level, attribute in levels.items():
        values = [float(getattr(row, attribute)) for row in rows]
        statistics = Statistics.of(values)
        words, nearest_to = [], []
        for name, value in statistics._asdict().items():
            behind = nearest(rows, values, value)
            note = f"launch {behind.launch.launch}: {behind.name}"
            about = labels | {"level": level}
            records.append(Record(f"ws_{name}", "B", (value,), about, note=note, evidence=how))
            words.append(f"{name} {bytes_text(value)}")
            if name in ("max", "median", "p90"):
                nearest_to.append(f"    {name:<6} is that of {cut(note)}")
        if statistics.max or level != "tensor":  # a program without a framework has no tensors
            lines += [f"  working set ({level}): {', '.join(words)}", *nearest_to]
    if "bound" not in levels:
        for name, attribute in (("footprint", "footprint"), ("tensors", "tensor_footprint")):
            values = [float(getattr(row, attribute)) for row in rows]
            mean, most = float(np.mean(values)), max(values)
            records.append(Record(f"{name}_mean", "B", (mean,), labels))
            records.append(Record(f"{name}_max", "B", (most,), labels))
            shown = "allocated" if name == "footprint" else "in tensors"
            if most or name == "footprint":
                lines.append(f"  {shown}: mean {bytes_text(mean)}, max {bytes_text(most)}")
    return records, lines


def _row(process: Process, row: LaunchSet, variant: str) -> tuple[object, ...]:
    launch = row.launch
    grid = f"{launch.grid_x}x{launch.grid_y}x{launch.grid_z}"
    block = f"{launch.block_x}x{launch.block_y}x{launch.block_z}"
    ws = row.bound if variant == "args" else row.ws
    return (
        process.label, launch.launch, row.name, launch.device, grid, block, ws, row.ws_tensor,
        row.ws_object, row.footprint, row.tensor_footprint, row.pieces, int(row.elsewhere),
        launch.operator, launch.region, row.by_descriptor,
        "tensor maps" if row.undescribed else "", "inferred" if row.inferred else "measured",
    )  # fmt: skip

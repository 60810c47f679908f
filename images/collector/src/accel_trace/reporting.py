"""From a recorded folder to a report: opens the sessions, runs the tool, writes what it found."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from reprokit.records import RecordWriter

from accel_trace.session import Session
from accel_trace.tools.base import Record, Report, Tool, ToolError, bytes_text, write_file

REPORT = "report.txt"
RECORDS = "records.jsonl"
# The injection library's facts about itself.
MEMORY = {"device_bytes": "on the GPU", "pinned_bytes": "pinned on the host"}
NOTHING = (
    "nothing was recorded: the program made no CUDA call that can be seen (no GPU work, a program "
    "that is linked statically, or one that drops LD_PRELOAD)"
)


def open_sessions(folder: Path) -> list[Session]:
    """Return the sessions of all passes in `folder`, in order. Raises SessionError."""
    passes = sorted(
        folder.glob("pass-[0-9]*"), key=lambda path: int(path.name.removeprefix("pass-"))
    )
    return [Session(path) for path in passes] or [Session(folder)]


def make_report(tool: Tool, sessions: Sequence[Session]) -> Report:
    """Run the tool over recorded passes; every report ends with what the logs hold of the run.

    Raises ToolError, also for what a tool did not foresee.
    """
    tool.sessions = sessions
    last = sessions[-1]
    passed = last.run.get("passed_through")
    if passed:
        report = Report(text=f"the program ran without the tool: {passed}")
    elif last.processes or last.run.get("mode") == "none":
        try:
            report = tool.run(last)
        except ToolError:
            raise
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
            raise ToolError(f"{tool.name}: {text}") from error
    else:
        report = Report(text=NOTHING)
    lines = [*last.coverage.unseen, *filter(None, [report.text])]
    for number, session in enumerate(sessions, 1):
        if len(sessions) > 1:
            lines.append(f"pass {number}:")
        lines.append(session.coverage.text())
    own = {name: memory_of(last, name) for name in MEMORY}
    lines += [f"the collector's own memory: {_memory_text(own)}"] if any(own.values()) else []
    coverage = last.coverage
    counts = {
        "launches_recorded": coverage.launches,
        "launches_analysed": coverage.analysed,
        "launches_filtered": coverage.filtered,
        "launches_refused": coverage.refused,
        "dropped_events": coverage.dropped_events,
        "dropped_accesses": coverage.dropped_accesses,
        "damaged_logs": len(coverage.damage),
    }
    records = report.records + tuple(
        Record(metric, metric.split("_")[-1] if metric == "damaged_logs" else "count", (count,))
        for metric, count in counts.items()
    )
    records += tuple(Record(name, "B", (size,)) for name, size in own.items() if size)
    return replace(report, records=records, text="\n".join(lines))


def memory_of(session: Session, name: str) -> int:
    """Bytes that the injection library took at most, over all processes; `name` of MEMORY."""
    said = (process.facts.get(name, "") for process in session.processes)
    return sum(int(text) for text in said if text.isdigit())


def _memory_text(own: Mapping[str, int]) -> str:
    return ", ".join(f"{bytes_text(size)} {MEMORY[name]}" for name, size in own.items())


def write_report(tool: Tool, report: Report, folder: Path) -> str:
    """Write report.txt, whose text is returned, and records.jsonl in place of older ones.

    Raises OSError or ToolError.
    """
    (folder / RECORDS).unlink(missing_ok=True)
    writer = RecordWriter(folder)
    for record in report.records:
        labels = {"tool": tool.name} | dict(record.labels)
        try:
            writer.write(
                record.metric, record.unit, record.samples, labels, record.evidence,
                note=record.note or None,
            )  # fmt: skip
        except ValueError as error:
            raise ToolError(f"{tool.name}: {error}") from error
    files = [f"file: {path}" for path in report.files]
    text = "\n".join([f"accel-trace: {tool.name}", report.text, *files]) + "\n"
    write_file(folder / REPORT, lambda path: path.write_text(text, encoding="utf-8"))
    return text

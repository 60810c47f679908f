"""What a tool costs, timed inside it. Source: PASTA, Figures 9 and 10."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from accel_trace.events import RegionEnd, RegionStart, Timer
from accel_trace.session import Process, Session
from accel_trace.tools.base import MODES, Needs, Option, Record, Report, Tool

STAGES = ("collection", "transfer", "analysis")
_NS = 1e-9


class Overhead(Tool):
    """Elapsed time, and the collector's own timers, under one mode of collection."""

    name = "overhead"
    help = "elapsed time and its breakdown into execution, collection, transfer and analysis"
    options = (
        Option("mode", "touch", "how the collector works; none: not at all, for a baseline", MODES),
        Option("analysis", "touch", "of mode trace: what the CPU computes",
               ("touch", "count", "hot")),
        Option("workers", 1, "of mode trace: consumer threads"),
        Option("policy", "wait", "of mode trace: what happens when the buffer is full",
               ("wait", "drop")),
        Option("sample", 1, "one launch in this many is analysed"),
        Option("baseline", 0.0, "seconds of the same run under mode none; 0: not known"),
        Option("torch", True, "follow the framework's tensors, as working_set does"),
    )  # fmt: skip

    def needs_of(self, number: int, earlier: Sequence[Session]) -> Needs:
        mode = self.word("mode")
        environment = {}
        if int(self.number("sample")) > 1:
            environment["ACCEL_TRACE_SAMPLE"] = self.word("sample")
        if mode == "trace":
            environment |= {
                "ACCEL_TRACE_ANALYSIS": self.word("analysis"),
                "ACCEL_TRACE_WORKERS": self.word("workers"),
                "ACCEL_TRACE_POLICY": self.word("policy"),
            }
        handlers = ("sanitizer", "torch") if self.settings["torch"] else ("sanitizer",)
        return Needs(mode=mode, handlers=handlers, environment=environment)

    def run(self, session: Session) -> Report:
        labels = {"mode": str(session.run.get("mode", self.word("mode")))}
        if labels["mode"] == "trace":
            labels |= {"analysis": self.word("analysis"), "workers": self.word("workers")}
        totals = dict.fromkeys(STAGES, 0.0)
        records: list[Record] = []
        regions: defaultdict[str, list[float]] = defaultdict(list)
        for process in session.processes:
            for stage, seconds in timers(process).items():
                totals[stage] = totals.get(stage, 0.0) + seconds
            for name, seconds in region_seconds(process):
                regions[name].append(seconds)
        for stage, seconds in totals.items():
            records.append(Record("stage_time", "s", (seconds,), labels | {"stage": stage}))
        lines = [f"{stage}: {seconds:.6f} s" for stage, seconds in totals.items()]
        for name, samples in regions.items():
            records.append(Record("region_time", "s", tuple(samples), labels | {"region": name}))
            lines.append(f"region {name}: {len(samples)} times, {sum(samples):.6f} s in all")
        if session.elapsed is not None:
            found, words = self._elapsed(session.elapsed, sum(totals.values()), labels)
            records += found
            lines += words
        return Report(tuple(records), "\n".join(lines))

    def _elapsed(
        self, elapsed: float, own: float, labels: dict[str, str]
    ) -> tuple[list[Record], list[str]]:
        """Return elapsed, execution and slowdown. What is not the tool's counts as execution."""
        baseline = self.number("baseline")
        records = [Record("elapsed", "s", (elapsed,), labels)]
        lines = [f"elapsed: {elapsed:.6f} s, of the whole process"]
        if baseline > 0:
            records.append(Record("slowdown", "x", (elapsed / baseline,), labels))
            lines.append(f"slowdown: {elapsed / baseline:.2f} x of {baseline:.6f} s")
            execution, note = baseline, "the baseline; what timers do not see is in elapsed alone"
        else:
            execution, note = elapsed - own, "elapsed less the stages"
            if execution < 0:
                execution, note = 0.0, "stages overlap: consumer threads run beside the program"
        records.append(
            Record("stage_time", "s", (execution,), labels | {"stage": "execution"}, note=note)
        )
        lines.append(f"execution: {execution:.6f} s ({note})")
        return records, lines


def timers(process: Process) -> dict[str, float]:
    """Return the seconds that each stage took in one process; timers are running totals."""
    latest: dict[str, int] = {}
    for event in process.events([Timer]):
        assert isinstance(event, Timer)
        latest[event.stage] = max(latest.get(event.stage, 0), event.total_ns)
    return {stage: ns * _NS for stage, ns in latest.items()}


def region_seconds(process: Process) -> list[tuple[str, float]]:
    """Return name and seconds of every region that was entered and left, in order of its end."""
    open_at: defaultdict[str, list[int]] = defaultdict(list)
    found = []
    for event in process.events((RegionStart, RegionEnd)):
        if isinstance(event, RegionStart):
            open_at[event.name].append(event.ns)
        elif isinstance(event, RegionEnd) and open_at[event.name]:
            found.append((event.name, (event.ns - open_at[event.name].pop()) * _NS))
    return found

"""The call stack of the extreme kernel, across Python and C++. Source: PASTA, Figure 4."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from accel_trace.events import KernelTime, Launch, Stack
from accel_trace.session import Process, Session, join_passes
from accel_trace.tools.base import Needs, Option, Record, Report, Tool, ToolError, bytes_text, cut
from accel_trace.tools.launch_sets import launch_sets


class CallStack(Tool):
    """Finds the kernel in a first pass of the program, and records its stack in a second one."""

    name = "call_stack"
    help = "where in the program the extreme kernel is launched"
    passes = 2
    options = (
        Option("of", "ws", "the kernel with the largest working set, the most launches (its first "
               "is shown), or the longest time on the GPU", ("ws", "launches", "time")),
        Option("launch", -1, "the index of a launch to show instead; skips the search"),
    )  # fmt: skip

    def needs_of(self, number: int, earlier: Sequence[Session]) -> Needs:
        if number == 1:
            index = str(self._target(earlier[0])[1])
            return Needs(
                mode="events", handlers=("sanitizer", "torch", "stacks"),
                environment={"ACCEL_TRACE_STACK_LAUNCH": index},
            )  # fmt: skip
        if self.number("launch") >= 0 or self.word("of") == "launches":
            return Needs(mode="events")
        if self.word("of") == "time":
            return Needs(mode="events", handlers=("cupti",))
        return Needs(mode="touch", handlers=("sanitizer", "torch"))

    def run(self, session: Session) -> Report:
        if len(self.sessions) != 2:
            raise ToolError("call_stack reads two passes; give the folder that holds pass-1")
        number, launch, why = self._target(self.sessions[0])
        process = join_passes(self.sessions)[number][1]
        stacks = [
            event.text
            for event in process.events([Stack])
            if isinstance(event, Stack) and event.launch == launch
        ]
        name = next((name for index, name in process.launch_names() if index == launch), "?")
        lines = [f"process {process.label}, launch {launch}: {cut(name)}", f"chosen for: {why}"]
        frames = stacks[0].splitlines() if stacks else []
        lines += [f"  {frame}" for frame in frames]
        if not frames:
            lines.append("no stack was recorded; the notes of the second pass say why")
            lines += [f"  {note.text}" for note in process.notes]
        labels = {"process": process.label, "launch": launch, "kernel": name}
        records = [Record("stack_frames", "frames", (len(frames),), labels, note=why)]
        for kind in ("python", "native"):
            count = sum(frame.startswith(f"{kind}:") for frame in frames)
            records.append(Record("stack_frames_of", "frames", (count,), labels | {"of": kind}))
        return Report(tuple(records), "\n".join(lines))

    def _target(self, session: Session) -> tuple[int, int, str]:
        """Return the number of the process, the launch, and why it was chosen."""
        asked = int(self.number("launch"))
        if asked >= 0:
            if not session.processes:
                raise ToolError("the first pass recorded no process with CUDA activity")
            return 0, asked, f"launch {asked} was asked for"
        choose = {"ws": _largest, "launches": _most, "time": _longest}[self.word("of")]
        found = [
            (value, -number, launch, why)
            for number, process in enumerate(session.processes)
            for value, launch, why in choose(process)
        ]
        if not found:
            raise ToolError(f"the first pass shows no launch to choose by '{self.word('of')}'")
        _, number, launch, why = max(found)
        return -number, launch, why


def _largest(process: Process) -> list[tuple[float, int, str]]:
    rows = launch_sets(process).rows
    if not rows:
        return []
    row = max(rows, key=lambda row: row.ws)
    return [(row.ws, row.launch.launch, f"the largest working set, {bytes_text(row.ws)}")]


def _most(process: Process) -> list[tuple[float, int, str]]:
    counts: Counter[str] = Counter()
    first: dict[str, int] = {}
    for event in process.events([Launch]):
        assert isinstance(event, Launch)
        counts[event.name] += 1
        first.setdefault(event.name, event.launch)
    return [
        (count, first[name], f"the most launches, {count}") for name, count in counts.most_common(1)
    ]


def _longest(process: Process) -> list[tuple[float, int, str]]:
    found = [
        (event.end_ns - event.start_ns, event.launch)
        for event in process.events([KernelTime])
        if isinstance(event, KernelTime)
    ]
    if not found:
        return []
    longest, launch = max(found, key=lambda pair: (pair[0], -pair[1]))
    return [(longest, launch, f"the longest time on the GPU, {longest / 1e3:.1f} us")]

"""A program alone and under the value tools, a process each: how long its runs take.

The program prints a JSON object a run; a run's time has all that the tool does meanwhile, and not
its report, which is made when the program is over.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from accel_trace import build, probe, tools
from accel_trace.builds import BuildError
from accel_trace.events import Launch
from accel_trace.launch import Filters, environment
from accel_trace.moved import Recorded
from accel_trace.session import Session
from accel_trace.tools.base import Needs
from reprokit.errors import Failure
from reprokit.records import RecordWriter
from reprokit.skip import EXIT_CODE, cannot_run

EVERY = 10  # runs of which one is analysed at most, and blocks
WITHIN = 2  # times as long as the others take, that all runs are to take where some are analysed
LONGER = 20  # times as many runs then: of short ones few may be analysed
BUFFER = 1 << 18  # ACCEL_TRACE_BUFFER: 192 MiB of a launch are kept


@dataclass(frozen=True)
class Level:
    """What is looked at: a tool with its settings, or none."""

    tool: str = ""
    settings: Mapping[str, str | int] | None = None
    every: int = 0
    within: float = 0

    @property
    def needs(self) -> Needs:
        """What the collector does."""
        if not self.tool:
            return Needs(mode="none")
        return tools.find(self.tool)(self.settings).needs_of(0, ())


LEVELS: Mapping[str, Level] = {
    "native": Level(),
    "empty": Level("overhead", {"mode": "empty", "torch": False}),
    "coarse": Level("value_patterns", {"level": "coarse"}),
    "fine": Level("value_patterns"),
    "blocks": Level("value_patterns", {"blocks": EVERY}),
    "every": Level("value_patterns", every=EVERY, within=WITHIN),  # the others without patches
}

LARGE = ("native", "empty", "coarse")  # of programs whose accesses find no room


def library() -> Path:
    """The collector, built and probed; leaves with 77 where it cannot work."""
    try:
        found = build.ensure_built()
    except BuildError as error:
        cannot_run(str(error))
    reason = probe.driver_problem() or probe.probe(found)
    if reason:
        cannot_run(reason)
    return found


def measure(
    command: Sequence[str | Path], runs: int, repeats: int, built: Path,
    labels: Mapping[str, str], out: RecordWriter, levels: Sequence[str] = tuple(LEVELS),
) -> None:  # fmt: skip
    """Write `run_time`, the mean over a process' runs but the first, of every level in turns.

    The command gets as its last word how many runs it makes: one more than `runs`.
    """
    for number in range(repeats):
        shift = number % len(levels)
        for name in (*levels[shift:], *levels[:shift]):
            own, level = {**labels, "level": name}, LEVELS[name]
            words = [*command, str((LONGER if level.within else 1) * runs + 1)]
            with tempfile.TemporaryDirectory() as folder:
                times = _runs(words, level, Path(folder), built)
                facts = (
                    _recorded(Path(folder)) if name == "fine"
                    else _analysed(Path(folder)) if level.every else []
                )  # fmt: skip
            mean = sum(times[1:]) / (len(times) - 1)
            out.write("run_time", "us", [mean], own, warmup=1, process=str(number))
            for metric, unit, value in facts:
                out.write(metric, unit, [value], own, process=str(number))


def _runs(command: Sequence[str | Path], level: Level, folder: Path, built: Path) -> list[float]:
    lines = [json.loads(line) for line in lines_of(command, level, folder, built, {})]
    if len(lines) < 2:
        words = " ".join(map(str, command))
        raise Failure(f"{words} printed {len(lines)} runs; two are needed at least")
    return [float(line["kernel_us"]) + float(line["memory_us"]) for line in lines]


def lines_of(
    command: Sequence[str | Path], level: Level, folder: Path, built: Path, more: Mapping[str, str]
) -> list[str]:
    """The JSON lines that a program prints at a level, with `more` environment. Raises Failure."""
    said = said_by(command, level, folder, built, more)
    return [line for line in said.splitlines() if line.startswith("{")]


def said_by(
    command: Sequence[str | Path], level: Level, folder: Path, built: Path, more: Mapping[str, str]
) -> str:
    """What a program prints at a level, with `more` environment. Raises Failure."""
    given = {**os.environ, **more}
    filters = Filters(every=level.every, within=level.within)
    env = environment(given, level.needs, filters, folder, built)
    env["ACCEL_TRACE_BUFFER"] = str(BUFFER)
    words = [str(word) for word in command]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    if done.returncode == EXIT_CODE:
        cannot_run(last)
    if done.returncode:
        raise Failure(f"{' '.join(words)} ended with {done.returncode}: {last}")
    return done.stdout


def _recorded(folder: Path) -> list[tuple[str, str, float]]:
    """Accesses that have values, and the share of the launches that were recorded whole."""
    kept = launches = whole = 0
    for process in Session(folder).processes:
        for event in process.events((Launch, Recorded)):
            launches += isinstance(event, Launch)
            if isinstance(event, Recorded):
                kept += event.kept
                whole += event.kept == event.accesses
    return [("values", "accesses", kept), ("whole", "share", whole / launches if launches else 0)]


def _analysed(folder: Path) -> list[tuple[str, str, float]]:
    """The share of the runs that were analysed."""
    told = [process.facts for process in Session(folder).processes]
    runs, analysed = (
        sum(int(facts.get(name, 0)) for facts in told)
        for name in ("iterations", "iterations_analysed")
    )
    return [("analysed", "share", analysed / runs)] if runs else []

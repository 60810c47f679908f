"""A recorded run: its folder, the logs of its processes, and what is known of their wholeness."""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from accel_trace.coverage import Coverage
from accel_trace.events import Dropped, Event, Fact, KernelTime, Launch, Note, Refused
from accel_trace.log import LogError, LogReader, Status, read_status
from accel_trace.unseen import KINDS, Unseen

RUN_FILE = "run.json"
_RANK_FACTS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


class SessionError(ValueError):
    """A folder that holds no recorded run, or runs that do not belong together; one sentence."""


class Process:
    """One process of the target: its logs, merged, and what they say about it.

    `facts` are its facts by name (the last value of each), `notes` what its handlers had to say,
    `rank` its rank in a distributed job or None.
    """

    def __init__(self, pid: int, readers: Sequence[LogReader], image: int = 1) -> None:
        """Read the logs through once, for facts, notes and coverage.

        `image` counts the programs that the process ran one after another, by exec.
        """
        self.pid = pid
        self.image = image
        self.readers = tuple(readers)
        self.facts: dict[str, str] = {}
        self.notes: list[Note] = []
        self.coverage = Coverage()
        self.statuses: list[Status] = []
        self.start_ns = min((reader.start_ns for reader in readers if reader.start_ns), default=0)
        self.unseen = Unseen()
        for reader in readers:
            self._scan(reader)
        lines = [*self.unseen.lines(self.analysis), *filter(None, [self._sampled()])]
        self.coverage.unseen += [f"process {self.label}: {line}" for line in lines]
        self.coverage.remarks += [note.text for note in self.notes if note.level < 2]
        self.coverage.warnings += [note.text for note in self.notes if note.level >= 2]

    @property
    def rank(self) -> int | None:
        """The rank of a distributed job, where the environment told one."""
        for name in _RANK_FACTS:
            if self.facts.get(name, "").isdigit():
                return int(self.facts[name])
        return None

    @property
    def label(self) -> str:
        """A name for records and tables: the rank where there is one, else the pid."""
        label = str(self.pid if self.rank is None else self.rank)
        return label if self.image == 1 else f"{label}.{self.image}"

    @property
    def mode(self) -> str:
        """The mode in which it was recorded; "" where its log does not say."""
        return self.facts.get("mode", "values" if self.facts.get("source") == "replay" else "")

    @property
    def analysis(self) -> str:
        """What of each launch was recorded: `touch`, `count`, `hot`, or another mode's name."""
        mode = self.mode or "touch"
        return self.facts.get("analysis", "touch") if mode == "trace" else mode

    def _sampled(self) -> str:
        facts = self.facts
        if not facts.get("iterations"):
            return ""
        unwatched, times = facts.get("iterations_unwatched"), int(facts.get("within", 0)) / 100
        return (
            f"sampled: {facts.get('iterations_analysed')} of {facts['iterations']} iterations were "
            f"analysed, one in {facts.get('every')}"
            + (f", and so few that all take at most {times:g} times as long" if times else "")
            + f" (told apart by {facts.get('iterations_by')})"
        ) + (f"; of {unwatched} others no launch, copy or fill was recorded" if unwatched else "")

    @property
    def truncated(self) -> bool:
        """Whether any of its logs is not whole."""
        return bool(self.coverage.damage)

    def events(self, kinds: Collection[type[Event]] | None = None) -> Iterator[Event]:
        """Yield the events of all its logs in order of time; each log keeps its own order.

        Of a launch that the driver refused there is Refused, and nothing else.
        """
        if len(self.readers) == 1:
            return self._that_ran(self.readers[0].events(kinds))
        streams = [_timed(self._that_ran(reader.events(kinds))) for reader in self.readers]
        return (event for _, event in heapq.merge(*streams, key=lambda pair: pair[0]))

    def _that_ran(self, events: Iterator[Event]) -> Iterator[Event]:
        refused = self.unseen.refused
        if not refused:
            return events
        return (
            event
            for event in events
            if getattr(event, "launch", None) not in refused or isinstance(event, Refused)
        )

    def launch_names(self) -> Iterator[tuple[int, str]]:
        """Yield index and name of every launch; of CUPTI's kernels where nothing else saw them."""
        kind = Launch if self.coverage.launches else KernelTime
        for event in self.events([kind]):
            assert isinstance(event, Launch | KernelTime)
            yield event.launch, event.name

    def _scan(self, reader: LogReader) -> None:
        coverage = self.coverage
        dropped: dict[str, int] = {}
        for event in reader.events((Fact, Note, Dropped, Launch, *KINDS)):
            if isinstance(event, KINDS):
                self.unseen.add(event)
            elif isinstance(event, Launch):
                coverage.count(event)
            elif isinstance(event, Fact):
                self.facts[event.name] = event.value
            elif isinstance(event, Note):
                self.notes.append(event)
            elif isinstance(event, Dropped):
                dropped[event.what] = event.count  # a running total
        if self.unseen.refused:
            for event in reader.events((Launch,)):
                if isinstance(event, Launch) and event.launch in self.unseen.refused:
                    coverage.count(event, refused=True)
        status = read_status(reader.path.with_suffix(".status"))
        self.statuses.append(status)
        coverage.dropped_events += max(dropped.get("events", 0), status.dropped_events)
        coverage.dropped_accesses += max(dropped.get("accesses", 0), status.dropped_accesses)
        coverage.unknown_frames += sum(reader.unknown.values())
        if status.state == "gave_up":
            coverage.damage.append(f"{reader.path.name}: the handler gave up: {status.why}")
        elif reader.damage:
            coverage.damage.append(f"{reader.path.name}: {reader.damage}")


class Session:
    """A folder that `accel-trace run` wrote: `processes` by rank, else by start; `run` its facts.

    Files that are named like logs and are none are listed in `coverage.damage`.
    """

    def __init__(self, folder: str | Path) -> None:
        """Open the folder. Raises SessionError when there is none."""
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise SessionError(f"{self.folder}: is no folder; give one that accel-trace run wrote")
        self.run = self._read_run()
        self.coverage = Coverage()
        readers: dict[int, list[LogReader]] = defaultdict(list)
        for path in sorted(self.folder.glob("trace-*.atl")):
            try:
                reader = LogReader(path)
            except LogError as error:
                self.coverage.damage.append(str(error))
            else:
                readers[reader.pid or _pid_of(path)].append(reader)
        processes = [
            Process(pid, images, number)
            for pid, group in readers.items()
            for number, images in enumerate(_images(group), 1)
        ]
        self.processes = tuple(
            sorted(processes, key=lambda p: (p.rank is None, p.rank or 0, p.start_ns, p.pid))
        )
        for path in sorted(self.folder.glob("notes-*.txt")):  # of handlers without a log
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            self.coverage.warnings += [f"process {_pid_of(path)}: {line}" for line in lines]
        for path in sorted(self.folder.glob("trace-*.status")):
            status = read_status(path)
            if status.state == "gave_up" and not path.with_suffix(".atl").exists():
                self.coverage.damage.append(f"{path.stem}: the handler gave up: {status.why}")
        for process in self.processes:
            self.coverage.add(process.coverage)

    @property
    def elapsed(self) -> float | None:
        """Seconds that the target ran, from its start to its end; None when unknown."""
        value = self.run.get("elapsed_s")
        return float(value) if isinstance(value, int | float) else None

    def events(
        self, kinds: Collection[type[Event]] | None = None
    ) -> Iterator[tuple[Process, Event]]:
        """Yield the events of all processes in order of the host's monotonic clock."""

        def of(process: Process) -> Iterator[tuple[int, Process, Event]]:
            for ns, event in _timed(process.events(kinds)):
                yield ns, process, event

        for _, process, event in heapq.merge(*map(of, self.processes), key=lambda item: item[0]):
            yield process, event

    def _read_run(self) -> dict[str, Any]:
        try:
            found = json.loads((self.folder / RUN_FILE).read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def join_passes(sessions: Sequence[Session]) -> list[tuple[Process, ...]]:
    """Return the processes of several passes that belong together, after comparing their launches.

    Passes are joined on the launch index, so names and counts must be equal. Raises SessionError
    that says which launch differs first.
    """
    counts = [len(session.processes) for session in sessions]
    if len(set(counts)) > 1:
        raise SessionError(
            f"the passes have {', '.join(map(str, counts))} processes with events, so they cannot "
            "be joined; the program must do the same in every pass"
        )
    groups = list(zip(*(session.processes for session in sessions), strict=True))
    for first, *others in groups:
        for number, other in enumerate(others, 2):
            _compare(first, other, number)
    return groups


def _compare(first: Process, other: Process, number: int) -> None:
    for left, right in zip_longest(first.launch_names(), other.launch_names()):
        if left is None or right is None:
            longer, pass_number = (right, number) if left is None else (left, 1)
            assert longer is not None
            raise SessionError(
                f"process {first.label}: launch {longer[0]} '{longer[1]}' is in pass {pass_number} "
                "alone; the program must do the same in every pass"
            )
        if left != right and not _spelled_differently(left, right):
            raise SessionError(
                f"process {first.label}: launch {left[0]} is '{left[1]}' in pass 1, and launch "
                f"{right[0]} is '{right[1]}' in pass {number}; the program must do the same in "
                "every pass"
            )


def _spelled_differently(left: tuple[int, str], right: tuple[int, str]) -> bool:
    """Whether one source gave a mangled name and the other did not, so that nothing can be said."""
    return left[0] == right[0] and left[1].startswith("_Z") != right[1].startswith("_Z")


def _timed(events: Iterator[Event]) -> Iterator[tuple[int, Event]]:
    """Pair events with a time that never goes back, so that a merge keeps the log's own order."""
    latest = 0
    for event in events:
        latest = max(latest, event.ns)
        yield latest, event


def _images(readers: list[LogReader]) -> list[list[LogReader]]:
    """Split one process' logs by the programs that it ran: each has at most one log of launches.

    Launches count from 0 in every program, so those of two must not be mixed.
    """
    readers = sorted(readers, key=lambda reader: (reader.start_ns, reader.path))
    if len(readers) == 1:
        return [readers]
    groups: list[list[LogReader]] = [[]]
    launches = False
    for reader in readers:
        has_launches = next(reader.events([Launch]), None) is not None
        if has_launches and launches:
            groups.append([])
        launches = launches or has_launches
        groups[-1].append(reader)
    return groups


def _pid_of(path: Path) -> int:
    digits = path.stem.split("-", 1)[1].split("-")[0].split(".")[0]
    return int(digits) if digits.isdigit() else 0

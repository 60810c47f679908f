"""From what the collector's tools leave in a folder to numbers that our records hold.

Reads `working-set.csv`, `memory-timeline.csv`, `access-counts.csv`, `hotness-<pid>.npz` and
`records.jsonl`, as the tools of images/collector write them. All errors are RunFailed, with one
sentence. Sizes are bytes there and here.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pasta_workloads.errors import RunFailed
from pasta_workloads.target import REGION

WITHOUT_TENSORS = 0.02  # the share of kernels that may work on a library's own memory alone


@dataclass(frozen=True)
class Launch:
    """One analysed launch. `ws` is tensors and what was touched outside of them."""

    kernel: str
    ws: int
    ws_tensor: int
    ws_object: int
    footprint: int

    @property
    def short(self) -> str:
        """The name as Figure 7 shows it."""
        return short_name(self.kernel)


@dataclass
class Timeline:
    """Bytes after each event, and each event's change."""

    allocated: list[int] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Heat:
    """Accesses per 2 MiB block (rows) and window (columns)."""

    counts: NDArray[np.float64]
    window: int


def short_name(name: str) -> str:
    """A kernel's name without `void `, up to the first `<`."""
    return name.removeprefix("void ").split("<", 1)[0].strip() or "(nameless)"


def launches_of(folder: Path) -> list[Launch]:
    """The launches of the measured iterations, in order; all launches where none has a region."""
    rows = _table(folder / "working-set.csv")
    if any(row["region"] for row in rows):
        rows = [row for row in rows if row["region"] == REGION]
    if not rows:
        raise RunFailed("no launch of the iteration was analysed: did the collector reach the GPU?")
    return [_launch(row) for row in rows]


def iterations_of(folder: Path) -> dict[int, list[Launch]]:
    """The launches that were analysed or inferred of each iteration; iterations count from 0."""
    from accel_trace.events import Iteration
    from accel_trace.events import Launch as Launched
    from accel_trace.session import Session

    known = {_whole(row, "launch"): _launch(row) for row in _table(folder / "working-set.csv")}
    found: dict[int, list[Launch]] = {}
    for process in Session(folder).processes:
        inside: int | None = None
        for event in process.events((Iteration, Launched)):
            if isinstance(event, Iteration):
                inside = event.iteration if event.began else None
            elif inside is not None:
                assert isinstance(event, Launched)
                launches = found.setdefault(inside, [])
                launches += [known[event.launch]] if event.launch in known else []
    return found


def timelines_of(folder: Path) -> dict[tuple[str, str], Timeline]:
    """Timelines by device and level (tensor or object), processes put one after another."""
    found: defaultdict[tuple[str, str], Timeline] = defaultdict(Timeline)
    for row in _table(folder / "memory-timeline.csv"):
        line = found[row["device"], row["level"]]
        line.allocated.append(_whole(row, "allocated"))
        line.changes.append(_whole(row, "change"))
    if not found:
        raise RunFailed("the collector saw no allocation on a GPU")
    return dict(found)


def heat_of(folder: Path) -> Heat:
    """The heat of the one process that accessed anything."""
    paths = sorted(folder.glob("hotness-*.npz"))
    if len(paths) != 1:
        raise RunFailed(f"{len(paths)} processes have a heat map, expected 1 in {folder}")
    try:
        with np.load(paths[0]) as found:
            return Heat(np.asarray(found["counts"], dtype=float), int(found["window"]))
    except (OSError, ValueError, KeyError) as error:
        raise RunFailed(f"{paths[0].name} cannot be read: {error}") from error


def counts_of(folder: Path) -> dict[str, list[dict[str, int]]]:
    """Exact counts of every launch, by short kernel name."""
    found: defaultdict[str, list[dict[str, int]]] = defaultdict(list)
    for row in _table(folder / "access-counts.csv"):
        counters = [name for name in row if name not in ("process", "launch", "kernel")]
        found[short_name(row["kernel"])].append({name: _whole(row, name) for name in counters})
    return dict(found)


def stages_of(folder: Path) -> dict[str, float]:
    """Seconds of collection, transfer and analysis, as the collector timed itself."""
    stages = {
        record["labels"]["stage"]: float(sum(record["samples"]))
        for record in records_of(folder, "stage_time")
        if record["labels"].get("stage") != "execution"
    }
    if missing := [s for s in ("collection", "transfer", "analysis") if s not in stages]:
        raise RunFailed(f"the collector timed no {', '.join(missing)}")
    return stages


def records_of(folder: Path, metric: str) -> list[dict[str, Any]]:
    """The tool's own records of one metric, as records.jsonl has them."""
    path = folder / "records.jsonl"
    try:
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [record for record in found if record["metric"] == metric]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFailed(f"{path} cannot be read: {error}") from error


def check_whole(folder: Path) -> None:
    """Raise RunFailed when the collector says that its log is not whole: no number would hold."""
    for metric in ("damaged_logs", "dropped_events"):
        lost = sum(sum(record["samples"]) for record in records_of(folder, metric))
        if lost:
            raise RunFailed(f"the collector's log is not whole: {lost:.0f} {metric} in {folder}")


def check_followed(folder: Path) -> None:
    """Raise RunFailed where a working set would be silently wrong.

    That is: launches of the iteration that were not analysed, or kernels that touched no tensor,
    as where tensors were not followed and only whole segments of the allocator are known.
    """
    total, analysed = region_launches(folder)
    if analysed != total:
        raise RunFailed(f"{total - analysed} of {total} launches were not analysed, in {folder}")
    launches = launches_of(folder)
    without = [launch.short for launch in launches if launch.ws_tensor == 0]
    if len(without) > len(launches) * WITHOUT_TENSORS:
        raise RunFailed(
            f"{len(without)} of {len(launches)} kernels touched no tensor, as {without[0]}: "
            f"were tensors followed? See the collector's notes in {folder}"
        )


def own_memory(folder: Path) -> float:
    """Bytes of GPU memory that the collector took for itself, at most. Raises RunFailed."""
    sizes = [sum(record["samples"]) for record in records_of(folder, "device_bytes")]
    if not sizes:
        raise RunFailed(f"the collector does not say how much memory it took, in {folder}")
    return float(sum(sizes))


def region_launches(folder: Path) -> tuple[int, int]:
    """Launches inside the measured region, and how many of them were analysed."""
    from accel_trace.events import Launch as Launched
    from accel_trace.session import Session

    total = analysed = 0
    for process in Session(folder).processes:
        for event in process.events([Launched]):
            assert isinstance(event, Launched)
            if event.region == REGION:
                total += 1
                analysed += event.analysed in (1, 2)
    return total, analysed


def _table(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise RunFailed(f"the collector left no {path.name}: {error.strerror}") from error


def _launch(row: dict[str, str]) -> Launch:
    sizes = (_whole(row, name) for name in ("ws", "ws_tensor", "ws_object", "footprint"))
    return Launch(row["kernel"], *sizes)


def _whole(row: dict[str, str], name: str) -> int:
    try:
        return int(row[name])
    except (KeyError, TypeError, ValueError):
        raise RunFailed(f"the collector's table has no whole number '{name}': {row}") from None

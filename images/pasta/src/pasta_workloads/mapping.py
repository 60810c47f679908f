"""From what the collector's tools leave in a folder to numbers that our records hold.

Reads `working-set.csv`, `memory-timeline.csv`, `access-counts.csv`, `hotness-<pid>.npz` and
`records.jsonl`, as the tools of images/collector write them. All errors are RunFailed, with one
sentence. Sizes are bytes there and here.
"""

from __future__ import annotations

import csv
import json
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pasta_workloads.errors import RunFailed
from pasta_workloads.target import REGION

if TYPE_CHECKING:
    from accel_trace.tools.launch_sets import LaunchSet

WITHOUT_TENSORS = 0.02  # the share of kernels that may work on a library's own memory alone


@dataclass(frozen=True)
class Launch:
    """One analysed launch. `ws` is tensors and what was touched outside of them.

    `described` where it got tensor maps (TMA), whose tensors it is taken to touch; `unseen` where
    it copies by tensor maps of which none was found.
    """

    kernel: str
    ws: int
    ws_tensor: int
    ws_object: int
    footprint: int
    described: bool = False
    unseen: bool = False

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
    columns = ("kernel", "region", "by_descriptor", "not_seen")
    rows = _table(folder / "working-set.csv", *columns)
    if any(row["region"] for row in rows):
        rows = [row for row in rows if row["region"] == REGION]
    if not rows:
        raise RunFailed("no launch of the iteration was analysed: did the collector reach the GPU?")
    return [_launch(row) for row in rows]


def checks_of(folder: Path) -> list[tuple[list[Launch], list[Launch]]]:
    """Of each iteration that was analysed again: its launches as inferred, and as analysed.

    A launch that could not be inferred is missing among the first ones. Raises RunFailed where the
    result of an analysed launch is lost.
    """
    from accel_trace.events import Iteration
    from accel_trace.events import Launch as Launched
    from accel_trace.session import Session
    from accel_trace.tools.inferred import infer
    from accel_trace.tools.launch_sets import launch_sets

    found: list[tuple[list[Launch], list[Launch]]] = []
    for process in Session(folder).processes:
        sets = launch_sets(process)
        if sets.lost:
            raise RunFailed(f"{sets.lost} analysed launches have no result, in {folder}")
        exact = {row.launch.launch: _of(row) for row in sets.rows}
        inferred = {row.launch.launch: _of(row) for row in infer(process, sets).checks}
        numbers: list[list[int]] = []
        inside = False
        for event in process.events((Iteration, Launched)):
            if isinstance(event, Iteration):
                inside = bool(event.began and event.analysed)
                numbers += [[]] if inside else []
            elif inside:
                assert isinstance(event, Launched)
                numbers[-1].append(event.launch)
        for part in numbers[1:]:
            in_order = [[known[n] for n in part if n in known] for known in (inferred, exact)]
            found.append((in_order[0], in_order[1]))
    return found


def timelines_of(folder: Path) -> dict[tuple[str, str], Timeline]:
    """Timelines by device and level (tensor or object), processes put one after another."""
    found: defaultdict[tuple[str, str], Timeline] = defaultdict(Timeline)
    for row in _table(folder / "memory-timeline.csv", "device", "level"):
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
    # Opened here: numpy leaves a file open that is no archive.
    with _reading(paths[0]), paths[0].open("rb") as file, np.load(file) as found:
        return Heat(np.asarray(found["counts"], dtype=float), int(found["window"]))


def counts_of(folder: Path) -> dict[str, list[dict[str, int]]]:
    """Exact counts of every launch, by short kernel name."""
    found: defaultdict[str, list[dict[str, int]]] = defaultdict(list)
    for row in _table(folder / "access-counts.csv", "kernel"):
        counters = [name for name in row if name not in ("process", "launch", "kernel")]
        found[short_name(row["kernel"])].append({name: _whole(row, name) for name in counters})
    return dict(found)


def stages_of(folder: Path) -> dict[str, float]:
    """Seconds of collection, transfer and analysis, as the collector timed itself."""
    stages = {
        record["labels"]["stage"]: float(sum(record["samples"]))
        for record in records_of(folder, "stage_time")
        if record["labels"].get("stage") not in (None, "execution")
    }
    if missing := [s for s in ("collection", "transfer", "analysis") if s not in stages]:
        raise RunFailed(f"the collector timed no {', '.join(missing)}")
    return stages


def records_of(folder: Path, metric: str) -> list[dict[str, Any]]:
    """The tool's own records of one metric, as records.jsonl has them."""
    path = folder / "records.jsonl"
    with _reading(path):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        found = [record for record in lines if record["metric"] == metric]
        for record in found:
            float(sum(record["samples"]))
            if not isinstance(record["labels"], dict):
                raise TypeError("the labels of a record are no object")
        return found


def check_whole(folder: Path) -> None:
    """Raise RunFailed when the collector says that its log is not whole: no number would hold."""
    for metric in ("damaged_logs", "dropped_events"):
        found = records_of(folder, metric)
        if not found:
            raise RunFailed(f"the collector does not say {metric} in {folder / 'records.jsonl'}")
        lost = sum(sum(record["samples"]) for record in found)
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
    check_tensors(launches_of(folder), folder)


def check_tensors(launches: Sequence[Launch], folder: Path) -> None:
    """Raise RunFailed where kernels touched no tensor, as where tensors were not followed."""
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


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns what a missing, cut or altered file raises into RunFailed with its path."""
    try:
        yield
    except (
        OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError, csv.Error,
        zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        words = " ".join(str(error).split())
        raise RunFailed(f"{path} cannot be read: {type(error).__name__}: {words}") from error


def _table(path: Path, *columns: str) -> list[dict[str, str]]:
    """The rows, which have the `columns`; what a cut one lacks is empty."""
    if not path.exists():
        raise RunFailed(f"the collector left no {path.name} in {path.parent}")
    with _reading(path), path.open(newline="", encoding="utf-8") as file:
        table = csv.DictReader(file, restval="")
        if missing := set(columns).difference(table.fieldnames or ()):
            raise ValueError(f"it has no column {min(missing)}")
        return list(table)


def _of(row: LaunchSet) -> Launch:
    return Launch(row.name, row.ws, row.ws_tensor, row.ws_object, row.footprint)


def _launch(row: dict[str, str]) -> Launch:
    ws, tensor, driver, footprint = (
        _whole(row, name) for name in ("ws", "ws_tensor", "ws_object", "footprint")
    )
    described, unseen = bool(row["by_descriptor"]), bool(row["not_seen"])
    return Launch(row["kernel"], ws, tensor, driver, footprint, described, unseen)


def _whole(row: dict[str, str], name: str) -> int:
    try:
        return int(row[name])
    except (KeyError, TypeError, ValueError):
        raise RunFailed(f"the collector's table has no whole number '{name}': {row}") from None

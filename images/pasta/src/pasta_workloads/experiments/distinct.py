"""Ours: many iterations at the cost of few.

One in N is analysed, and the launches of the others are inferred from it. Every cell of Table V of
iterations that are analysed again is compared with what is inferred of the same iterations: in the
run that is timed, and in one with more of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from reprokit.progress import Progress
from reprokit.records import RecordWriter

from pasta_workloads.collector import (
    require_collector,
    require_gpus,
    run_alone,
    run_traced,
    target,
)
from pasta_workloads.config import Config
from pasta_workloads.errors import RunFailed
from pasta_workloads.mapping import Launch, check_tensors, checks_of, records_of
from pasta_workloads.oracle.statistics import MIB, STATS, statistics
from pasta_workloads.turns import write_turns

ITERATIONS = 100
CHECKS = 10  # one iteration in so many is analysed in the run that is not timed
COUNTS = ("inferred", "unmatched", "partly_known", "checked", "unchecked", "mismatches")
UNITS = {"kernels": "launches", "partly_known": "iterations"}


def run(config: Config, out: RecordWriter) -> None:
    """Three processes a turn and mode: alone, with launches inferred, and with more checks."""
    if config.device == "cpu":
        from reprokit.skip import cannot_run

        cannot_run("distinct patches GPU kernels and needs a GPU; fix: --device cuda")
    require_gpus()
    require_collector()
    progress = Progress(len(config.modes) * config.repeats)
    for mode in config.modes:
        labels = {"model": config.model, "mode": mode}
        if config.scale != "full":
            labels["size"] = config.scale
        slowdowns, counts, notes, differences = [], [], [], []
        for repeat in range(config.repeats):
            folder = out.out_dir / "traces" / f"{config.model}-{mode}-{repeat}"
            slowdowns.append(_slowdown(config, mode, folder))
            more = folder.with_name(f"{folder.name}-checks")
            _checked(config, mode, more)
            counts.append({name: count_of([folder, more], name) for name in COUNTS})
            notes.append({name: note_of([folder, more], name) for name in COUNTS})
            checks = checks_of(folder) + checks_of(more)
            found = compare(checks)
            check_tensors(checks[0][1], folder)
            differences.append(found)
            off = sum(map(bool, found.values()))
            progress.step(f"{config.model} {mode}: {slowdowns[-1]:.2f} times, {off} cells differ")
        write_turns(out, "slowdown", "x", slowdowns, labels | {"variant": "distinct"})
        for name in COUNTS:
            unit = UNITS.get(name, "launches")
            told = "; ".join(note for one in notes if (note := one[name]))
            write_turns(out, name, unit, [one[name] for one in counts], labels, note=told or None)
        write(differences, labels, out)


def _slowdown(config: Config, mode: str, folder: Path) -> float:
    """Time of all iterations with the others inferred, over that of the program alone."""
    command = target(config, mode, iterations=max(config.iterations, ITERATIONS))
    alone = run_alone(command, folder.with_name(f"{folder.name}-alone"), config.patience)
    options = ("--distinct", str(config.distinct))
    ran = run_traced(
        "working_set", folder, command, {"variant": "gpu"}, config.patience, options=options
    )
    return sum(ran.iterations) / sum(alone.iterations)


def _checked(config: Config, mode: str, folder: Path) -> None:
    """The same with more iterations that are analysed again; nothing of it is timed."""
    command = target(config, mode, iterations=max(config.iterations, ITERATIONS))
    options = ("--distinct", str(CHECKS))
    run_traced("working_set", folder, command, {"variant": "gpu"}, config.patience, options=options)


def count_of(folders: Sequence[Path], name: str) -> float:
    """One of the tool's own counts, over all processes of some runs."""
    found = [record for folder in folders for record in records_of(folder, name)]
    return float(sum(sum(record["samples"]) for record in found))


def note_of(folders: Sequence[Path], name: str) -> str | None:
    """What the tool says beside a count: which launches, and why, or which iterations."""
    found = [record.get("note") for folder in folders for record in records_of(folder, name)]
    return "; ".join(filter(None, found)) or None


def cells(launches: list[Launch]) -> dict[str, float]:
    """The cells of a row of Table V; MiB, and launches."""
    found = {"kernels": float(len(launches))}
    found["footprint"] = float(np.mean([one.footprint / MIB for one in launches]))
    return found | statistics([one.ws / MIB for one in launches])


def compare(checks: Sequence[tuple[list[Launch], list[Launch]]]) -> dict[str, float]:
    """Return how far each cell is off in the iteration where it is farthest.

    Both of a pair are of one iteration of one process. Others are no measure of the inference: what
    an allocator holds, and the sizes of its blocks, change from one iteration to the next, and so
    do cells by exact analysis. Raises RunFailed where no iteration was analysed again.
    """
    if not checks:
        raise RunFailed("no iteration was analysed again: did the program end before?")
    if not all(inferred and exact for inferred, exact in checks):
        raise RunFailed("an iteration has no launch that was inferred: see the collector's report")
    rows = [(cells(inferred), cells(exact)) for inferred, exact in checks]
    return {name: max(abs(row[name] - exact[name]) for row, exact in rows) for name in rows[0][0]}


def write(differences: list[dict[str, float]], labels: dict[str, str], out: RecordWriter) -> None:
    """One record a cell and turn, and how many cells differ."""
    for cell in ("kernels", "footprint", *STATS):
        write_turns(
            out, "cell_difference", UNITS.get(cell, "MiB"), [one[cell] for one in differences],
            labels | {"cell": cell}, note="of the checked iteration that is farthest off",
        )  # fmt: skip
    off = [sum(value != 0 for value in one.values()) for one in differences]
    write_turns(out, "cells_that_differ", "cells", off, labels)

"""Ours: many iterations at the cost of few.

One in N is analysed, the launches of the others are inferred from it, and every cell of Table V is
compared with the exact analysis of a later iteration.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from pasta_workloads.mapping import (
    Launch,
    check_followed,
    iterations_of,
    launches_of,
    records_of,
)
from pasta_workloads.oracle.statistics import MIB, STATS, statistics
from pasta_workloads.turns import write_turns

ITERATIONS = 100
SETTLED = 2  # the first iteration makes memory, the second one is what the others are inferred from
COUNTS = ("inferred", "unmatched", "checked", "mismatches")
UNITS = {"kernels": "launches"}


def run(config: Config, out: RecordWriter) -> None:
    """Three processes a turn and mode: alone, with launches inferred, and one iteration exactly."""
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
        slowdowns, counts, differences = [], [], []
        for repeat in range(config.repeats):
            folder = out.out_dir / "traces" / f"{config.model}-{mode}-{repeat}"
            slowdowns.append(_slowdown(config, mode, folder))
            counts.append({name: count_of(folder, name) for name in COUNTS})
            found = compare(iterations_of(folder), _exact(config, mode, folder))
            differences.append(found)
            off = sum(map(bool, found.values()))
            progress.step(f"{config.model} {mode}: {slowdowns[-1]:.2f} times, {off} cells differ")
        write_turns(out, "slowdown", "x", slowdowns, labels | {"variant": "distinct"})
        for name in COUNTS:
            write_turns(out, name, "launches", [one[name] for one in counts], labels)
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


def _exact(config: Config, mode: str, folder: Path) -> list[Launch]:
    """The launches of an iteration, all analysed, after as many as are left out of the others."""
    folder = folder.with_name(f"{folder.name}-exact")
    command = target(config, mode, iterations=1, warmup=SETTLED)
    run_traced("working_set", folder, command, {"variant": "gpu"}, config.patience)
    check_followed(folder)
    return launches_of(folder)


def count_of(folder: Path, name: str) -> float:
    """One of the tool's own counts, over all processes."""
    return float(sum(sum(record["samples"]) for record in records_of(folder, name)))


def cells(launches: list[Launch]) -> dict[str, float]:
    """The cells of a row of Table V; MiB, and launches."""
    found = {"kernels": float(len(launches))}
    found["footprint"] = float(np.mean([one.footprint / MIB for one in launches]))
    return found | statistics([one.ws / MIB for one in launches])


def compare(iterations: Mapping[int, list[Launch]], exact: list[Launch]) -> dict[str, float]:
    """Return how far each cell is from the exact one in the iteration where it is farthest.

    Raises RunFailed where no iteration was inferred.
    """
    wanted = cells(exact)
    settled = [launches for number, launches in iterations.items() if number >= SETTLED]
    if not settled:
        raise RunFailed("no iteration was inferred: did the program end before one was analysed?")
    if not all(settled):
        raise RunFailed("an iteration has no launch that was inferred: see the collector's report")
    rows = [cells(launches) for launches in settled]
    return {name: max(abs(row[name] - value) for row in rows) for name, value in wanted.items()}


def write(differences: list[dict[str, float]], labels: dict[str, str], out: RecordWriter) -> None:
    """One record a cell and turn, and how many cells differ."""
    for cell in ("kernels", "footprint", *STATS):
        write_turns(
            out, "cell_difference", UNITS.get(cell, "MiB"), [one[cell] for one in differences],
            labels | {"cell": cell}, note="of the inferred iteration that is farthest off",
        )  # fmt: skip
    off = [sum(value != 0 for value in one.values()) for one in differences]
    write_turns(out, "cells_that_differ", "cells", off, labels)

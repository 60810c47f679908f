"""What looking costs the mini-benchmarks: each `before`, alone and under the value tools.

The levels take turns, a process each. The time of a run is that of its kernels, copies and fills,
with all that the tool does meanwhile.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from reprokit.progress import Progress
from reprokit.records import RecordWriter
from reprokit.skip import cannot_run

from valueexpert.catalog import MINIS
from valueexpert.cli import Config
from valueexpert.experiments.gains import program
from valueexpert.levels import LEVELS, library, measure


def run(config: Config, out: RecordWriter, levels: Sequence[str] = tuple(LEVELS)) -> None:
    """The minis that are named."""
    if config.device != "cuda":
        cannot_run("slowdowns are measured on a GPU")
    built, progress = library(), Progress(len(config.minis))
    with tempfile.TemporaryDirectory() as work:
        for name in config.minis:
            mini = MINIS[name]
            size = mini.full if config.size == "full" else mini.quick
            command: list[str | Path] = [program(mini, Path(work)), "before", str(size)]
            labels = {"mini": name}
            measure(command, config.samples, config.repeats, built, labels, out, levels)
            progress.step(name)

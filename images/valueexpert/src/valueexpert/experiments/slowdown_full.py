"""What looking at copies and fills costs the mini-benchmarks at their full sizes.

The levels that record accesses are left out: of so many most find no room.
"""

from __future__ import annotations

from reprokit.records import RecordWriter

from valueexpert.cli import Config
from valueexpert.experiments import slowdown
from valueexpert.levels import LARGE


def run(config: Config, out: RecordWriter) -> None:
    """The minis that are named, at --size."""
    slowdown.run(config, out, LARGE)

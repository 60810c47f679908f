"""What looking costs a PyTorch training step, of a small transformer, from idle GPU to idle GPU."""

from __future__ import annotations

import importlib.util
import sys

from reprokit.records import RecordWriter
from reprokit.skip import cannot_run

from valueexpert.cli import Config
from valueexpert.levels import library, measure


def run(config: Config, out: RecordWriter) -> None:
    """One program at all levels."""
    if config.device != "cuda":
        cannot_run("slowdowns are measured on a GPU")
    if importlib.util.find_spec("torch") is None:
        cannot_run("PyTorch is not here; fix: use the cuda image, or install torch")
    command = [sys.executable, "-m", "valueexpert.steps"]
    measure(command, config.samples, config.repeats, library(), {}, out)

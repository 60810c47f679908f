"""Figure 9: end to end, RAP beside preprocessing on the CPU, on a stream and under MPS."""

from __future__ import annotations

from collections.abc import Sequence

from reprokit.records import RecordWriter

from rap_training.config import Config
from rap_training.rank import Rank
from rap_training.sessions import run_sessions
from rap_training.throughput import compare


def run(config: Config, out: RecordWriter) -> None:
    """Start the sessions and write their records."""
    run_sessions(config, out, on_rank)


def on_rank(rank: Rank, names: Sequence[str]) -> None:
    """Throughput of the variants `names`, in turns and in random order."""
    compare(rank, names)

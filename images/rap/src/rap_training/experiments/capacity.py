"""How much preprocessing fits beside each training stage."""

from __future__ import annotations

from collections.abc import Sequence

from reprokit.records import RecordWriter

from rap_training.config import Config
from rap_training.planner.capacity import SLOWER
from rap_training.rank import Rank
from rap_training.sessions import run_sessions


def run(config: Config, out: RecordWriter) -> None:
    """Start the sessions and write their records."""
    run_sessions(config, out, on_rank)


def on_rank(rank: Rank, names: Sequence[str]) -> None:
    """Time of every training stage and the preprocessing that fits beside it."""
    tried = {probe.stage: probe.capacity.tried for probe in rank.stage_probes}
    rank.tell("fact", name="tried_slowdowns", value=tried)  # (probes, slowdown), as searched
    for probe in rank.stage_probes:
        labels = {**rank.config.labels, "stage": probe.stage}
        for metric, unit, value in (
            ("stage_time", "us", probe.us),
            ("capacity", "us", probe.capacity_us),
            ("probes", "1", float(probe.capacity.probes)),
        ):
            rank.tell(
                "record", metric=metric, unit=unit, samples=[value], labels=labels,
                note=f"probes of {probe.probe_us:.2f} us, slowdown below {SLOWER:.0%}, times 0.8",
            )  # fmt: skip

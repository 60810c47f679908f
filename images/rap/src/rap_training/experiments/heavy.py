"""As Figure 10, with plans whose preprocessing keeps the GPU as busy as wanted.

Busy time is what kernels take on the GPU, without gaps and copies: unfused preprocessing's over
that of a training step. It is reached by further operators in every chain, found by measuring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reprokit.records import RecordWriter

from rap_training.busy import preprocessing_us, training_us
from rap_training.config import Config
from rap_training.plan.generator import heavier
from rap_training.rank import Rank
from rap_training.sessions import run_sessions
from rap_training.throughput import compare

LOADS = {2: 1.0, 3: 2.0}
CLOSE = 0.05
TRIES = 6
_MOST = 50.0  # times the plan's own operators


@dataclass(frozen=True)
class Try:
    """A plan of `factor` times the operators, and the ratio of busy times that it has."""

    factor: float
    ratio: float


def run(config: Config, out: RecordWriter) -> None:
    """Start the sessions and write their records."""
    run_sessions(config, out, on_rank)


def on_rank(rank: Rank, names: Sequence[str]) -> None:
    """Make the plan as heavy as wanted, then measure the variants `names` in turns."""
    config, start = rank.config, rank.plan
    wanted = config.load or LOADS.get(config.plan, 1.0)
    training = training_us(rank)

    def ratio(factor: float) -> float:
        rank.use(heavier(start, factor))
        found = preprocessing_us(rank) / training
        rank.tell("progress", words=f"{factor:.3f} times the operators: busy ratio {found:.3f}")
        return found

    tries = search(wanted, ratio)
    for number, each in enumerate(tries):
        rank.tell(
            "record", metric="tried_busy_ratio", unit="1", samples=[each.ratio],
            labels={**config.labels, "try": number, "factor": f"{each.factor:.4f}"},
            note=f"the search for {wanted:g}",
        )  # fmt: skip
    last = tries[-1]
    for metric, unit, value in (
        ("busy_ratio", "1", last.ratio),
        ("preprocessing_busy", "us", last.ratio * training),
        ("training_busy", "us", training),
        ("operators", "1", float(len(rank.plan.nodes))),
    ):
        rank.tell(
            "record", metric=metric, unit=unit, samples=[value], labels=config.labels,
            note=f"wanted: {wanted:g}; kernels on the GPU, unfused, without gaps and copies",
        )  # fmt: skip
    compare(rank, names)


def search(wanted: float, ratio: Callable[[float], float]) -> list[Try]:
    """What was tried, the last within CLOSE of `wanted` if any plan found in TRIES is.

    The ratio grows with the operators, nearly in proportion: the next try is on the line through
    the last two (the first: through the origin). Ends at the plan as it is, which is the lightest.
    """
    tries = [Try(1.0, ratio(1.0))]
    while abs(tries[-1].ratio / wanted - 1) > CLOSE and len(tries) < TRIES:
        last = tries[-1]
        before = tries[-2] if len(tries) > 1 else Try(0.0, 0.0)
        slope = (last.ratio - before.ratio) / (last.factor - before.factor)
        if slope <= 0:
            break
        factor = min(_MOST, max(1.0, last.factor + (wanted - last.ratio) / slope))
        if factor in (each.factor for each in tries):
            break
        tries.append(Try(factor, ratio(factor)))
    return tries

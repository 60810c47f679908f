"""Throughput over the ratio of preprocessing to training: where does sharing stop paying?

Plans whose preprocessing takes a wanted share of the training time, found by measuring.

More work: further passes over the plan's features, in whole passes. Less, and in between: a wider
over arch, so that training takes longer beside the same work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from reprokit.records import RecordWriter

from rap_training.config import Config
from rap_training.measure import alone_us, training_us
from rap_training.plan.generator import heavier
from rap_training.plan.graph import Plan
from rap_training.rank import Rank
from rap_training.sessions import run_sessions
from rap_training.sharing.variants import VARIANTS
from rap_training.throughput import measure, tell_shortfall, tell_throughput

_TRIES = 4
_CLOSE = 0.1
_MOST_PASSES = 200
_MOST_WIDER = 16.0


def run(config: Config, out: RecordWriter) -> None:
    """Start the sessions and write their records."""
    steps = len(config.ratios) * len(config.variants) * config.repeats
    run_sessions(config, out, on_rank, steps=steps)


def on_rank(rank: Rank, names: Sequence[str]) -> None:
    """Throughput over the ratio of preprocessing to training: where does sharing stop paying?"""
    for target, plan in plans(rank):
        rank.use(plan)
        share = alone_us(rank, VARIANTS["sequential"]) / training_us(rank)
        rank.labels = {**rank.config.labels, "ratio": f"{target:.2f}"}
        found = measure(rank, names)
        rank.tell(
            "record", metric="measured_ratio", unit="1", samples=[share], labels=rank.labels,
            note="unfused preprocessing by itself over training by itself",
        )  # fmt: skip
        for name, seconds in found.items():
            tell_throughput(rank, name, seconds)
        tell_shortfall(rank, found)


def plans(rank: Rank) -> Iterator[tuple[float, Plan]]:
    """Yield (wanted ratio, plan) for every ratio of the configuration, each searched for anew.

    What was reached is for the caller to measure: it can differ from what was wanted.
    """
    start = rank.plan
    natural = _ratio(rank, start)
    for wanted in rank.config.ratios:
        plan, found = _heavier(rank, start, wanted, natural)
        yield wanted, _wider(rank, plan, wanted, found)


def _heavier(rank: Rank, start: Plan, wanted: float, natural: float) -> tuple[Plan, float]:
    """The fewest passes that reach the ratio, or come close: every pass costs about the same."""
    passes, plan, found = 1, start, natural
    for _ in range(_TRIES):
        if found >= wanted * (1 - _CLOSE) or passes >= _MOST_PASSES:
            break
        more = math.ceil(passes * wanted * (1 - _CLOSE / 2) / found)
        passes = min(_MOST_PASSES, max(passes + 1, more))
        plan = heavier(start, passes)
        found = _ratio(rank, plan)
    return plan, found


def _wider(rank: Rank, start: Plan, wanted: float, found: float) -> Plan:
    """An over arch so wide that training takes longer.

    Time grows at most with the width squared, so steps by the root come close from one side.
    """
    width, plan = 1.0, start
    for _ in range(_TRIES):
        if found <= wanted * (1 + _CLOSE) or width >= _MOST_WIDER:
            break
        width = min(_MOST_WIDER, width * max(1.05, (found / wanted) ** 0.5))
        over = tuple(int(size * width) // 8 * 8 for size in start.over_arch[:-1])
        plan = replace(start, over_arch=(*over, 1))
        found = _ratio(rank, plan)
    return plan


def _ratio(rank: Rank, plan: Plan) -> float:
    rank.use(plan)
    return alone_us(rank, VARIANTS["sequential"]) / training_us(rank)

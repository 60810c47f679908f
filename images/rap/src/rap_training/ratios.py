"""Plans whose preprocessing takes a wanted share of the training time, found by measuring.

More work: further passes over the plan's features. Less: the same work beside a wider over arch,
since a plan cannot do less than its features need.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rap_training.jobs import alone_us, training_us
from rap_training.plan.generator import heavier
from rap_training.plan.graph import Plan
from rap_training.rank import Rank
from rap_training.sharing.variants import VARIANTS

_TRIES = 4
_CLOSE = 0.15
_MOST_PASSES = 200
_MOST_WIDER = 16.0


def plans(rank: Rank) -> Iterator[tuple[float, Plan]]:
    """Yield (wanted ratio, plan) for every ratio of the configuration, each searched for anew."""
    start = rank.plan
    natural = _ratio(rank, start)
    for wanted in rank.config.ratios:
        yield (
            wanted,
            (
                _wider(rank, start, wanted, natural)
                if wanted < natural
                else _heavier(rank, start, wanted, natural)
            ),
        )


def _heavier(rank: Rank, start: Plan, wanted: float, natural: float) -> Plan:
    """Passes until the ratio is reached: every pass costs about the same."""
    passes, found, plan = 1, natural, start
    per_pass = natural
    for _ in range(_TRIES):
        if abs(found / wanted - 1) < _CLOSE:
            break
        more = max(1, min(_MOST_PASSES, passes + round((wanted - found) / per_pass)))
        if more == passes:
            break
        trial = heavier(start, more) if more > 1 else start
        ratio = _ratio(rank, trial)
        if more != passes:
            per_pass = max((ratio - found) / (more - passes), 1e-3)
        passes, found, plan = more, ratio, trial
    return plan


def _wider(rank: Rank, start: Plan, wanted: float, natural: float) -> Plan:
    """An over arch so wide that training takes longer; its time grows between its width and that
    squared."""
    width, found, plan = 1.0, natural, start
    for _ in range(_TRIES):
        if abs(found / wanted - 1) < _CLOSE or width >= _MOST_WIDER:
            break
        width = min(_MOST_WIDER, width * max(1.1, (found / wanted) ** 0.6))
        over = tuple(int(size * width) // 8 * 8 for size in start.over_arch[:-1])
        plan = replace(start, over_arch=(*over, 1))
        found = _ratio(rank, plan)
    return plan


def _ratio(rank: Rank, plan: Plan) -> float:
    rank.use(plan)
    return alone_us(rank, VARIANTS["sequential"]) / training_us(rank)

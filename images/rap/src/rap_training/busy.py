"""How long a GPU is busy with something: its kernels' time by CUPTI, without gaps and copies."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from rap_training.measure import sample, settle
from rap_training.rank import Rank
from rap_training.sharing.preparation import SLOTS
from rap_training.sharing.variants import VARIANTS
from rap_training.timeline import Span, kernels

_COUNT = 5  # iterations looked at


def preprocessing_us(rank: Rank) -> float:
    """Of a batch's unfused preprocessing, on the busiest rank."""
    steps = rank.steps_alone(VARIANTS["sequential"])
    for number in range(SLOTS):
        steps.all(number)

    def work() -> None:
        for number in range(_COUNT):
            steps.launch(number)

    return _busy_us(rank, work, ("preprocess",))


def training_us(rank: Rank) -> float:
    """Of a training step, what ranks send each other included, on the busiest rank."""
    preparation = rank.preparation(VARIANTS["ideal"])
    sample(rank, "ideal", preparation, 1, _COUNT)
    return _busy_us(rank, lambda: sample(rank, "ideal", preparation, 0, _COUNT), ("train", "comm"))


def _busy_us(rank: Rank, work: Callable[[], object], lanes: Collection[str]) -> float:
    """Time an iteration in which a kernel of `lanes` ran; on a CPU, the time that `work` takes."""
    settle(rank.device, rank.collectives)
    if rank.device.type == "cuda":
        busy = covered([span for span in kernels(work) if span.lane in lanes])
    else:
        start = time.perf_counter()
        work()
        busy = 1e6 * (time.perf_counter() - start)
    return rank.collectives.largest(busy / _COUNT, rank.device)


def covered(spans: Sequence[Span]) -> float:
    """Time in us in which at least one of the spans, in order of their start, lasted."""
    total, reached = 0.0, float("-inf")
    for span in spans:
        total += max(0.0, span.end - max(span.start, reached))
        reached = max(reached, span.end)
    return total

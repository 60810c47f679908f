"""How long a GPU is busy with something: its kernels' time by CUPTI, without gaps and copies."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from rap_training.measure import sample, settle
from rap_training.planner.shortfall import Batch
from rap_training.rank import Rank
from rap_training.sharing.preparation import SLOTS
from rap_training.sharing.variants import VARIANTS, Variant
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


def batch_of(rank: Rank, variant: Variant) -> Batch:
    """What a variant keeps busy to make a batch ready, on this rank; all must ask. On a CPU each
    call counts as a kernel."""
    steps = rank.steps_alone(variant)
    for number in range(SLOTS):
        steps.all(number)
    settle(rank.device, rank.collectives)

    def several() -> None:
        for number in range(_COUNT):
            steps.all(number)

    if rank.device.type == "cuda":
        spans = kernels(several)
    else:
        spans = [
            _timed(f"call {at}", call)
            for _ in range(_COUNT)
            for at, call in enumerate(steps.calls[0])
        ]
    busy = {
        lane: covered([span for span in spans if span.lane == lane]) / _COUNT
        for lane in ("preprocess", "copy", "comm")
    }
    own = [span for span in spans if span.lane == "preprocess"]
    # The kernel of a collective also waits: it took as long as on the rank that came last.
    exchange_us = min(rank.collectives.gather(busy["comm"]))
    nothing = Span(lane="preprocess", name="none", start=0.0, end=0.0)
    longest = max(own, key=lambda span: span.end - span.start, default=nothing)
    return Batch(
        busy_us=busy["preprocess"], kernels=len(own) // _COUNT, longest=longest.name,
        longest_us=longest.end - longest.start, copy_us=busy["copy"], exchange_us=exchange_us,
    )  # fmt: skip


def _timed(name: str, call: Callable[[], object]) -> Span:
    start = time.perf_counter()
    call()
    return Span(lane="preprocess", name=name, start=1e6 * start, end=1e6 * time.perf_counter())


def training_us(rank: Rank) -> float:
    """Of a training step, on the busiest rank, without what ranks send each other: such a kernel
    lasts until the last rank is there."""
    preparation = rank.preparation(VARIANTS["ideal"])
    sample(rank, "ideal", preparation, 1, _COUNT)
    return _busy_us(rank, lambda: sample(rank, "ideal", preparation, 0, _COUNT), ("train",))


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

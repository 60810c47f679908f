"""Rounds of interleaved launches on one Bench, for every experiment on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from reprokit.progress import Progress

from dlrm_inference.cuda.bench import Bench
from dlrm_inference.cuda.timing import Captured, Target, interleave

STATE = (
    "tables and batches rotate from launch to launch, variants in an order drawn anew each round; "
    "the L2 holds what launches on other tables left"
)


def with_pin(target: Target) -> Target | None:
    """Return the same launches with the pin inside their event pairs; None where none is queued."""
    if not target.before:
        return None
    both = [_in_turn(pin, gather) for pin, gather in zip(target.before, target.calls, strict=True)]
    return Target(calls=both, outside=target.outside)


def in_graphs(calls: Sequence[Callable[[], object]], size: int, turns: int = 1) -> Target:
    """Return `calls` as CUDA graphs: each has the next `size` of them, `turns` times over.

    A sample is then the time of one graph: of `size * turns` launches between two events.
    """
    starts = range(0, len(calls), size)
    return Target(calls=[Captured(calls[at : at + size], turns) for at in starts])


def in_rounds(
    bench: Bench, targets: Mapping[str, Target], progress: Progress
) -> dict[str, list[float]]:
    """Return the samples (us) of every target by its name; nothing for no target."""
    if not targets:
        return {}
    config = bench.config
    return interleave(
        targets,
        config.samples,
        config.warmup,
        bench.device,
        on_round=lambda _: progress.step(f"{config.experiment} rounds"),
    )


def _in_turn(first: Callable[[], object], second: Callable[[], object]) -> Callable[[], None]:
    def call() -> None:
        first()
        second()

    return call

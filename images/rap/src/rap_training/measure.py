"""The loop that every variant is measured in: one piece of code, whoever makes the batches."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from rap_training.rank import Rank
from rap_training.sharing.lanes import Lane
from rap_training.sharing.preparation import Preparation
from rap_training.sharing.variants import VARIANTS, Variant
from rap_training.train.adapter import AnyTrainer
from rap_training.train.collectives import Collectives

LEAST = 20  # iterations of a sample
_ALONE = 50  # iterations of preprocessing by itself


def train(
    trainer: AnyTrainer, preparation: Preparation, lane: Lane, collectives: Collectives,
    *, warmup: int, iterations: int, barrier: bool = False,
    watch: Callable[[int], object] = lambda _: None,
) -> float:  # fmt: skip
    """Train `warmup + iterations` steps; return the seconds of the latter on the slowest rank.

    The clock starts and stops where all ranks and devices are idle, and nowhere else is there a
    barrier, but with `barrier`, which is how the artifact measures some of its variants. `watch`
    gets every iteration's number.
    """
    device = trainer.device
    trainer.bind(preparation.buffers, preparation.front, whole=not preparation.staged)
    preparation.start(warmup + iterations)
    started = 0.0
    for number in range(warmup + iterations):
        if number == warmup:
            settle(device, collectives)
            started = time.perf_counter()
        watch(number)
        slot = preparation.take(number)
        lane.submit(
            lambda n=number, s=slot: trainer.step(  # type: ignore[misc]
                s, lambda stage: preparation.on_stage(n, stage)
            )
        )
        preparation.done(number)
        if barrier:
            settle(device, collectives)
    settle(device, collectives)
    seconds = time.perf_counter() - started
    preparation.stop()
    trainer.check()
    return collectives.largest(seconds, device)


def settle(device: torch.device, collectives: Collectives) -> None:
    """Wait until this rank's device is idle, then for all ranks."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    collectives.barrier()


def alone_us(rank: Rank, variant: Variant) -> float:
    """Time in us that the preprocessing of a batch takes by itself, launches included."""
    steps = rank.steps_alone(variant)
    lane = rank.lanes(False)[0]
    for number in range(4):
        lane.submit(lambda n=number: steps.all(n))  # type: ignore[misc]
    settle(rank.device, rank.collectives)
    start = time.perf_counter()
    count = min(_ALONE, rank.config.iterations)
    for number in range(count):
        lane.submit(lambda n=number: steps.all(n))  # type: ignore[misc]
    settle(rank.device, rank.collectives)
    return rank.collectives.largest(1e6 * (time.perf_counter() - start) / count, rank.device)


def training_us(rank: Rank) -> float:
    """Time in us of an iteration of `ideal`."""
    preparation = rank.preparation(VARIANTS["ideal"])
    count = min(2 * LEAST, rank.config.iterations)
    seconds = sample(rank, "ideal", preparation, min(LEAST, rank.config.warmup), count)
    return 1e6 * seconds / count


def sample(rank: Rank, name: str, preparation: Preparation, warmup: int, count: int) -> float:
    """Seconds of `count` iterations of a variant, on the slowest rank."""
    variant = rank.run_as(name)
    return train(
        rank.trainer, preparation, rank.lanes(variant.priority)[0], rank.collectives,
        warmup=warmup, iterations=count, barrier=variant.barrier,
    )  # fmt: skip

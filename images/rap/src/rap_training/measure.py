"""The loop that every variant is measured in: one piece of code, whoever makes the batches."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from rap_training.sharing.lanes import Lane
from rap_training.sharing.preparation import Preparation
from rap_training.train.adapter import AnyTrainer
from rap_training.train.collectives import Collectives


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
    trainer.bind(preparation.buffers)
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

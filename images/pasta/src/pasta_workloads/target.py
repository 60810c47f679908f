"""The program that the collector profiles: one model, warm-up iterations, then measured ones.

Measured iterations stand inside `region("iteration")`, warm-ups inside `region("warmup")`. Weights,
batch and checkpoint are made before, in no region; but where loading is counted, it is in the
first. The paper's scripts have no warm-up, and neither is there one by default: the first iteration
is the one that Table V counts. An iteration's time ends when the collector, where there is one, has
brought down all that it found.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext

import torch

from pasta_workloads.pinned import pin_torch
from pasta_workloads.workload import build

REGION = "iteration"


def region(name: str) -> AbstractContextManager[object]:
    """The collector's region, or nothing where the collector is not installed."""
    try:
        from accel_trace.region import region as mark
    except ModuleNotFoundError:
        return nullcontext()
    found: AbstractContextManager[object] = mark(name)
    return found


def flush() -> None:
    """Wait for the collector, where there is one: its analysis is part of what it costs."""
    try:
        from accel_trace.region import flush as collect
    except ModuleNotFoundError:
        return
    collect()


def run_model(
    model: str, mode: str, size: str, device: str, *, iterations: int, warmup: int, seed: int
) -> list[float]:
    """Run and return every measured iteration's seconds, from idle device to idle device.

    Each is printed as `iteration N took S s`.
    """
    pin_torch()
    workload = build(model, mode, size, device, seed)
    if workload.load is not None:
        with region(REGION):
            workload.load()
    seconds = []
    for number in range(-warmup, iterations):
        with region(REGION if number >= 0 else "warmup"):
            wait(device)
            start = time.perf_counter()
            found = workload.iteration()
            wait(device)
            flush()
            took = time.perf_counter() - start
        del found
        if number >= 0:
            seconds.append(took)
            print(f"iteration {number} took {took:.9f} s", flush=True)
    return seconds


def wait(device: str) -> None:
    """Wait until the device has done all that it was given."""
    if device == "cuda":
        torch.cuda.synchronize()

"""CPU timing: variants take turns sample by sample, so that drift of the machine hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

Key = TypeVar("Key")


def interleave(
    calls: Mapping[Key, Callable[[int], float]],
    samples: int,
    warmup: int,
    on_round: Callable[[int], None] | None = None,
) -> dict[Key, list[float]]:
    """Run every call `warmup + samples` times, round-robin, and return the kept samples of each.

    A call gets the round's number, counted from 0 over warm-up and samples alike, and returns its
    own sample in whatever unit it likes. Every round starts with the next key, so that no key
    always runs behind the same neighbour. `on_round` is told each finished round's number.
    Raises ValueError for `samples` < 1 or `warmup` < 0.
    """
    if samples < 1 or warmup < 0:
        raise ValueError("interleave needs at least one sample and no negative warm-up")
    keys = list(calls)
    kept: dict[Key, list[float]] = {key: [] for key in keys}
    for number in range(warmup + samples):
        shift = number % len(keys) if keys else 0
        for key in keys[shift:] + keys[:shift]:
            sample = calls[key](number)
            if number >= warmup:
                kept[key].append(sample)
        if on_round:
            on_round(number)
    return kept


def microseconds(call: Callable[[], object]) -> float:
    """Run `call` once and return its wall-clock time in microseconds."""
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1000.0

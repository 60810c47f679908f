"""Simulated runs: a process is off by an effect of its own, and its samples spread around that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.random import Generator

from ae.compare.cells import Cell
from ae.compare.decide import Finding, Word
from ae.statistics import Samples

CHANGED = {Word.SLOWER, Word.FASTER}
Effect = Callable[[Generator, int], "np.ndarray[tuple[int], np.dtype[np.float64]]"]


def normal(sd: float) -> Effect:
    return lambda rng, count: rng.normal(0, sd, count)


def two_modes(gap: float) -> Effect:
    """A clock, or a memory layout, that a process has or has not."""
    return lambda rng, count: gap * rng.integers(0, 2, count) + rng.normal(0, 1e-4, count)


def side(rng: Generator, name: str, effects: Sequence[float], scale: float = 1.0) -> Samples:
    return {
        ("host", f"{name}/{index}"): list(10 * scale * np.exp(effect + rng.normal(0, 0.002, 3)))
        for index, effect in enumerate(effects)
    }


def cell(a: Samples, b: Samples, unit: str = "us", **more: object) -> Cell:
    about = {"experiment": "e", "metric": "m", "labels": {}, "unit": unit, "static": False}
    return Cell(**{**about, "a": a, "b": b, **more})  # type: ignore[arg-type]


def table(rng: Generator, effect: Effect, count: int, ratios: Sequence[float]) -> list[Cell]:
    return [
        cell(side(rng, "a", effect(rng, count)), side(rng, "b", effect(rng, count), ratio))
        for ratio in ratios
    ]


def words(findings: Sequence[Finding]) -> Counter[Word]:
    return Counter(one.word for one in findings)

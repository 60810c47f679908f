"""The two ways to add numbers."""

from __future__ import annotations

ROUNDS = {"slow": 8, "fast": 1}


def numbers(dataset: str, size: int, scale: float) -> list[float]:
    """The numbers of a dataset, `size` of them, times `scale`."""
    return [scale * (1.0 if dataset == "ones" else float(i)) for i in range(size)]


def add(variant: str, data: list[float]) -> float:
    """The sum of the data; `slow` takes it eight times."""
    total = 0.0
    for _ in range(ROUNDS[variant]):
        total = sum(data)
    return total

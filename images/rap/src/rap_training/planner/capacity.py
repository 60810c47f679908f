"""How much preprocessing a training stage hides, found by probes (docs/papers/rap.md, 3.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

STAGES = ("emb_fwd", "mlp_fwd", "mlp_bwd", "emb_bwd", "grad_comm")
SLOWER = 0.07  # what a stage may become slower beside the work that it hides
_WINDOW = 2


@dataclass(frozen=True)
class Capacity:
    """Probes that fit beside a stage and the slowdown measured with them (0.05: 5 % slower).

    `tried` holds (probes, slowdown) in the order of the search.
    """

    probes: int
    slowdown: float
    tried: tuple[tuple[int, float], ...]


def search(
    slowdown_of: Callable[[int], float],
    *,
    threshold: float = SLOWER,
    safety: float = 0.8,
    cap: int = 4096,
    repeats: int = 1,
) -> Capacity:
    """Search the most probes that slow a stage down by less than `threshold`.

    `slowdown_of(n)` measures the relative slowdown beside n >= 1 probes. n doubles until the stage
    is too slow or n reaches `cap`, then is bisected to a window of 2; the lower end times `safety`
    is the capacity. Every n is measured `repeats` times (trimmed mean: a fifth is dropped at either
    end). A single spike must not end the search, so "too slow" counts only when a second
    measurement agrees on average, and the result is measured once more and lowered until it holds.
    Raises ValueError for arguments out of range.
    """
    if not (threshold > 0 and 0 < safety <= 1 and cap >= 1 and repeats >= 1):
        raise ValueError(
            f"threshold {threshold}, safety {safety}, cap {cap}, repeats {repeats}; "
            "fix: threshold above 0, safety in (0, 1], cap and repeats at least 1"
        )
    tried: list[tuple[int, float]] = []

    def measure(probes: int) -> float:
        found = trimmed_mean([slowdown_of(probes) for _ in range(repeats)])
        if found >= threshold:
            found = (found + trimmed_mean([slowdown_of(probes) for _ in range(repeats)])) / 2
        tried.append((probes, found))
        return found

    fits, too_many = 0, 1
    while measure(too_many) < threshold:
        fits = too_many
        if fits == cap:
            too_many = cap + 1
            break
        too_many = min(2 * too_many, cap)
    while too_many - fits > _WINDOW:
        middle = (fits + too_many) // 2
        if measure(middle) < threshold:
            fits = middle
        else:
            too_many = middle
    probes, slowdown = int(fits * safety), 0.0
    while probes > 0:
        slowdown = measure(probes)
        if slowdown < threshold:
            break
        probes, slowdown = int(probes * safety), 0.0
    return Capacity(probes, slowdown, tuple(tried))


def trimmed_mean(samples: list[float]) -> float:
    """Return the mean without the lowest and the highest fifth (10 samples: 2 and 2 dropped)."""
    drop = len(samples) // 5
    return fmean(sorted(samples)[drop : len(samples) - drop])

"""How much of a fused kernel fits into the rest of a stage (docs/papers/rap.md, 3.5, step 4)."""

from __future__ import annotations

from collections.abc import Callable


def largest_prefix(us_of: Callable[[int], float], count: int, room_us: float) -> int:
    """Return the largest k in 0..count whose kernel of k operators takes at most `room_us`.

    `us_of(k)` is asked for k >= 1 only: nothing takes no time. A predictor built of trees need not
    rise with k, so a bisection could miss; every k is tried, the largest first, until one fits.
    (The artifact tries count - 1 alone.)
    """
    if count < 0:
        raise ValueError(f"a kernel cannot hold {count} operators; fix: at least 0")
    return next((k for k in range(count, 0, -1) if us_of(k) <= room_us), 0)

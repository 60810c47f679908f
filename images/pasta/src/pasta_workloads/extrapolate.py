"""From one launch in N to all launches: the sound formula, and the paper's.

The paper multiplies the whole time by N, start-up and the plain run included, so that no result can
fall below N (docs/papers/pasta.md, 4.2). Only what profiling added grows with the launches that are
profiled.
"""

from __future__ import annotations


def sound(base: float, sampled: float, total: int, profiled: int) -> float:
    """Seconds if all `total` launches were profiled, from a run that profiled `profiled` of them.

    `base` is the same run without the profiler. It assumes that the launches sampled cost as much
    as the others. Raises ValueError where that cannot be computed.
    """
    if not 0 < profiled <= total:
        raise ValueError(f"{profiled} of {total} launches were profiled: nothing to scale")
    if min(base, sampled) <= 0:
        raise ValueError(f"times must be above 0, not {base} and {sampled}")
    return base + max(sampled - base, 0.0) * total / profiled


def paper(sampled: float, rate: int) -> float:
    """The paper's: the whole time by the rate."""
    if rate < 1 or sampled <= 0:
        raise ValueError(f"a time above 0 and a rate of at least 1, not {sampled} and {rate}")
    return sampled * rate

"""Figure 10: into what one profiled iteration's time falls."""

from __future__ import annotations

from collections.abc import Mapping

PARTS = ("execution", "collection", "transfer", "analysis")


def breakdown(
    native: float, tooled: float, stages: Mapping[str, float], *, iterations: int, threads: int = 1
) -> dict[str, float]:
    """Seconds of every part of one iteration; they add up to `tooled`, unless stages overlap.

    `stages` are the collector's own timers over all `iterations`; transfer and analysis run in
    `threads` threads of the CPU at once, where they do not run in the program's own. Execution is
    the run without the profiler. Collection is what is left: patches and callbacks work inside
    kernels and launches, so that no clock of the collector can see them apart. Where threads
    worked beside the program, less than nothing may be left: then collection is 0. Raises
    ValueError for no iterations or threads.
    """
    if iterations < 1 or threads < 1:
        raise ValueError(f"{iterations} iterations, {threads} threads: at least 1 of both")
    transfer, analysis = (stages[name] / iterations / threads for name in ("transfer", "analysis"))
    collection = max(0.0, tooled - native - transfer - analysis)
    return dict(zip(PARTS, (native, collection, transfer, analysis), strict=True))

"""The five statistics of Table V over launches, and the kernel behind each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from pasta_workloads.oracle.kernels import Kernel

MIB = 2**20
STATS = ("max", "min", "mean", "median", "p90")
_PERCENTILE = {"max": 100, "min": 0, "median": 50, "p90": 90}


def statistics(sizes: Sequence[float]) -> dict[str, float]:
    """max, min, mean, median and p90 (numpy's linear percentile). Raises ValueError for none."""
    if not sizes:
        raise ValueError("there is no kernel to take statistics of")
    values = np.asarray(sizes, dtype=float)
    found = {stat: float(np.percentile(values, rank)) for stat, rank in _PERCENTILE.items()}
    return found | {"mean": float(values.mean())}


def table_row(kernels: Sequence[Kernel]) -> dict[str, float]:
    """The statistics of the kernels' working sets, MiB."""
    return statistics([kernel.working_set / MIB for kernel in kernels])


def behind(kernels: Sequence[Kernel], stat: str) -> list[Kernel]:
    """The kernels whose working set lies nearest to the statistic: one of each name.

    Raises KeyError for the mean, behind which stands no kernel.
    """
    if stat not in _PERCENTILE:
        raise KeyError(stat)
    value = statistics([kernel.working_set for kernel in kernels])[stat]
    nearest = min((kernel.working_set for kernel in kernels), key=lambda size: abs(size - value))
    equal = {k.name: k for k in reversed(kernels) if k.working_set == nearest}
    return list(reversed(equal.values()))


def counts(kernels: Sequence[Kernel]) -> dict[str, int]:
    """Launches by name, most first."""
    return dict(Counter(kernel.name for kernel in kernels).most_common())

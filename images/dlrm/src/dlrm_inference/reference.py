"""The embedding bag in plain numpy: what every kernel must equal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def embedding_bag(
    weight: NDArray[np.floating],
    indices: NDArray[np.integer],
    offsets: NDArray[np.integer],
    accumulate: type[np.floating] = np.float32,
    mode: str = "sum",
) -> NDArray[np.floating]:
    """Return the sums (bags, dim), or means, of each bag's rows, added in the bag's order.

    weight (rows, dim); indices (accesses,); offsets (bags + 1,): bag i is
    indices[offsets[i]:offsets[i + 1]], which may be empty and then sums to zero. With float32 the
    result is bitwise what an in-order fp32 kernel without fused operations must give; pass
    np.float64 for a yardstick to measure other orders against. Raises IndexError for an index
    outside [0, rows), ValueError for offsets that fall and for another mode.
    """
    check_indices(indices, weight.shape[0])
    if (offsets[1:] < offsets[:-1]).any() or mode not in ("sum", "mean"):
        raise ValueError("offsets must rise, and mode is sum or mean")
    lengths = np.diff(offsets)
    sums = np.zeros((len(lengths), weight.shape[1]), dtype=accumulate)
    for position in range(int(lengths.max(initial=0))):
        alive = np.flatnonzero(lengths > position)
        sums[alive] += weight[indices[offsets[alive] + position]].astype(accumulate)
    return mean(sums, offsets) if mode == "mean" else sums


def mean(sums: NDArray[np.floating], offsets: NDArray[np.integer]) -> NDArray[np.floating]:
    """Divide sums (bags, dim) by each bag's length, in place; an empty bag stays zero."""
    sums /= np.maximum(np.diff(offsets), 1)[:, None].astype(sums.dtype)
    return sums


def check_indices(indices: NDArray[np.integer], rows: int) -> None:
    """Raise IndexError naming the first index outside [0, rows) and where it stands."""
    bad = np.flatnonzero((indices < 0) | (indices >= rows))
    if len(bad):
        first = int(bad[0])
        raise IndexError(
            f"index {int(indices[first])} at position {first} is outside 0..{rows - 1}"
        )

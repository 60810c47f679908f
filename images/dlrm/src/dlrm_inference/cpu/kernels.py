"""The embedding-bag kernels for a CPU. Each sums its rows in the bag's own order, in fp32.

All share one signature, `kernel(weight, indices, offsets, first, last, out) -> bad`:
weight (rows, dim) float32, indices (accesses,) and offsets (bags + 1,) of one integer type,
out (bags, dim) float32, all C-contiguous. Bags first <= bag < last are written. `bad` is -1, or the
position of an index outside [0, rows), after which `out` is unspecified. Offsets must have been
checked (rising, within indices). They release the interpreter lock, so threads can share a batch.
"""

# mypy: disable-error-code="call-arg, no-untyped-def"
from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from numba import njit

from dlrm_inference.cpu.vector import LINE_FLOATS, add_rows, prefetch, sum_bag

Kernel = Callable[..., int]
BEST_DISTANCE = (
    32  # rows; from the flat part of a sweep over 8..128 on one server CPU with 2 MiB of L2
)
INTO_L1 = 3

_jit: Any = njit(nogil=True, cache=True)


@_jit
def base(weight, indices, offsets, first, last, out):
    """Plain loops: one row at a time, the bounds check inside the loop (paper: the baseline)."""
    rows, dim = weight.shape
    for bag in range(first, last):
        for column in range(dim):
            out[bag, column] = 0
        for position in range(offsets[bag], offsets[bag + 1]):
            row = indices[position]
            if row < 0 or row >= rows:
                return position
            for column in range(dim):
                out[bag, column] += weight[row, column]
    return -1


@_jit
def first_bad(indices, start, end, rows):
    """Return the first position in [start, end) whose index is outside [0, rows), or -1.

    The first loop has no exit, so it runs on whole vectors.
    """
    bad = False
    for position in range(start, end):
        row = indices[position]
        bad |= (row < 0) | (row >= rows)
    if bad:
        for position in range(start, end):
            if indices[position] < 0 or indices[position] >= rows:
                return position
    return -1


@cache
def rpf(distance: int) -> Kernel:
    """Batched: `distance` independent rows are loaded, then added (paper: RPF).

    The artifact reads past a bag whose length is no multiple of the distance; here the rest of
    a bag goes row by row.
    """

    @_jit
    def kernel(weight, indices, offsets, first, last, out):
        rows, dim = weight.shape
        bad = first_bad(indices, offsets[first], offsets[last], rows)
        if bad >= 0:
            return bad
        for bag in range(first, last):
            for column in range(dim):
                out[bag, column] = 0
            position, end = offsets[bag], offsets[bag + 1]
            while position + distance <= end:
                add_rows(out, bag, weight, indices, position, distance)
                position += distance
            while position < end:
                add_rows(out, bag, weight, indices, position, 1)
                position += 1
        return -1

    return kernel


@cache
def l1dpf(distance: int) -> Kernel:
    """Rolling: row e is added while row e + `distance` of the same bag is prefetched into L1."""

    @_jit
    def kernel(weight, indices, offsets, first, last, out):
        rows, dim = weight.shape
        bad = first_bad(indices, offsets[first], offsets[last], rows)
        if bad >= 0:
            return bad
        for bag in range(first, last):
            for column in range(dim):
                out[bag, column] = 0
            start, end = offsets[bag], offsets[bag + 1]
            for position in range(start, min(start + distance, end)):
                prefetch_row(weight, indices[position], dim)
            for position in range(start, end):
                if position + distance < end:
                    prefetch_row(weight, indices[position + distance], dim)
                add_rows(out, bag, weight, indices, position, 1)
        return -1

    return kernel


@_jit
def prefetch_row(weight, row, dim):
    """Ask for every cache line of one row to be read into L1."""
    start = row * dim
    for column in range(0, dim, LINE_FLOATS):
        prefetch(weight, start + column, INTO_L1)


@cache
def best(dim: int, distance: int = BEST_DISTANCE) -> Kernel:
    """Ours: the sum stays in registers, rows are prefetched into L2 across bag ends, one check."""

    @_jit
    def kernel(weight, indices, offsets, first, last, out):
        stop = offsets[last]
        bad = first_bad(indices, offsets[first], stop, weight.shape[0])
        if bad >= 0:
            return bad
        for bag in range(first, last):
            start, end = offsets[bag], offsets[bag + 1]
            sum_bag(out, bag, weight, indices, start, end, stop, dim, distance)
        return -1

    return kernel

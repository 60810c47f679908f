"""Seeded batches for any plan, shaped like Criteo's logs.

Dense columns are long-tailed counts, as Criteo's integer features are; sparse ones are ids whose
popularity falls off as Zipf's law says, spread over all of int64 as hashed categories are. Every
array has a random stream of its own: a column does not depend on the plan's other columns, and a
shorter batch is the beginning of a longer one of the same seed and number.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from rap_training.data.columns import DataError, Dense, RawBatch, Sparse
from rap_training.plan.graph import Column, Plan
from rap_training.reference import mix

NULL_ID = -(2**62) - 7  # stands where a sparse value is null, NaN where a dense one is
PADDING_ID = -(2**61) - 5
CLICKED = 0.256  # share of Criteo Kaggle's rows with label 1
ZIPF = 1.05
_LARGEST = np.float32(2**24)  # counts up to here are exact in float32


class _Stream(IntEnum):
    VALUES = 0
    NULLS = 1
    LENGTHS = 2
    LABELS = 3


def batches(plan: Plan, *, rows: int, seed: int, count: int, first: int = 0) -> Iterator[RawBatch]:
    """Yield the batches `first` to `first + count - 1`. Raises DataError as `batch` does."""
    return (batch(plan, rows=rows, seed=seed, number=first + index) for index in range(count))


def batch(plan: Plan, *, rows: int, seed: int, number: int = 0) -> RawBatch:
    """Return the batch `number` (>= 0) of `rows` rows of all columns of the plan.

    Raises DataError for fewer than one row, a negative seed or number, and for a sparse column
    that does not say how many ids it has.
    """
    if rows < 1 or seed < 0 or number < 0:
        raise DataError(
            f"cannot generate batch {number} of {rows} rows from seed {seed}; "
            "fix: at least one row, and no negative seed or number"
        )
    key = (seed, number)
    return RawBatch(
        dense={c.name: _dense(c, rows, key) for c in plan.columns if c.kind == "dense"},
        sparse={c.name: _sparse(c, rows, key) for c in plan.columns if c.kind == "sparse"},
        labels=(_random(key, "", _Stream.LABELS).random(rows) < CLICKED).astype(np.float32),
    )


def _random(key: tuple[int, int], name: str, stream: _Stream) -> np.random.Generator:
    return np.random.default_rng([*key, zlib.crc32(name.encode()), stream])


def _valid(column: Column, shape: tuple[int, ...], key: tuple[int, int]) -> NDArray[np.uint8]:
    if not column.null_rate:
        return np.ones(shape, dtype=np.uint8)
    draw = _random(key, column.name, _Stream.NULLS).random(shape, dtype=np.float32)
    return (draw >= np.float32(column.null_rate)).astype(np.uint8)


def _dense(column: Column, rows: int, key: tuple[int, int]) -> Dense:
    scale = np.float32(0.8 + zlib.crc32(column.name.encode()) % 64 / 40)  # 0.8 to 2.4
    draw = _random(key, column.name, _Stream.VALUES).standard_exponential(rows, dtype=np.float32)
    values = np.minimum(np.floor(np.expm1(draw * scale)), _LARGEST)
    valid = _valid(column, (rows,), key)
    values[valid == 0] = np.nan
    return values, valid


def _sparse(column: Column, rows: int, key: tuple[int, int]) -> Sparse:
    if column.ids < 1:
        raise DataError(
            f"column {column.name} does not say how many ids it has; "
            "fix: give the plan's column `ids` of at least 1"
        )
    shape = (rows, column.width)
    ranks = _zipf(_random(key, column.name, _Stream.VALUES), column.ids, shape)
    ranks ^= np.uint64(zlib.crc32(column.name.encode()) << 32)
    ids = mix(ranks).view(np.int64)
    valid = _valid(column, shape, key)
    if column.null_rate:
        ids[valid == 0] = NULL_ID
    if not column.ragged:
        return ids, valid, None
    draw = _random(key, column.name, _Stream.LENGTHS)
    lengths = draw.integers(0, column.width, rows, dtype=np.int32, endpoint=True)
    ids[np.arange(column.width) >= lengths[:, None]] = PADDING_ID
    return ids, valid, lengths


def _zipf(draw: np.random.Generator, count: int, shape: tuple[int, ...]) -> NDArray[np.uint64]:
    """Ranks in [0, count), by inversion of the continuous law: rank r with weight r**-ZIPF."""
    power = 1.0 - ZIPF
    uniform = draw.random(shape)
    uniform *= (count + 1.0) ** power - 1.0
    uniform += 1.0
    np.log(uniform, out=uniform)
    uniform /= power
    np.exp(uniform, out=uniform)
    ranks = uniform.astype(np.uint64)
    ranks -= np.uint64(1)
    return np.minimum(ranks, np.uint64(count - 1), out=ranks)

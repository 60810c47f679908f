"""What every operator of a plan computes, in numpy: the oracle of the kernels, and the CPU backend.

Ids are exact, behind boxcox as well, which is computed in float64 by `exact` and rounded once.
Other floats are computed in float32; behind logit, whose logarithm is the library's, an id may be
another where the value is within 1e-5 of a border. Source of the semantics: docs/papers/rap.md,
2.6; what it leaves open is fixed here:

- sigrid_hash works on unsigned 64-bit words that wrap around; see `sigrid_hash`;
- parameters are rounded to float32 once, before they are applied (a step of one_hot and 1 - eps of
  logit are computed in float64 first); those of fill_null and clamp over ids are truncated toward
  zero and limited to int64 instead (`constant`);
- NaN stays NaN in clamp, logit and boxcox; bucketize puts it into bucket 0 (no border is below
  it), one_hot into bin 0, and a cast to int64 makes it 0;
- a cast to int64 of what int64 cannot hold, infinities included, gives the nearest int64;
- an id outside of map_id's table becomes the id 0, not the table's entry for 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rap_training import exact
from rap_training.data.columns import DataError, RawBatch
from rap_training.plan.graph import Node, Plan
from rap_training.plan.operators import constant

_MIN, _MAX = -(2**63), 2**63 - 1
_WORD = 2**64 - 1
_FNV_BASIS, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
_CITY = 0x9DDFEA08EB382D69
_quiet = np.errstate(all="ignore")  # NaN and infinities are values like others
_BLOCK = 1 << 13  # ids hashed at a time: a block and its scratch stay in the L2 cache


@dataclass(frozen=True, kw_only=True)
class Value:
    """A column or a result. What is behind a row's length is padding, and arbitrary.

    values: float32 or int64 [rows, width]; lengths: int32 [rows], None for fixed width;
    valid: uint8 [rows, width], None for a value that cannot be null.
    """

    values: NDArray[Any]
    lengths: NDArray[np.int32] | None = None
    valid: NDArray[np.uint8] | None = None

    @property
    def width(self) -> int:
        """Elements of the longest row there is room for."""
        return int(self.values.shape[1])

    def mask(self) -> NDArray[np.bool_]:
        """True [rows, width] where an element is none of the padding."""
        if self.lengths is None:
            return np.ones(self.values.shape, dtype=bool)
        return np.arange(self.width) < self.lengths[:, None]

    def elements(self) -> NDArray[Any]:
        """All elements [n], row by row, without the padding: what may be compared."""
        return self.values[self.mask()]


def evaluate(plan: Plan, batch: RawBatch, outputs: Sequence[str] | None = None) -> dict[str, Value]:
    """Return the values of `outputs` (all of the plan's when None) by name.

    Raises DataError when the batch lacks a column that they are made from.
    """
    if outputs is None:
        outputs = (*plan.dense, *(output.node for output in plan.sparse))
    nodes = plan.needed(tuple(outputs))
    columns = {plan.source(name).name for name in outputs}
    values = {name: column_value(batch, name) for name in batch.select(columns).names}
    readers = Counter(node.input for node in nodes) + Counter(outputs)
    for node in nodes:
        values[node.name] = apply(node, values[node.input])
        readers[node.input] -= 1
        if not readers[node.input]:
            del values[node.input]
    return {name: values[name] for name in outputs}


def check_ids(plan: Plan, values: Mapping[str, Value]) -> None:
    """Raise DataError unless all ids of the plan's sparse outputs are within their tables."""
    for output in plan.sparse:
        value = values[output.node]
        wrong = value.mask() & ((value.values < 0) | (value.values >= output.rows))
        if wrong.any():
            row, place = np.argwhere(wrong)[0]
            raise DataError(
                f"plan {plan.name}: {output.node} of row {row} is the id "
                f"{value.values[row, place]}, and its table has {output.rows} rows; "
                "fix: end the chain with sigrid_hash of that modulus, or a larger table"
            )


def column_value(batch: RawBatch, name: str) -> Value:
    """The raw column `name` of a batch as a value with nulls; arrays are not copied."""
    if name in batch.dense:
        values, valid = batch.dense[name]
        return Value(values=values[:, None], valid=valid[:, None])
    ids, valid, lengths = batch.sparse[name]
    return Value(values=ids, valid=valid, lengths=lengths)


def apply(node: Node, value: Value) -> Value:
    """Return the result of one operator. The types are those that the plan has checked."""
    return _APPLY[node.op](value, node.parameters)


def fill_null(values: NDArray[Any], valid: NDArray[np.uint8], value: float) -> NDArray[Any]:
    """Replace elements whose `valid` is 0 by `constant` of the value."""
    return np.where(valid != 0, values, values.dtype.type(constant(values.dtype.name, value)))


@_quiet
def cast(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Convert; float32 to int64 truncates toward zero and saturates, NaN becomes 0."""
    if dtype == "float32" or values.dtype == np.int64:
        return values.astype(dtype)
    known = np.abs(values) < np.float32(2.0**63)  # false for NaN
    result = np.where(known, values, np.float32(0)).astype(np.int64)
    result[values >= np.float32(2.0**63)] = _MAX
    result[values <= np.float32(-(2.0**63))] = _MIN
    return result


def sigrid_hash(ids: NDArray[np.int64], salt: int, modulus: int) -> NDArray[np.int64]:
    """Return hashed ids, int64 of the same shape, each in [0, modulus).

    Thomas Wang's 64-bit mix of the id; FNV-1a 64 over the 8 bytes, low byte first, of the salt and
    of the mixed id; CityHash's Hash128to64 of the two with the salt's hash as the high word; the
    floor-mod of the result, read as signed.
    """
    high = np.uint64(salt_hash(salt))
    flat = np.ascontiguousarray(ids).reshape(-1)
    result = np.empty_like(flat)
    for start in range(0, flat.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        hashed = _combine(_fnv(mix(flat[block].view(np.uint64))), high)
        np.mod(hashed.view(np.int64), np.int64(modulus), out=result[block])
    return result.reshape(ids.shape)


def salt_hash(salt: int) -> int:
    """FNV-1a 64 of the salt's low 8 bytes: what a kernel can be given instead of the salt."""
    word = _FNV_BASIS
    for byte in (salt & _WORD).to_bytes(8, "little"):
        word = ((word ^ byte) * _FNV_PRIME) & _WORD
    return word


def bucketize(values: NDArray[np.float32], borders: Sequence[float]) -> NDArray[np.int64]:
    """Return how many borders are below each value, int64; 0 for NaN."""
    edges = np.asarray(borders, dtype=np.float32)
    found = np.searchsorted(edges, values, side="left").astype(np.int64)
    found[np.isnan(values)] = 0
    return found


@_quiet
def logit(values: NDArray[np.float32], eps: float) -> NDArray[np.float32]:
    """Return ln(p / (1 - p)) with p limited to [eps, 1 - eps]."""
    p = np.clip(values, np.float32(eps), np.float32(1.0 - eps))
    odds: NDArray[np.float32] = p / (np.float32(1) - p)
    return np.log(odds)


@_quiet
def boxcox(values: NDArray[np.float32], lam: float) -> NDArray[np.float32]:
    """Return (x**lam - 1) / lam, or ln x where lam is 0; x that is not above 0 stays as it is."""
    power = float(np.float32(lam))
    finite = (values > 0) & (values < np.inf)
    logs = exact.log(np.where(finite, values, np.float32(1)).astype(np.float64))
    logs = np.where(finite, logs, exact.LOG_OF_INFINITY)
    powers = logs if power == 0 else (exact.exp(power * logs) - 1.0) * (1.0 / power)
    return np.where(values > 0, powers.astype(np.float32), values)


def clamp(values: NDArray[Any], lo: float, hi: float) -> NDArray[Any]:
    """Limit to [lo, hi]."""
    low, high = (values.dtype.type(constant(values.dtype.name, bound)) for bound in (lo, hi))
    return np.clip(values, low, high)


@_quiet
def one_hot(values: NDArray[np.float32], lo: float, hi: float, k: int) -> NDArray[np.float32]:
    """Return k floats per element, [rows, width * k]: 1 in the element's bin, else 0."""
    step = np.float32((hi - lo) / k)
    place = (values - np.float32(lo)) / step
    bins = np.where((place >= 0) & (place < k), place, np.float32(0)).astype(np.int64)
    result = np.zeros((*values.shape, k), dtype=np.float32)
    np.put_along_axis(result, bins[..., None], np.float32(1), axis=-1)
    return result.reshape(values.shape[0], -1)


def map_id(ids: NDArray[np.int64], size: int, seed: int) -> NDArray[np.int64]:
    """Return the table's entry for every id, and 0 for ids outside of [0, size)."""
    known = (ids >= 0) & (ids < size)
    return np.where(known, map_table(size, seed)[np.where(known, ids, 0)], 0)


@lru_cache(maxsize=64)
def map_table(size: int, seed: int) -> NDArray[np.int64]:
    """A permutation of range(size), int64, read-only: numpy's default_rng(seed).permutation."""
    table = np.random.default_rng(seed).permutation(size).astype(np.int64)
    table.flags.writeable = False
    return table


def ngram(value: Value, n: int) -> Value:
    """All windows of min(n, length) consecutive elements of every row, one after the other."""
    width = value.width
    if value.lengths is None:
        windows = np.lib.stride_tricks.sliding_window_view(value.values, min(n, width), axis=1)
        return replace(value, values=windows.reshape(len(value.values), -1))
    lengths = value.lengths
    used = np.minimum(lengths, np.int32(min(n, width)))
    most = min(n, width)
    place = np.arange((width - most + 1) * most, dtype=np.int32)
    window, offset = np.divmod(place, np.maximum(used, 1)[:, None])
    source = np.minimum(window + offset, width - 1)
    return replace(
        value,
        values=np.take_along_axis(value.values, source, axis=1),
        lengths=((lengths - used + 1) * used).astype(np.int32),
    )


def first_x(value: Value, x: int) -> Value:
    """The first x elements of every row, fewer where the row has fewer."""
    lengths = value.lengths
    return replace(
        value,
        values=np.ascontiguousarray(value.values[:, :x]),
        lengths=None if lengths is None else np.minimum(lengths, np.int32(min(x, value.width))),
    )


def mix(ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Thomas Wang's 64-bit mix, a one-to-one map of 64-bit words onto themselves."""
    k = ~ids
    k += ids << np.uint64(21)
    k ^= k >> np.uint64(24)
    k *= np.uint64(1 + (1 << 3) + (1 << 8))
    k ^= k >> np.uint64(14)
    k *= np.uint64(1 + (1 << 2) + (1 << 4))
    k ^= k >> np.uint64(28)
    k += k << np.uint64(31)
    return k


def _fnv(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    result = np.full_like(words, _FNV_BASIS)
    byte = np.empty_like(words)
    for shift in range(0, 64, 8):
        np.right_shift(words, np.uint64(shift), out=byte)
        byte &= np.uint64(0xFF)
        result ^= byte
        result *= np.uint64(_FNV_PRIME)
    return result


def _combine(low: NDArray[np.uint64], high: np.uint64) -> NDArray[np.uint64]:
    low ^= high
    low *= np.uint64(_CITY)
    low ^= low >> np.uint64(47)
    low ^= high
    low *= np.uint64(_CITY)
    low ^= low >> np.uint64(47)
    low *= np.uint64(_CITY)
    return low


_Parameters = Mapping[str, Any]


def _fill(value: Value, given: _Parameters) -> Value:
    assert value.valid is not None
    filled = fill_null(value.values, value.valid, given["value"])
    return Value(values=filled, lengths=value.lengths)


def _each(function: Callable[..., NDArray[Any]]) -> Callable[[Value, _Parameters], Value]:
    """An operator that looks at one element at a time."""
    return lambda value, given: replace(value, values=function(value.values, **given))


def _one_hot(value: Value, given: _Parameters) -> Value:
    lengths = value.lengths
    return Value(
        values=one_hot(value.values, **given),
        lengths=None if lengths is None else lengths * np.int32(given["k"]),
    )


_APPLY: Mapping[str, Callable[[Value, _Parameters], Value]] = {
    "fill_null": _fill,
    "cast": _each(cast),
    "sigrid_hash": _each(sigrid_hash),
    "bucketize": _each(bucketize),
    "logit": _each(logit),
    "boxcox": _each(boxcox),
    "clamp": _each(clamp),
    "one_hot": _one_hot,
    "ngram": lambda value, given: ngram(value, **given),
    "first_x": lambda value, given: first_x(value, **given),
    "map_id": _each(map_id),
}

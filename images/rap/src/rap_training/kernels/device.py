"""What one element of each operator computes, as Triton functions that all kernels share.

The fused kernels of a level (`horizontal`) and the generated kernels of whole chains (`vertical`)
call the same functions, so they cannot disagree. Oracle: `rap_training.reference`.
"""

from __future__ import annotations

import triton
import triton.language as tl

_FNV_OFFSET: tl.constexpr = tl.constexpr(0xCBF29CE484222325)
_FNV_PRIME: tl.constexpr = tl.constexpr(0x100000001B3)
_ONES: tl.constexpr = tl.constexpr(0xFFFFFFFFFFFFFFFF)
_CITY: tl.constexpr = tl.constexpr(0x9DDFEA08EB382D69)


@triton.jit
def fill_null(x, valid, value):
    """x where the mask is set, else the constant."""
    return tl.where(valid != 0, x, value)


@triton.jit
def _mix(k):
    k = (k ^ _ONES) + (k << 21)
    k = k ^ (k >> 24)
    k = k + (k << 3) + (k << 8)
    k = k ^ (k >> 14)
    k = k + (k << 2) + (k << 4)
    k = k ^ (k >> 28)
    return k + (k << 31)


@triton.jit
def _fnv(x):
    h = tl.zeros_like(x) + _FNV_OFFSET
    for byte in tl.static_range(8):
        h = (h ^ ((x >> (8 * byte)) & 0xFF)) * _FNV_PRIME
    return h


@triton.jit
def sigrid_hash(x, salt_hash, modulus):
    """Hash of int64 ids into [0, modulus). `salt_hash` is the FNV-1a hash of the salt."""
    low = _fnv(_mix(x.to(tl.uint64, bitcast=True)))
    high = tl.zeros_like(low) + salt_hash.to(tl.uint64, bitcast=True)
    a = (low ^ high) * _CITY
    a = a ^ (a >> 47)
    b = (high ^ a) * _CITY
    b = b ^ (b >> 47)
    b = (b * _CITY).to(tl.int64, bitcast=True)
    rest = b % modulus
    # The remainder has the sign of the dividend; the operator's has not.
    return tl.where(rest < 0, rest + modulus, rest)


@triton.jit
def bucketize(x, borders, count):
    """How many of `count` ascending borders (pointer to float32) are below x."""
    below = tl.zeros_like(x).to(tl.int64)
    at = 0
    while at < count:  # a loop that Triton's interpreter takes beside NumPy 2.4 as well
        below += (tl.load(borders + at) < x).to(tl.int64)
        at += 1
    return below


@triton.jit
def logit(x, lo, hi):
    """ln(p / (1 - p)) of x clamped to [lo, hi], which are eps and 1 - eps. NaN stays NaN."""
    p = clamp(x, lo, hi)
    return tl.log(p / (1.0 - p))


@triton.jit
def boxcox(x, lam):
    """(x^lam - 1) / lam of positive x, ln x for lam 0; x itself otherwise."""
    positive = tl.where(x > 0, x, 1.0)
    log = tl.log(positive)
    power = (tl.exp(lam * log) - 1.0) / tl.where(lam == 0, 1.0, lam)
    return tl.where(x > 0, tl.where(lam == 0, log, power), x)


@triton.jit
def clamp(x, lo, hi):
    """x held to [lo, hi]. NaN stays NaN."""
    held = tl.where(x < lo, lo, x)
    return tl.where(held > hi, hi, held)


@triton.jit
def to_int(x):
    """float32 to int64 towards zero, held to int64's range; NaN becomes 0."""
    known = tl.where(tl.abs(x) < 9223372036854775808.0, x, 0.0).to(tl.int64)
    known = tl.where(x >= 9223372036854775808.0, 9223372036854775807, known)
    return tl.where(x <= -9223372036854775808.0, -9223372036854775807 - 1, known)


@triton.jit
def one_hot(x, column, lo, step, k):
    """1 where x falls into the bin `column` of k bins from lo on, else 0; outside is bin 0."""
    place = tl.div_rn(x - lo, step)
    inside = (place >= 0) & (place < k)
    found = tl.where(inside, place, 0.0).to(tl.int32)
    return (found == column).to(tl.float32)


@triton.jit
def map_id(x, table, size):
    """table[x] (pointer to int64), 0 for ids outside of it."""
    inside = (x >= 0) & (x < size)
    return tl.load(table + tl.where(inside, x, 0), mask=inside, other=0)


@triton.jit
def ngram_source(j, length, n):
    """Which element of a list is element j of its n-grams."""
    used = tl.maximum(tl.minimum(n, length), 1)
    window = j // used
    return window + (j - window * used)


@triton.jit
def ngram_length(length, n):
    """Elements of the n-grams of a list."""
    used = tl.minimum(n, length)
    return (length - used + 1) * used

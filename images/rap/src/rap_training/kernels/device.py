"""What one element of each operator computes, as Triton functions that all kernels share.

The fused kernels of a level (`horizontal`) and the generated kernels of whole chains (`vertical`)
call the same functions, so they cannot disagree. Oracle: `rap_training.reference`.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from rap_training import exact

_FNV_OFFSET: tl.constexpr = tl.constexpr(0xCBF29CE484222325)
_FNV_PRIME: tl.constexpr = tl.constexpr(0x100000001B3)
_ONES: tl.constexpr = tl.constexpr(0xFFFFFFFFFFFFFFFF)
_CITY: tl.constexpr = tl.constexpr(0x9DDFEA08EB382D69)
FRACTION, ONE = tl.constexpr(exact.FRACTION), tl.constexpr(exact.ONE)
LOG, EXP = tl.constexpr(exact.LOG), tl.constexpr(exact.EXP)
LOG_TERMS, EXP_TERMS = tl.constexpr(len(exact.LOG)), tl.constexpr(len(exact.EXP))
SQRT2, LN2, PER_LN2 = (tl.constexpr(each) for each in (exact.SQRT2, exact.LN2, exact.PER_LN2))
LN2_HIGH, LN2_LOW = tl.constexpr(exact.LN2_HIGH), tl.constexpr(exact.LN2_LOW)
LARGEST, LOG_OF_INFINITY = tl.constexpr(exact.LARGEST), tl.constexpr(exact.LOG_OF_INFINITY)
BEYOND_FLOAT32: tl.constexpr = tl.constexpr(2.0**128 - 2.0**103)  # what rounds to infinity


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
def sigrid_hash(x, salt_hash, modulus, inverse):
    """Hash of int64 ids into [0, modulus). `salt_hash`: the FNV-1a hash of the salt, as int64;
    `inverse`: of the modulus, as `tables.inverse` has it."""
    low = _fnv(_mix(x.to(tl.uint64, bitcast=True)))
    high = tl.zeros_like(low) + salt_hash.to(tl.uint64, bitcast=True)
    a = (low ^ high) * _CITY
    a = a ^ (a >> 47)
    b = (high ^ a) * _CITY
    b = b ^ (b >> 47)
    return remainder((b * _CITY).to(tl.int64, bitcast=True), modulus, inverse)


@triton.jit
def remainder(x, modulus, inverse):
    """x mod modulus (int64, 1 or more), in [0, modulus). A GPU divides 64 bits in a subroutine that
    is about as long as all of the hash, so the quotient of |x| is a product, which is at most 1 too
    small (Barrett's reduction)."""
    size = tl.where(x < 0, -x, x).to(tl.uint64, bitcast=True)
    quotient = tl.umulhi(size, tl.zeros_like(size) + inverse.to(tl.uint64, bitcast=True))
    rest = (size - quotient * modulus.to(tl.uint64, bitcast=True)).to(tl.int64, bitcast=True)
    rest = tl.where(rest < modulus, rest, rest - modulus)
    return tl.where((x < 0) & (rest > 0), modulus - rest, rest)


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
    """(x^lam - 1) / lam of positive x, ln x for lam 0; x itself otherwise. Bit by bit the
    reference's, so that ids may follow."""
    finite = (x > 0) & (x < float("inf"))
    log = _log(tl.where(finite, x, 1.0).to(tl.float64))
    log = tl.where(finite, log, LOG_OF_INFINITY)
    wide = lam.to(tl.float64)
    power = (_exp(wide * log) - 1.0) * (1.0 / tl.where(lam == 0, 1.0, wide))
    power = tl.where(lam == 0, log, power)
    power = tl.where(power >= BEYOND_FLOAT32, float("inf"), power)
    power = tl.where(power <= -BEYOND_FLOAT32, float("-inf"), power)
    return tl.where(x > 0, power.to(tl.float32), x)


@triton.jit
def _log(x):
    """`exact.log`, operation by operation."""
    bits = x.to(tl.int64, bitcast=True)
    m = ((bits & FRACTION) | ONE).to(tl.float64, bitcast=True)
    large = m > SQRT2
    exponent = (bits >> 52) - 1023 + large.to(tl.int64)
    m = tl.where(large, m * 0.5, m)
    s = (m - 1.0) / (m + 1.0)
    return exponent.to(tl.float64) * LN2 + (s + s) * _series(s * s, LOG, LOG_TERMS)


@triton.jit
def _exp(y):
    """`exact.exp`, operation by operation."""
    y = tl.minimum(tl.maximum(y, -LARGEST), LARGEST)
    k = tl.floor(y * PER_LN2 + 0.5)
    r = (y - k * LN2_HIGH) - k * LN2_LOW
    return _series(r, EXP, EXP_TERMS) * ((k.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _series(x, coefficients: tl.constexpr, terms: tl.constexpr):
    """`exact.series`, operation by operation."""
    total = tl.zeros_like(x) + coefficients[terms - 1]
    for past in tl.static_range(2, terms + 1):
        total = total * x + coefficients[terms - past]
    return total


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

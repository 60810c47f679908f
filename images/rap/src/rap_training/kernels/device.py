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
PLACES, BITS, PLACE, LEAST = (
    tl.constexpr(each) for each in (exact.PLACES, exact.BITS, exact.PLACE, exact.LEAST)
)
LN2, PER_STEP, ROUND = (tl.constexpr(each) for each in (exact.LN2, exact.PER_STEP, exact.ROUND))
STEP_HIGH, STEP_LOW = tl.constexpr(exact.STEP_HIGH), tl.constexpr(exact.STEP_LOW)
LOG, EXP = tl.constexpr(exact.LOG), tl.constexpr(exact.EXP)
LOG_TERMS, EXP_TERMS = tl.constexpr(len(exact.LOG)), tl.constexpr(len(exact.EXP))
LARGEST = tl.constexpr(exact.LARGEST)
SMALL: tl.constexpr = tl.constexpr(2**31)  # twice a modulus of at most this fits 32 bits


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
def _times(low, high, factor: tl.constexpr):
    """The lower 64 bits of a product, from and as uint32 halves. Three instructions a product; of
    one in 64 bits the compiler makes four."""
    product = low.to(tl.uint64) * factor
    high = high * (factor & 0xFFFFFFFF) + (product >> 32).to(tl.uint32)
    return product.to(tl.uint32), high


@triton.jit
def _fnv(x):
    """FNV-1a of the eight bytes, as uint32 halves."""
    word, upper = x.to(tl.uint32), (x >> 32).to(tl.uint32)
    low = tl.zeros_like(word) + (_FNV_OFFSET & 0xFFFFFFFF)
    high = tl.zeros_like(word) + (_FNV_OFFSET >> 32)
    for byte in tl.static_range(8):
        if byte == 4:
            word = upper
        low, high = _times(low ^ ((word >> (8 * (byte % 4))) & 0xFF), high, _FNV_PRIME)
    return low, high


@triton.jit
def sigrid_hash(x, salt_hash, modulus, inverse):
    """Hash of int64 ids into [0, modulus). `salt_hash`: the FNV-1a hash of the salt, as int64;
    `inverse`: of the modulus, as `tables.inverse` has it."""
    low, high = _fnv(_mix(x.to(tl.uint64, bitcast=True)))
    salt = salt_hash.to(tl.uint64, bitcast=True)
    salt_low, salt_high = salt.to(tl.uint32), (salt >> 32).to(tl.uint32)
    low, high = _times(low ^ salt_low, high ^ salt_high, _CITY)
    low, high = _times(low ^ (high >> 15) ^ salt_low, high ^ salt_high, _CITY)
    low, high = _times(low ^ (high >> 15), high, _CITY)
    found = (high.to(tl.uint64) << 32) | low.to(tl.uint64)
    return remainder(found.to(tl.int64, bitcast=True), modulus, inverse)


@triton.jit
def remainder(x, modulus, inverse):
    """x mod modulus (int64, 1 or more), in [0, modulus). A GPU divides 64 bits in a subroutine that
    is about as long as all of the hash, so the quotient is a product, which is at most 1 too small
    (Barrett's reduction)."""
    if modulus <= SMALL:
        rest = _small_remainder(x, modulus, inverse)
    else:
        size = tl.where(x < 0, -x, x)
        rest = size - _quotient(size, inverse) * modulus
        rest = tl.where(rest < modulus, rest, rest - modulus)
        rest = tl.where((x < 0) & (rest > 0), modulus - rest, rest)
    return rest


@triton.jit
def _small_remainder(x, modulus, inverse):
    """The same in 32 bits without sign. x < 0 counts as x + 2^64, and what 2^64 leaves is taken off
    at the end. A difference below 0 wraps around to more than it was: the smaller of both is right.
    """
    m = modulus.to(tl.uint32)
    rest = x.to(tl.uint32) - _quotient(x, inverse).to(tl.uint32) * m
    rest = tl.minimum(rest, rest - m)
    rest -= tl.where(x < 0, 0 - inverse.to(tl.uint32) * m, 0)
    return tl.minimum(rest, rest + m).to(tl.int64)


@triton.jit
def _quotient(x, inverse):
    """The upper 64 bits of the product, all taken as without sign."""
    x = x.to(tl.uint64, bitcast=True)
    product = tl.umulhi(x, tl.zeros_like(x) + inverse.to(tl.uint64, bitcast=True))
    return product.to(tl.int64, bitcast=True)


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
def boxcox(x, lam, per_lam, table):
    """(x^lam - 1) / lam of positive x, ln x for lam 0; x itself otherwise. Bit by bit the
    reference's, so that ids may follow. per_lam: float64 1 / lam, as int64; table: `exact.TABLE`
    (pointer to float64)."""
    power = _log(x.to(tl.float64), table)
    inverse = per_lam.to(tl.float64, bitcast=True)
    if lam != 0:
        power = (_exp(lam.to(tl.float64) * power, table) - 1.0) * inverse
    at_infinity = tl.where(lam < 0, -inverse, float("inf")).to(tl.float32)
    return tl.where(x > 0, tl.where(x < float("inf"), power.to(tl.float32), at_infinity), x)


@triton.jit
def _log(x, table):
    """`exact.log`, operation by operation."""
    bits = x.to(tl.int64, bitcast=True)
    above = bits - LEAST
    exponent, place = above >> BITS, (above >> PLACE) & (PLACES - 1)
    r = (bits - (exponent << BITS)).to(tl.float64, bitcast=True) * tl.load(table + place) - 1.0
    high = exponent.to(tl.int32).to(tl.float64) * LN2 + tl.load(table + PLACES + place)
    return high + (r + r * r * _series(r, LOG, LOG_TERMS))


@triton.jit
def _exp(y, table):
    """`exact.exp`, operation by operation."""
    y = clamp(y, -LARGEST, LARGEST)
    rounded = y * PER_STEP + ROUND
    k = rounded - ROUND
    r = (y - k * STEP_HIGH) - k * STEP_LOW
    steps = rounded.to(tl.int64, bitcast=True)
    power = tl.load(table + 2 * PLACES + (steps & (PLACES - 1))).to(tl.int64, bitcast=True)
    power = (power + (steps >> (BITS - PLACE) << BITS)).to(tl.float64, bitcast=True)
    return _series(r, EXP, EXP_TERMS) * power


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
    inside = x.to(tl.uint64, bitcast=True) < size.to(tl.uint64, bitcast=True)
    return tl.load(table + x, mask=inside, other=0)


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

"""Logarithm and exponential whose every bit is the same on a CPU and a GPU, in float64.

Libraries round them as they like, so that a value behind boxcox could become another id on another
machine. Here both are a table and a fixed sequence of additions and multiplications, which IEEE 754
rounds in one way only; `rap_training.kernels.device` has the same sequence, compiled without fused
multiply-adds. Errors are below 4e-16 of the result for logarithms of float32, and 1e-15 for
exponentials.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


def _upper(x: float) -> float:
    """x without the lower half of its bits: what is left, an instruction of a GPU holds."""
    return float((np.float64(x).view(np.int64) & -(1 << 32)).view(np.float64))


PLACES = 16  # entries of a table: 128 bytes, which a GPU's warp reads at once
LOG = (  # of r**2 and on, |r| < 1/32
    *((-1.0) ** (power + 1) / power for power in range(2, 7)),
    *(_upper((-1.0) ** (power + 1) / power) for power in range(7, 11)),
)
EXP = (  # of r, at most ln 2 / 32
    *(1.0 / math.factorial(power) for power in range(5)),
    *(_upper(1.0 / math.factorial(power)) for power in range(5, 7)),
)
LN2, PER_STEP = 0.6931471805599453, 23.083120654223414  # ln 2, 16 / ln 2
STEP_HIGH, STEP_LOW = 0.043321698780346196, 4.650385693757748e-12  # ln 2 / 16: 33 bits, the rest
ROUND = 1.5 * 2.0**52  # what it is added to becomes a whole number, and the sum's low bits are that
LARGEST = 700.0  # of the exponential's argument: beyond any float32
LOG_OF_INFINITY = 1e300  # so that no infinity is multiplied by 0
# A float64's bits: 52 of fraction, whose upper 4 are the place. Logarithms are of arguments reduced
# to [LEAST, 2 LEAST), here the bits of 0.698: 1 lies inside a place, two thirds of it below 1.
BITS, PLACE = 52, 48
LEAST = 0x3FE6555500000000


def _table() -> Doubles:
    """float64 [3 * PLACES]: about 1 over the middle of every place, in 24 bits, so that its product
    with a float32 is exact; the logarithm of one over that; 2**(n / PLACES).

    In decimals, as a library may round on one machine as on no other.
    """
    edges = np.arange(PLACES + 1, dtype=np.int64) * (1 << PLACE) + LEAST
    middles = (edges[:-1].view(np.float64) + edges[1:].view(np.float64)) / 2
    inverses = np.rint(2.0**24 / middles) / 2.0**24
    ends = edges.view(np.float64)
    inverses[(ends[:-1] <= 1) & (ends[1:] > 1)] = 1.0  # near 1 nothing cancels
    with localcontext(prec=40):
        logs = [float(-Decimal(float(each)).ln()) for each in inverses]
        powers = [float(2 ** (Decimal(n) / PLACES)) for n in range(PLACES)]
    return np.concatenate((inverses, logs, powers))


TABLE = _table()


def log(x: Doubles) -> Doubles:
    """ln x of finite x above 0 that are float32."""
    bits = x.view(np.int64)
    above = bits - LEAST
    exponent, place = above >> BITS, (above >> PLACE) & (PLACES - 1)
    r = (bits - (exponent << BITS)).view(np.float64) * TABLE[place] - 1.0
    return (exponent * LN2 + TABLE[PLACES + place]) + (r + r * r * series(r, LOG))


def exp(y: Doubles) -> Doubles:
    """e**y, with y held to +-LARGEST."""
    y = np.minimum(np.maximum(y, -LARGEST), LARGEST)
    rounded = y * PER_STEP + ROUND
    k = rounded - ROUND
    r = (y - k * STEP_HIGH) - k * STEP_LOW
    steps = rounded.view(np.int64)
    power = TABLE[2 * PLACES + (steps & (PLACES - 1))].view(np.int64) + (
        steps >> (BITS - PLACE) << BITS
    )
    return series(r, EXP) * power.view(np.float64)


def series(x: Doubles, coefficients: tuple[float, ...]) -> Doubles:
    """Horner's rule: the sum of coefficients[n] * x**n."""
    total = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total

"""Logarithm and exponential whose every bit is the same on a CPU and a GPU, in float64.

Libraries round them as they like, so that a value behind boxcox could become another id on another
machine. Here both are a fixed sequence of additions, multiplications and divisions, which IEEE 754
rounds in one way only; `rap_training.kernels.device` has the same sequence, compiled without fused
multiply-adds. Errors are below 4e-16 of the result for logarithms, 1e-14 for exponentials.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

LOG = tuple(1.0 / (2 * term + 1) for term in range(10))  # of ((m - 1) / (m + 1))**2
EXP = tuple(1.0 / math.factorial(term) for term in range(13))  # of r, at most half of ln 2
SQRT2 = 1.4142135623730951
LN2, PER_LN2 = 0.6931471805599453, 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10  # 33 bits, so that k * high is exact
LARGEST = 700.0  # of the exponential's argument: beyond any float32
LOG_OF_INFINITY = 1e300  # so that no infinity is multiplied by 0
FRACTION, ONE = (1 << 52) - 1, 1023 << 52  # of a float64's bits

Doubles = NDArray[np.float64]


def log(x: Doubles) -> Doubles:
    """ln x of normal, finite x above 0."""
    bits = x.view(np.int64)
    exponent = (bits >> 52) - 1023
    m = ((bits & FRACTION) | ONE).view(np.float64)
    large = m > SQRT2
    m = np.where(large, m * 0.5, m)
    s = (m - 1.0) / (m + 1.0)
    return (exponent + large) * LN2 + (s + s) * series(s * s, LOG)


def exp(y: Doubles) -> Doubles:
    """e**y, with y held to +-LARGEST."""
    y = np.minimum(np.maximum(y, -LARGEST), LARGEST)
    k = np.floor(y * PER_LN2 + 0.5)
    r = (y - k * LN2_HIGH) - k * LN2_LOW
    return series(r, EXP) * ((k.astype(np.int64) + 1023) << 52).view(np.float64)


def series(x: Doubles, coefficients: tuple[float, ...]) -> Doubles:
    """Horner's rule: the sum of coefficients[n] * x**n."""
    total = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total

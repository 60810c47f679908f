"""Value records made up for tests, and what they mean, computed in the plainest way."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from accel_trace.values.accesses import READ, WRITE, Accesses, from_rows
from accel_trace.values.elements import CODE_OF, ELEMENTS, bits_of

BASE = 0x7000


def stream(
    element: str, pairs: Sequence[tuple[int, float]], flags: int = WRITE, **columns: int
) -> Accesses:
    """One access for each (index, value), by one thread."""
    kind = ELEMENTS[element]
    low = bits_of(np.array([value for _, value in pairs], kind.dtype), kind)
    return from_rows(
        [
            {
                "address": BASE + index * kind.size, "size": kind.size, "unit": kind.size,
                "flags": flags, "element": CODE_OF[element], "low": int(bits), **columns,
            }
            for (index, _), bits in zip(pairs, low, strict=True)
        ],
        ("k:1", "k:2", "k:3", "k:4"),
    )  # fmt: skip


def histogram(pairs: Sequence[tuple[int, float]]) -> dict[int, Counter[float]]:
    found: dict[int, Counter[float]] = defaultdict(Counter)
    for index, value in pairs:
        found[index][value] += 1
    return found


def float_bits(value: float, kept: int) -> float:
    """A float32 whose mantissa keeps so many bits."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    (out,) = struct.unpack("<f", struct.pack("<I", bits >> (23 - kept) << (23 - kept)))
    return out


__all__ = ["BASE", "READ", "WRITE", "float_bits", "histogram", "stream"]

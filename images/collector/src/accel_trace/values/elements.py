"""Types of elements, by the code that a value record holds, and floats of fewer mantissa bits.

Values are handled as their bits, in uint64. Approximation levels: ValueExpert's (redshow), kept
mantissa bits of f32 and f64; those of f16 are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint64]
Numbers = NDArray[np.generic]


@dataclass(frozen=True)
class Element:
    """A type: `kind` is i, u or f; `size` in bytes."""

    name: str
    kind: str
    size: int

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The same in numpy, little-endian."""
        return np.dtype(f"<{self.kind}{self.size}")

    @property
    def words(self) -> str:
        """The name that a person knows."""
        if self is BF16:
            return "bfloat16"
        prefix = {"i": "int", "u": "uint", "f": "float"}[self.kind]
        return f"{prefix}{8 * self.size}"


BF16 = Element("bf16", "f", 2)  # numpy has none: its numbers are float32's
CODES: tuple[Element | None, ...] = (  # code 0: nobody says
    None,
    *(Element(f"{kind}{8 * size}", kind, size) for kind in "iu" for size in (1, 2, 4, 8)),
    *(Element(f"f{8 * size}", "f", size) for size in (2, 4, 8)),
    BF16,
)
ELEMENTS = {element.name: element for element in CODES if element}
CODE_OF = {element.name: code for code, element in enumerate(CODES) if element}
LEVELS = {  # kept mantissa bits by size in bytes
    "none": {2: 10, 4: 23, 8: 52},
    "min": {2: 10, 4: 20, 8: 46},
    "low": {2: 8, 4: 17, 8: 40},
    "mid": {2: 7, 4: 14, 8: 34},
    "high": {2: 6, 4: 11, 8: 28},
    "max": {2: 5, 4: 8, 8: 22},
}
_MANTISSA = LEVELS["none"]
_ZERO = {2: 1e-3, 4: 1e-6, 8: 1e-14}  # a float nearer to 0 than this is one; f16: ours


def numbers_of(bits: Bits, element: Element) -> Numbers:
    """The values that the low bytes of `bits` are, as the type has them."""
    if element is BF16:
        raised = (np.asarray(bits, np.uint64) & np.uint64(0xFFFF)) << np.uint64(16)
        return raised.astype("<u4").view("<f4")
    unsigned = np.dtype(f"<u{element.size}")
    return np.asarray(bits, np.uint64).astype(unsigned).view(element.dtype)


def bits_of(numbers: NDArray[np.generic], element: Element) -> Bits:
    """The bits of numbers of that type: the inverse of `numbers_of`; bfloat16's are cut."""
    if element is BF16:
        return np.ascontiguousarray(numbers, "<f4").view("<u4").astype(np.uint64) >> np.uint64(16)
    typed = np.ascontiguousarray(numbers, element.dtype)
    return typed.view(np.dtype(f"<u{element.size}")).astype(np.uint64)


def coarsen(bits: Bits, element: Element, level: str) -> Bits:
    """The bits with the mantissa's lower bits cleared; integers and bfloat16 stay as they are."""
    if element.kind != "f" or element is BF16:
        return bits
    drop = _MANTISSA[element.size] - LEVELS[level][element.size]
    return bits & np.uint64(~((1 << drop) - 1) & 0xFFFFFFFFFFFFFFFF)


def are_zero(bits: Bits, element: Element) -> NDArray[np.bool_]:
    """Which values are zero: integers exactly, floats as near as the paper's code takes it."""
    if element.kind != "f":
        return bits == 0
    with np.errstate(invalid="ignore"):
        return np.abs(numbers_of(bits, element).astype(np.float64)) < _ZERO[element.size]


def candidates(code: int, size: int) -> tuple[Element, ...]:
    """The type of a code; where nobody says it, those of that size that are tried."""
    known = CODES[code]
    if known is not None:
        return (known,)
    names = [f"i{8 * size}", f"f{8 * size}"]
    return tuple(ELEMENTS[name] for name in names if name in ELEMENTS)

"""The narrowest type that holds all values (ValueExpert's heavy type)."""

from __future__ import annotations

import numpy as np

from accel_trace.values.elements import ELEMENTS, Bits, Element, numbers_of

_WIDTHS = (1, 2, 4, 8)


def needed_bits(bits: Bits, element: Element) -> int:
    """Bits that the widest integer needs, with its sign bit where the type has one."""
    if not len(bits):
        return 0
    values = numbers_of(bits, element)
    if element.kind == "u":
        return int(values.max()).bit_length()
    return (
        max((~v if v < 0 else v).bit_length() for v in (int(values.min()), int(values.max()))) + 1
    )


def narrower(bits: Bits, element: Element) -> Element | None:
    """A type of fewer bytes that holds every value exactly; None where there is none.

    Floats that are whole numbers narrow to integers, else to a float that gives back every bit.
    """
    if not len(bits):
        return None
    if element.kind != "f":
        need = needed_bits(bits, element)
        width = next(width for width in _WIDTHS if need <= 8 * width)
        return ELEMENTS[f"{element.kind}{8 * width}"] if width < element.size else None
    values = numbers_of(bits, element)
    with np.errstate(all="ignore"):
        finite = np.isfinite(values).all()
        # -0.0 is no integer: it would come back as another number.
        if (
            finite
            and (values == np.rint(values)).all()
            and not np.signbit(values[values == 0]).any()
        ):
            least, most = float(values.min()), float(values.max())
            for width in _WIDTHS:
                bound = 2.0 ** (8 * width - 1)
                if -bound <= least and most < bound and width < element.size:
                    return ELEMENTS[f"i{8 * width}"]
        for size in (2, 4):
            smaller = ELEMENTS[f"f{8 * size}"]
            if size < element.size:
                back = values.astype(smaller.dtype).astype(element.dtype)
                if (back.view(f"<u{element.size}") == values.view(f"<u{element.size}")).all():
                    return smaller
    return None

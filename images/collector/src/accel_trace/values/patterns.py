"""Value patterns of the items of one object, read or written by one kernel.

Rules: ValueExpert's (redshow's value_pattern.cpp, as docs/papers/valueexpert.md reads it), less
its defects: floats enter a fit as numbers, sign bits are redundant, a fit is judged by R squared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from accel_trace.values.elements import LEVELS, are_zero, numbers_of
from accel_trace.values.items import Items, coarser
from accel_trace.values.widths import narrower

FREQUENT_UNIQUE = 0.5  # share of items that must show one value only
FREQUENT_DISTINCT = 0.1  # distinct values among those, at most, over items
LINE_ITEMS = 3
LINE_R2 = 0.999
TOP = 10
Numbers = Mapping[str, float | int | str]


@dataclass(frozen=True)
class Pattern:
    """One pattern: its name of PATTERNS, what it says in words, and its numbers."""

    name: str
    text: str
    numbers: Numbers = field(default_factory=dict)


PATTERNS = {
    "single_value": "every element has the same value",
    "single_zero": "every element is zero",
    "frequent_values": "few values fill most elements",
    "heavy_type": "the type is wider than its values need",
    "structured": "values follow from their index",
    "approximate": "one of the others, if the mantissa is cut",
}


def number_text(value: object) -> str:
    """A value for a person: integers whole, floats as short as they are told apart."""
    return str(value.item() if isinstance(value, np.generic) else value)


def single(items: Items) -> Pattern | None:
    """All items show one and the same value."""
    if not len(items) or not items.unique.all():
        return None
    if are_zero(items.value, items.element).all():
        text = f"all {len(items)} elements are zero"
        return Pattern("single_zero", text, {"items": len(items)})
    if (items.value != items.value[0]).any():
        return None
    value = number_text(numbers_of(items.value[:1], items.element)[0])
    text = f"all {len(items)} elements are {value}"
    return Pattern("single_value", text, {"items": len(items), "value": value})


def frequent(items: Items) -> Pattern | None:
    """Half of the items or more show one value only, and those values are few."""
    count, unique = len(items), items.unique
    if not count or unique.sum() < FREQUENT_UNIQUE * count:
        return None
    values, first, held = np.unique(items.value[unique], return_index=True, return_counts=True)
    if not 1 < len(values) <= FREQUENT_DISTINCT * count:
        return None
    top = np.lexsort((first, -held))[:TOP]
    shown = [number_text(v) for v in numbers_of(values[top], items.element)]
    share = top_share(items)
    few = ", ".join(shown[:5]) + (", ..." if len(values) > 5 else "")
    text = (
        f"{len(values)} values fill {int(unique.sum())} of {count} elements ({few}); the most "
        f"frequent, {TOP} at most, are {share:.0%} of all accesses"
    )
    numbers: Numbers = {
        "items": count, "distinct": len(values), "top_share": share, "top": shown[0],
    }  # fmt: skip
    return Pattern("frequent_values", text, numbers)


def top_share(items: Items, top: int = TOP) -> float:
    """The share of accesses that moved one of the `top` most frequent values, by count."""
    if not items.accesses:
        return 0.0
    _, where = np.unique(items.value, return_inverse=True)
    weights = np.bincount(where.ravel(), weights=items.count)
    return float(np.sort(weights)[-top:].sum() / items.accesses)


def structured(items: Items) -> Pattern | None:
    """Values are k times the index plus b, by least squares, as numbers and not as bits."""
    if len(items) < LINE_ITEMS or not items.unique.all():
        return None
    y = numbers_of(items.value, items.element).astype(np.float64)
    if not np.isfinite(y).all():
        return None
    x = items.offset.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        dx, dy = x - x.mean(), y - y.mean()
        total = float(dy @ dy)
        slope = float(dx @ dy) / float(dx @ dx)
        residual = dy - slope * dx
        r2 = 1 - float(residual @ residual) / total if total > 0 else 0.0
    if not (np.isfinite(r2) and r2 >= LINE_R2 and slope != 0):
        return None
    constant = float(y.mean() - slope * x.mean())
    if items.element.kind != "f" and abs(residual).max() < 0.5:
        slope, constant = round(slope, 9), round(constant, 9)
    text = f"value = {slope:.6g} * index + {constant:.6g} in {len(items)} elements (R2 {r2:.6f})"
    numbers = {"items": len(items), "k": slope, "b": constant, "r2": r2}
    return Pattern("structured", text, numbers)


def heavy(items: Items) -> Pattern | None:
    """A narrower type would hold every value, of all items."""
    found = narrower(items.value, items.element)
    if found is None:
        return None
    least, most = _range(items)
    text = f"{items.element.words} holds {least} to {most}, which {found.words} would"
    ratio = items.element.size / found.size
    numbers: Numbers = {"items": len(items), "to": found.words, "ratio": ratio}
    return Pattern("heavy_type", text, numbers)


def _range(items: Items) -> tuple[str, str]:
    values = numbers_of(items.value, items.element)
    return number_text(values.min()), number_text(values.max())


def exact_patterns(items: Items) -> list[Pattern]:
    """The patterns of items as they are."""
    one = single(items)
    if one is not None:
        if one.name == "single_zero" or items.element.kind == "f":
            return [one]  # a constant needs no type
        found = [one, heavy(items)]
    else:
        found = [frequent(items), heavy(items), structured(items)]
    return [pattern for pattern in found if pattern is not None]


def patterns_of(items: Items) -> list[Pattern]:
    """All patterns; of floats also those that appear when their mantissas are cut.

    A narrower type is none of these: what is cut fits into one, whatever the values are.
    """
    found = exact_patterns(items)
    if items.element.kind != "f":
        return found
    order = [name for name in PATTERNS if name not in ("heavy_type", "approximate")]
    best: tuple[int, int, Pattern] | None = None  # the strongest, at the most bits that show it
    for level in list(LEVELS)[1:]:
        for one in exact_patterns(coarser(items, level)):
            if one.name in order and all(one.name != exact.name for exact in found):
                rank = order.index(one.name)
                if best is None or rank < best[0]:
                    best = (rank, LEVELS[level][items.element.size], one)
    if best is not None:
        _, kept, one = best
        text = f"with {kept} bits of mantissa, {one.name.replace('_', ' ')}: {one.text}"
        numbers: Numbers = {"items": len(items), "bits": kept, "of": one.name}
        found.append(Pattern("approximate", text, numbers))
    return found

"""What values a node can have, by its parameters: ids outside a table, before anything runs.

None stands for what only the data know: raw columns, and floats behind logit and boxcox.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rap_training.plan.operators import constant

Bounds = tuple[float, float] | None  # least and largest; a float can be NaN besides


def bounds(op: str, dtype: str, given: Mapping[str, Any], taken: Bounds) -> Bounds:
    """Bounds of an operator's result. `dtype` and `taken` are of its input."""
    if op in ("first_x", "ngram"):  # which move elements
        return taken
    if op == "clamp":
        low, high = constant(dtype, given["lo"]), constant(dtype, given["hi"])
        least, most = taken or (low, high)
        return min(max(least, low), high), min(max(most, low), high)
    if op == "cast":
        return _cast(dtype, given["dtype"], taken) if taken else None
    most_of: Mapping[str, Callable[[], float]] = {
        "sigrid_hash": lambda: given["modulus"] - 1,
        "map_id": lambda: given["size"] - 1,
        "bucketize": lambda: len(given["borders"]),
        "one_hot": lambda: 1.0,
    }
    return (0, most_of[op]()) if op in most_of else None


def _cast(dtype: str, wanted: str, taken: tuple[float, float]) -> Bounds:
    least, most = taken
    if wanted == dtype:
        return taken
    if wanted == "float32":
        return float(np.float32(least)), float(np.float32(most))
    if not (math.isfinite(least) and math.isfinite(most)):
        return None
    return min(math.trunc(least), 0), max(math.trunc(most), 0)  # NaN becomes 0

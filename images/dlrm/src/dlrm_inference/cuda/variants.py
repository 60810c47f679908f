"""The design points under the paper's names: one registry, one way to call each of them.

    VARIANTS["rpf"].forward(weight, indices, offsets, mode="sum")

gives each bag's sum or mean of its rows; `offsets` always has bags + 1 entries. Every variant has
`forward`, `prepare` (a launch made ready, for timing loops and graphs), `attributes` (registers,
spills, occupancy on a device), `supports` and `dtypes`. design.py compiles them without a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dlrm_inference.cuda import design
from dlrm_inference.cuda.best import Best
from dlrm_inference.cuda.scheme import Scheme
from dlrm_inference.cuda.tensors import UnsupportedError

__all__ = ["VARIANTS", "UnsupportedError"]


def _registry() -> Mapping[str, Scheme | Best]:
    points: list[Scheme | Best] = [Scheme(**vars(point)) for point in design.POINTS.values()]
    return MappingProxyType({variant.name: variant for variant in (*points, Best())})


VARIANTS = _registry()

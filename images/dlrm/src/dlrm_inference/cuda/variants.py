"""The design points under the paper's names: one registry, one way to call each of them.

    VARIANTS["rpf"].forward(weight, indices, offsets, mode="sum")

gives each bag's sum or mean of its rows; `offsets` always has bags + 1 entries. Every variant has
`forward`, `prepare` (a launch made ready, for timing loops and graphs), `attributes` (registers,
spills, occupancy on a device), `supports` and `dtypes`. design.py compiles them without a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import torch

from dlrm_inference.cuda import design, launch
from dlrm_inference.cuda.best import Best
from dlrm_inference.cuda.scheme import Scheme
from dlrm_inference.cuda.tensors import Prepared, UnsupportedError

__all__ = ["VARIANTS", "UnsupportedError", "Variant"]


class Variant(Protocol):
    """What every entry of the registry is."""

    @property
    def name(self) -> str:
        """The paper's name for it."""
        ...

    @property
    def summary(self) -> str:
        """What it is, in a sentence."""
        ...

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Table types it takes."""
        ...

    def forward(
        self,
        weight: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        *,
        mode: str = "sum",
        out: torch.Tensor | None = None,
        check: bool = False,
    ) -> torch.Tensor:
        """See `Scheme.forward`."""
        ...

    def prepare(
        self,
        weight: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        *,
        mode: str = "sum",
        out: torch.Tensor | None = None,
    ) -> Prepared:
        """See `Scheme.prepare`."""
        ...

    def attributes(self, device: torch.device) -> launch.Attributes:
        """See `Scheme.attributes`."""
        ...

    def supports(
        self, weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, mode: str = "sum"
    ) -> str:
        """See `Scheme.supports`."""
        ...


def _registry() -> Mapping[str, Scheme | Best]:
    points = [Scheme(**vars(point)) for point in design.POINTS.values()]
    return MappingProxyType({variant.name: variant for variant in (*points, Best())})


VARIANTS = _registry()

"""The design points under the paper's names: one registry, one way to call each of them.

    VARIANTS["rpf"].forward(weight, indices, offsets, mode="sum")

gives each bag's sum or mean of its rows; `offsets` always has bags + 1 entries. Every variant has
`forward`, `prepare` (a launch made ready, for timing loops and graphs), `attributes` (registers,
spills, occupancy on a device), `compile` (no GPU needed), `supports` and `dtypes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import torch

from dlrm_inference.cuda import launch, scheme
from dlrm_inference.cuda.best import Best
from dlrm_inference.cuda.compile import Compiled, Usage
from dlrm_inference.cuda.scheme import Scheme
from dlrm_inference.cuda.tensors import Prepared, UnsupportedError

__all__ = ["ARCHS", "VARIANTS", "CompiledVariant", "UnsupportedError", "Variant", "compile_variant"]

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")


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

    def compile(self, arch: str, index: torch.dtype = torch.int64) -> Compiled:
        """See `Scheme.compile`."""
        ...

    def supports(
        self, weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, mode: str = "sum"
    ) -> str:
        """See `Scheme.supports`."""
        ...


def _registry() -> Mapping[str, Scheme | Best]:
    points: tuple[Scheme | Best, ...] = (
        Scheme(
            name="base",
            summary="PyTorch 2.1's kernel re-made: check in the loop, 74 registers, 24 warps/SM",
            registers=scheme.BASE_REGISTERS,
        ),
        Scheme(name="optmt", summary="base with its registers capped at 42: 40 warps/SM"),
        Scheme(
            name="rpf",
            summary="optmt, rows prefetched into registers",
            scheme=scheme.REGISTER,
            distance=2,
        ),
        Scheme(
            name="smpf",
            summary="optmt, rows prefetched into shared memory",
            scheme=scheme.SHARED,
            distance=10,
        ),
        Scheme(
            name="smpf_async",
            summary="optmt, rows copied asynchronously into shared memory, a rolling pipeline",
            scheme=scheme.ASYNC,
            distance=10,
        ),
        Scheme(
            name="l1dpf",
            summary="optmt, rows prefetched into the L1 cache",
            scheme=scheme.L1,
            distance=2,
        ),
        Scheme(
            name="lmpf",
            summary="optmt, rows prefetched into local memory",
            scheme=scheme.LOCAL,
            distance=2,
        ),
        Scheme(name="l2p", summary="optmt after pinning the hottest rows in the L2", pins=True),
        Scheme(
            name="rpf_l2p",
            summary="register prefetch, L2 pinning and the register cap: the paper's best",
            scheme=scheme.REGISTER,
            distance=2,
            pins=True,
        ),
        Best(),
    )
    return MappingProxyType({point.name: point for point in points})


VARIANTS = _registry()


@dataclass(frozen=True, kw_only=True)
class CompiledVariant:
    """A variant for one architecture, with no GPU needed: its code and what it takes."""

    name: str
    arch: str
    cubin: bytes
    usage: Usage
    warps_per_sm: int  # that the registers allow
    compiler: str


def compile_variant(
    name: str, arch: str, *, distance: int = 0, registers: int = 0, warps_per_sm: int = 0
) -> CompiledVariant:
    """Compile the registered variant `name` for `arch` ("sm_90"), without a GPU.

    `distance`, `registers` and `warps_per_sm` as in `Scheme.tuned`; 0 is the variant's own.
    Raises KeyError for an unknown name, CompileError without NVRTC.
    """
    variant = VARIANTS[name]
    if isinstance(variant, Scheme):
        variant = variant.tuned(distance, registers, warps_per_sm)
    compiled = variant.compile(arch)
    (usage,) = compiled.usage.values()
    most = 64 if arch in ("sm_80", "sm_90", "sm_100") else 48
    return CompiledVariant(
        name=name,
        arch=arch,
        cubin=compiled.cubin,
        usage=usage,
        warps_per_sm=scheme.warps_for(usage.registers, variant.block_warps, most),
        compiler=compiled.compiler,
    )

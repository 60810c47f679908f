"""What the variants share: which tensors they take, where results go, and a launch made ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from dlrm_inference.cuda import launch
from dlrm_inference.cuda.design import UnsupportedError

INDEX_TYPES = MappingProxyType({torch.int64: "long long", torch.int32: "int"})


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """One launch, ready to be put on the stream again and again. The tensors stay alive with it.

    The host's part is one driver call, so that timing loops can keep the device's queue full.
    """

    kernel: launch.Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: launch.Arguments
    out: torch.Tensor

    def __call__(self, window: launch.Window | None = None) -> None:
        """Launch on PyTorch's current stream; see `launch.Kernel.launch`."""
        self.kernel.launch(self.grid, self.block, self.arguments, window)


def check_tensors(
    name: str,
    dtypes: Sequence[torch.dtype],
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    mode: str,
) -> None:
    """Raise UnsupportedError for what no variant of ours can serve."""
    if mode not in ("sum", "mean"):
        raise UnsupportedError(f"{name} has no mode '{mode}'; fix: use 'sum' or 'mean'")
    if weight.dtype not in dtypes:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise UnsupportedError(f"{name} takes tables of {known}, not {weight.dtype}")
    if weight.dim() != 2 or indices.dim() != 1 or offsets.dim() != 1 or offsets.numel() < 1:
        raise UnsupportedError(
            f"{name} takes weight (rows, dim), indices (accesses,) and offsets (bags + 1,)"
        )
    if indices.dtype not in INDEX_TYPES or offsets.dtype != indices.dtype:
        raise UnsupportedError(f"{name} takes int32 or int64 indices and offsets of the same type")
    if not (indices.is_contiguous() and offsets.is_contiguous()):
        raise UnsupportedError(f"{name} takes contiguous indices and offsets; fix: .contiguous()")
    if not (weight.is_cuda and weight.device == indices.device == offsets.device):
        raise UnsupportedError(f"{name} takes tensors on one GPU; fix: .to('cuda')")
    if weight.shape[0] < 1 or weight.shape[1] < 1:
        raise UnsupportedError(f"{name} takes tables with at least one row and one column")


def make_out(
    weight: torch.Tensor, bags: int, out: torch.Tensor | None, columns: int = 0
) -> torch.Tensor:
    """Return `out` checked, or a new (bags, columns or dim) tensor of `weight`'s type."""
    columns = columns or weight.shape[1]
    if out is None:
        return torch.empty((bags, columns), dtype=weight.dtype, device=weight.device)
    fits = out.shape == (bags, columns) and out.dtype == weight.dtype
    if not fits or out.stride(1) != 1 or out.device != weight.device:
        raise UnsupportedError(f"out must be ({bags}, {columns}) of the table's type and device")
    return out

"""What the variants share: which tensors they take, where results go, and a launch made ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from dlrm_inference.cuda import launch
from dlrm_inference.cuda.design import UnsupportedError
from dlrm_inference.cuda.report import raise_if_out_of_range, report_of

INDEX_TYPES = MappingProxyType({torch.int64: "long long", torch.int32: "int"})


@dataclass(eq=False)
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

    def checked(self, wait: bool) -> torch.Tensor:
        """Launch and return `out`. Raises IndexError for an id that an earlier launch found outside
        its table; with `wait` also for this one's, when the kernel has ended."""
        if not torch.cuda.is_current_stream_capturing():
            report_of(self.kernel.device).look()
        self()
        if wait:
            raise_if_out_of_range(self.kernel.device)
        return self.out


class Variant:
    """What every kernel of ours does for one table, by its own `prepare` and `check`."""

    check: Callable[..., None]  # (weight, indices, offsets, mode); raises UnsupportedError
    prepare: Callable[..., Prepared]  # as forward, but the launch is not yet made

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
        """Return the bags' sums or means (bags, dim), on PyTorch's current stream.

        weight (rows, dim) of one of the variant's dtypes; indices (accesses,) int32 or int64;
        offsets (bags + 1,) of the same type. `out` may have any row stride, but contiguous columns.
        An id outside the table raises IndexError: at once with `check` (which waits for the
        kernel), else as report.py says. Raises UnsupportedError.
        """
        return self.prepare(weight, indices, offsets, mode=mode, out=out).checked(check)

    def supports(
        self, weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, mode: str = "sum"
    ) -> str:
        """Return why these tensors cannot be served, "" when they can."""
        try:
            self.check(weight, indices, offsets, mode)
        except UnsupportedError as error:
            return str(error)
        return ""


def check_weight(name: str, dtypes: Sequence[torch.dtype], weight: torch.Tensor) -> None:
    """Raise UnsupportedError for a table that no variant of ours can serve."""
    if weight.dtype not in dtypes:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise UnsupportedError(f"{name} takes tables of {known}, not {weight.dtype}")
    if weight.dim() != 2 or weight.shape[0] < 1 or weight.shape[1] < 1:
        raise UnsupportedError(
            f"{name} takes tables (rows, dim) with at least one row and one column"
        )
    if not weight.is_cuda:
        raise UnsupportedError(f"{name} takes tensors on one GPU; fix: .to('cuda')")


def check_ids(
    name: str, indices: torch.Tensor, offsets: torch.Tensor, mode: str, device: torch.device
) -> None:
    """Raise UnsupportedError for bags that no variant of ours sums from tables on `device`."""
    if mode not in ("sum", "mean"):
        raise UnsupportedError(f"{name} has no mode '{mode}'; fix: use 'sum' or 'mean'")
    if indices.dim() != 1 or offsets.dim() != 1 or offsets.numel() < 1:
        raise UnsupportedError(f"{name} takes indices (accesses,) and offsets (bags + 1,)")
    if indices.dtype not in INDEX_TYPES or offsets.dtype != indices.dtype:
        raise UnsupportedError(f"{name} takes int32 or int64 indices and offsets of the same type")
    if not (indices.is_contiguous() and offsets.is_contiguous()):
        raise UnsupportedError(f"{name} takes contiguous indices and offsets; fix: .contiguous()")
    if not device == indices.device == offsets.device:
        raise UnsupportedError(f"{name} takes tensors on one GPU; fix: .to('cuda')")


def make_out(
    weight: torch.Tensor, bags: int, out: torch.Tensor | None, columns: int = 0
) -> torch.Tensor:
    """Return `out` checked, or a new (bags, columns or dim) tensor of `weight`'s type."""
    columns = columns or weight.shape[1]
    if out is None:
        return weight.new_empty(bags, columns)
    fits = out.shape == (bags, columns) and out.dtype == weight.dtype
    if not fits or out.stride(1) != 1 or out.device != weight.device:
        raise UnsupportedError(f"out must be ({bags}, {columns}) of the table's type and device")
    return out

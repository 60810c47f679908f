"""The paper's design points (design.py) on tensors: kernels/scheme.cu prepared and launched."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import torch

from dlrm_inference.cuda import launch
from dlrm_inference.cuda.design import BLOCK, GRID, Point
from dlrm_inference.cuda.report import report_of
from dlrm_inference.cuda.tensors import (
    INDEX_TYPES,
    Prepared,
    Variant,
    check_ids,
    check_weight,
    make_out,
)


class _SchemeArguments(ctypes.Structure):
    """`Arguments` of kernels/scheme.cu, field by field."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("offset_to_bag", ctypes.c_void_p),
        ("sample_weights", ctypes.c_void_p),
        ("bags", ctypes.c_longlong),
        ("columns", ctypes.c_longlong),
        ("rows", ctypes.c_longlong),
        ("row_stride", ctypes.c_longlong),
        ("column_stride", ctypes.c_longlong),
        ("out_stride", ctypes.c_longlong),
        ("padding_row", ctypes.c_longlong),
        ("mean", ctypes.c_int),
        ("table", ctypes.c_ulonglong),
        ("report", ctypes.c_void_p),
        ("ballast", ctypes.c_void_p),
    )


@dataclass(frozen=True, kw_only=True)
class Scheme(Variant, Point):
    """A design point of the paper as a variant of fp32 tables."""

    dtypes: tuple[torch.dtype, ...] = (torch.float32,)

    def check(
        self, weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, mode: str
    ) -> None:
        """Raise UnsupportedError for what it does not take; any strides will do."""
        check_weight(self.name, self.dtypes, weight)
        check_ids(self.name, indices, offsets, mode, weight.device)

    def prepare(
        self,
        weight: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        *,
        mode: str = "sum",
        out: torch.Tensor | None = None,
    ) -> Prepared:
        """Return the launch that `forward` makes, not yet made."""
        self.check(weight, indices, offsets, mode)
        bags, device = offsets.numel() - 1, weight.device
        report = report_of(device)
        out = make_out(weight, bags, out)
        # The operator of PyTorch writes every index's bag while it gathers; so do these.
        offset_to_bag = torch.empty_like(indices)
        struct = _SchemeArguments(
            weight=weight.data_ptr(),
            indices=indices.data_ptr(),
            offsets=offsets.data_ptr(),
            out=out.data_ptr(),
            offset_to_bag=offset_to_bag.data_ptr(),
            bags=bags,
            columns=weight.shape[1],
            rows=weight.shape[0],
            row_stride=weight.stride(0),
            column_stride=weight.stride(1),
            out_stride=out.stride(0),
            padding_row=-1,
            mean=mode == "mean",
            table=report.number(weight),
            report=report.address,
        )
        owners = (weight, indices, offsets, out, offset_to_bag)
        return Prepared(
            kernel=self.kernel(device, indices.dtype),
            grid=(GRID, 1, 1),
            block=BLOCK,
            arguments=launch.Arguments(struct, owners),
            out=out,
        )

    def kernel(self, device: torch.device, index: torch.dtype = torch.int64) -> launch.Kernel:
        """Return the loaded kernel for `device`, compiled at first use."""
        return _load(self, device, index)

    def attributes(self, device: torch.device) -> launch.Attributes:
        """Return registers, local, shared and spill bytes, blocks and warps per SM, occupancy."""
        return self.kernel(device).attributes(BLOCK[0] * BLOCK[1])


@cache
def _load(variant: Scheme, device: torch.device, index: torch.dtype) -> launch.Kernel:
    compiled = variant.build(launch.arch_of(device), INDEX_TYPES[index])
    return launch.Kernel(compiled, "scheme", device)

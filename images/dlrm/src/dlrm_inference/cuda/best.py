"""`best`: ours, free of the paper's design space. kernels/best.cu says how it works and why."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from dlrm_inference.cuda import launch
from dlrm_inference.cuda.design import BEST_FEW, BEST_MANY, Shape
from dlrm_inference.cuda.report import report_of
from dlrm_inference.cuda.tensors import (
    INDEX_TYPES,
    Prepared,
    UnsupportedError,
    Variant,
    check_tensors,
    make_out,
)

ELEMENTS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
MOST_TABLES = 48  # that one launch's parameters (4 KB) hold
MOST_ROWS = 2**31 - 1
FEW_WARPS = 20  # per SM: as many as fit with the registers of BEST_FEW


@dataclass(frozen=True, kw_only=True)
class _Case:
    """What the tensors decide at compile time."""

    index: torch.dtype
    element: torch.dtype
    dim: int
    vector: int  # bytes
    tables: int  # 1, or MOST_TABLES


class _Table(ctypes.Structure):
    """`Table` of kernels/best.cu, field by field."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("rows", ctypes.c_ulonglong),
        ("row_stride", ctypes.c_ulonglong),
        ("out_stride", ctypes.c_ulonglong),
        ("total", ctypes.c_longlong),
        ("average", ctypes.c_int),
        ("shift", ctypes.c_int),
        ("number", ctypes.c_ulonglong),
    )


@cache
def _arguments_type(tables: int) -> type[ctypes.Structure]:
    class _Arguments(ctypes.Structure):
        _fields_ = (
            ("tables", _Table * tables),
            ("bags", ctypes.c_int),
            ("mean", ctypes.c_int),
            ("report", ctypes.c_void_p),
        )

    return _Arguments


@dataclass(frozen=True, kw_only=True)
class Best(Variant):
    """Ours. Tables of fp32, fp16 or bf16 (summed in fp32), one or all of them in a launch.

    Rows must have contiguous columns, and there may be at most 2^31 - 1 of them.
    """

    name: str = "best"
    summary: str = "whole rows by 16-byte loads, each bag's rows read in table order"
    few: Shape = BEST_FEW  # for launches of at most FEW_WARPS warps per SM
    many: Shape = BEST_MANY
    dtypes: tuple[torch.dtype, ...] = tuple(ELEMENTS)

    def shape(self, bags: int, device: torch.device) -> Shape:
        """Return the compile-time choices for a launch of `bags` bags, all tables together."""
        sms = torch.cuda.get_device_properties(device).multi_processor_count
        return self.few if bags <= FEW_WARPS * sms else self.many

    def forward_tables(
        self,
        weights: Sequence[torch.Tensor],
        indices: Sequence[torch.Tensor],
        offsets: Sequence[torch.Tensor],
        *,
        mode: str = "sum",
        out: torch.Tensor | None = None,
        check: bool = False,
    ) -> torch.Tensor:
        """Return all tables' bags side by side (bags, tables * dim), from one launch.

        One entry per table in each sequence, tables of one dim and type, all with the same number
        of bags; at most 48 tables.
        """
        prepared = self.prepare_tables(weights, indices, offsets, mode=mode, out=out)
        return prepared.checked(check)

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
        return self.prepare_tables([weight], [indices], [offsets], mode=mode, out=out)

    def prepare_tables(
        self,
        weights: Sequence[torch.Tensor],
        indices: Sequence[torch.Tensor],
        offsets: Sequence[torch.Tensor],
        *,
        mode: str = "sum",
        out: torch.Tensor | None = None,
    ) -> Prepared:
        """Return the launch that `forward_tables` makes, not yet made."""
        self._check_tables(weights, indices, offsets, mode)
        first, count = weights[0], len(weights)
        bags, dim, device = offsets[0].numel() - 1, first.shape[1], first.device
        out = make_out(first, bags, out, count * dim)
        slices = [out[:, t * dim : (t + 1) * dim] for t in range(count)]
        case = _Case(
            index=indices[0].dtype,
            element=first.dtype,
            dim=dim,
            vector=min(vector_of(tensor) for tensor in (*weights, *slices)),
            tables=1 if count == 1 else MOST_TABLES,
        )
        report = report_of(device)
        struct = _arguments_type(case.tables)(bags=bags, mean=mode == "mean", report=report.address)
        shape = self.shape(bags * count, device)
        size = first.element_size()
        for t, (weight, index, offset) in enumerate(zip(weights, indices, offsets, strict=True)):
            rows = weight.shape[0]
            struct.tables[t] = _Table(
                weight=weight.data_ptr(),
                indices=index.data_ptr(),
                offsets=offset.data_ptr(),
                out=slices[t].data_ptr(),
                rows=rows,
                row_stride=weight.stride(0) * size,
                out_stride=out.stride(0) * size,
                total=index.numel(),
                average=index.numel() // max(bags, 1),
                shift=max(0, (rows - 1).bit_length() - (shape.buckets - 1).bit_length()),
                number=report.number(weight, t if count > 1 else -1),
            )
        return Prepared(
            kernel=_load(shape, device, case),
            grid=(max(1, -(-bags // shape.bags)), count, 1),
            block=(32 * shape.block_warps, 1, 1),
            arguments=launch.Arguments(struct, (*weights, *indices, *offsets, out)),
            out=out,
        )

    def attributes(self, device: torch.device) -> launch.Attributes:
        """Return registers, local, shared and spill bytes, blocks and warps per SM, occupancy, of
        the kernel for one fp32 table of dim 128 and few bags."""
        case = _Case(index=torch.int64, element=torch.float32, dim=128, vector=16, tables=1)
        return _load(self.few, device, case).attributes(32 * self.few.block_warps)

    def check(
        self, weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, mode: str
    ) -> None:
        """Raise UnsupportedError for what it does not take."""
        self._check_tables([weight], [indices], [offsets], mode)

    def reshaped(self, **choices: object) -> Best:
        """Return this kernel with other compile-time choices (`Shape`'s fields), for tuning."""
        few, many = (replace(shape, **choices) for shape in (self.few, self.many))
        return replace(self, few=few, many=many)

    def _check_tables(
        self,
        weights: Sequence[torch.Tensor],
        indices: Sequence[torch.Tensor],
        offsets: Sequence[torch.Tensor],
        mode: str,
    ) -> None:
        if not 1 <= len(weights) <= MOST_TABLES:
            raise UnsupportedError(f"{self.name} takes 1 to {MOST_TABLES} tables a launch")
        if not len(weights) == len(indices) == len(offsets):
            raise UnsupportedError("every table needs its weight, indices and offsets")
        for weight, index, offset in zip(weights, indices, offsets, strict=True):
            check_tensors(self.name, self.dtypes, weight, index, offset, mode)
            if weight.stride(1) != 1:
                raise UnsupportedError(
                    f"{self.name} takes rows with contiguous columns; fix: weight.contiguous()"
                )
            if weight.shape[0] > MOST_ROWS:
                raise UnsupportedError(f"{self.name} takes at most {MOST_ROWS} rows")
            same = weight.shape[1] == weights[0].shape[1] and weight.dtype == weights[0].dtype
            if not same or offset.numel() != offsets[0].numel() or index.dtype != indices[0].dtype:
                raise UnsupportedError(
                    "the tables of one launch must have one dim, types and number of bags"
                )


def vector_of(tensor: torch.Tensor) -> int:
    """Return the widest load in bytes (16, 8, 4 or 2) that every row of a 2-d tensor allows."""
    size = tensor.element_size()
    everything = tensor.data_ptr() | tensor.stride(0) * size | tensor.shape[1] * size
    return min(16, everything & -everything)


@cache
def _load(shape: Shape, device: torch.device, case: _Case) -> launch.Kernel:
    compiled = shape.build(
        launch.arch_of(device),
        index=INDEX_TYPES[case.index],
        element=ELEMENTS[case.element],
        dim=case.dim,
        vector=case.vector,
        tables=case.tables,
    )
    return launch.Kernel(compiled, "best", device)

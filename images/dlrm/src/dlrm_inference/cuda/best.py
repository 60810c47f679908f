"""`best`: ours, free of the paper's design space. kernels/best.cu says how it works and why."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch

from dlrm_inference.cuda import launch
from dlrm_inference.cuda.design import (
    BEST_FEW,
    BEST_MANY,
    BEST_SHORT,
    LONG,
    Case,
    Shape,
    Short,
)
from dlrm_inference.cuda.places import place_of
from dlrm_inference.cuda.report import Report, report_of
from dlrm_inference.cuda.tensors import (
    INDEX_TYPES,
    Prepared,
    UnsupportedError,
    Variant,
    check_ids,
    check_weight,
    make_out,
)

ELEMENTS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
MOST_TABLES = 48  # of a launch: its parameters (at most 4 KB) hold them
MOST_ROWS = 2**31 - 1
FEW_WARPS = 16  # per SM: as many as fit with the registers of BEST_FEW
_Weights = Sequence[torch.Tensor]


class _Table(ctypes.Structure):
    """`Table` of kernels/rows.cuh, field by field."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("total", ctypes.c_longlong),
        ("average", ctypes.c_int),
        ("shift", ctypes.c_int),
        ("rows", ctypes.c_ulonglong),
        ("row_stride", ctypes.c_ulonglong),
        ("number", ctypes.c_ulonglong),
    )


@cache
def _packer(tables: int) -> struct.Struct:
    """All of `_Table`'s fields, table after table: one call of the host for all of them."""
    return struct.Struct("=" + tables * "3Qqii3Q")


@cache
def _arguments_type(tables: int) -> type[ctypes.Structure]:
    class _Arguments(ctypes.Structure):
        _fields_ = (
            ("out", ctypes.c_void_p),
            ("out_stride", ctypes.c_ulonglong),
            ("report", ctypes.c_void_p),
            ("help", ctypes.c_void_p),
            ("bags", ctypes.c_int),
            ("mean", ctypes.c_int),
            ("cut", ctypes.c_int),
            ("count", ctypes.c_int),
            ("tables", _Table * tables),
        )

    return _Arguments


@dataclass(frozen=True, kw_only=True)
class _Launch(Prepared):
    """A launch whose long bags are shared in the place of the stream that it is put on."""

    device: torch.device

    def __call__(self, window: launch.Window | None = None) -> None:
        self.arguments.struct.help = place_of(self.device)
        super().__call__(window)


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """What the tables of a launch decide, whatever ids and bags come."""

    dim: int
    size: int  # bytes of an element
    alignment: int  # of every row, in bytes
    tables: tuple[tuple[int, int, int, int, int], ...]  # address, rows, their bits, stride, number


@dataclass(frozen=True, kw_only=True)
class Best(Variant):
    """Ours. Tables of fp32, fp16 or bf16 (summed in fp32), one or all of them in a launch.

    Rows must have contiguous columns, and there may be at most 2^31 - 1 of them.
    """

    name: str = "best"
    summary: str = "whole rows by 16-byte loads, each bag's rows read in table order"
    few: Shape = BEST_FEW  # for launches of at most FEW_WARPS warps per SM
    many: Shape = BEST_MANY
    short: tuple[tuple[int, Shape | Short, Shape | Short], ...] = BEST_SHORT
    lean: bool = True  # a launch that can have no long bag takes code that knows none
    dtypes: tuple[torch.dtype, ...] = tuple(ELEMENTS)

    def shape(self, bags: int, average: int, device: torch.device) -> Shape | Short:
        """Return the compile-time choices for a launch of `bags` bags, all tables together, of
        `average` rows in the table where they are longest."""
        is_few = bags <= FEW_WARPS * _sms(device)
        for most, few, many in self.short:
            if average <= most:
                return few if is_few else many
        return self.few if is_few else self.many

    def forward_tables(
        self,
        weights: _Weights,
        indices: _Weights,
        offsets: _Weights,
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
        weights: _Weights,
        indices: _Weights,
        offsets: _Weights,
        *,
        mode: str = "sum",
        out: torch.Tensor | None = None,
    ) -> Prepared:
        """Return the launch that `forward_tables` makes, not yet made."""
        frame = self._check_tables(weights, indices, offsets, mode)
        first, count, dim = weights[0], len(weights), frame.dim
        bags, device, width = offsets[0].numel() - 1, first.device, frame.dim * frame.size
        out = make_out(first, bags, out, count * dim)
        begin, stride = out.data_ptr(), out.stride(0) * frame.size
        everything = frame.alignment | begin | stride | width
        totals = [index.numel() for index in indices]
        average = max(totals) // max(bags, 1)
        cut = min(max(LONG, 4 * average), MOST_ROWS)
        case = Case(
            index=INDEX_TYPES[indices[0].dtype],
            element=ELEMENTS[first.dtype],
            dim=dim,
            vector=min(16, everything & -everything),
            tables=_room_for(count),
            share=int(not self.lean or max(totals) > cut),
        )
        shape = self.shape(bags * count, average, device)
        arguments_type = _arguments_type(case.tables)
        arguments = arguments_type(
            out=begin,
            out_stride=stride,
            report=report_of(device).address,
            bags=bags,
            mean=mode == "mean",
            cut=cut,
            count=count,
        )
        bands = (shape.buckets - 1).bit_length()
        fields: list[int] = []
        for t, (weight, rows, bits, row_stride, number) in enumerate(frame.tables):
            total = totals[t]
            fields += (
                weight, indices[t].data_ptr(), offsets[t].data_ptr(), total,
                min(total // (bags or 1), MOST_ROWS), bits - bands if bits > bands else 0,
                rows, row_stride, number,
            )  # fmt: skip
        _packer(count).pack_into(arguments, arguments_type.tables.offset, *fields)
        grid = (max(1, -(-bags // shape.block_bags(case))), count, 1)
        prepared = partial(_Launch, device=device) if case.share else Prepared
        return prepared(
            kernel=_load(shape, device, case),
            grid=grid,
            block=(32 * shape.block_warps, 1, 1),
            arguments=launch.Arguments(arguments, (*weights, *indices, *offsets, out)),
            out=out,
        )

    def attributes(self, device: torch.device) -> launch.Attributes:
        """Return registers, local, shared and spill bytes, blocks and warps per SM, occupancy, of
        the kernel for one fp32 table of dim 128 and few bags."""
        return _load(self.few, device, Case()).attributes(32 * self.few.block_warps)

    def check(
        self, weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, mode: str
    ) -> None:
        """Raise UnsupportedError for what it does not take."""
        self._check_tables([weight], [indices], [offsets], mode)

    def reshaped(self, **choices: Any) -> Best:
        """Return this kernel with other compile-time choices (fields that both `Shape` and `Short`
        have), for tuning."""
        few, many = (replace(shape, **choices) for shape in (self.few, self.many))
        short = tuple(
            (most, *(replace(one, **choices) for one in shapes)) for most, *shapes in self.short
        )
        return replace(self, few=few, many=many, short=short)

    def _check_tables(
        self, weights: _Weights, indices: _Weights, offsets: _Weights, mode: str
    ) -> _Frame:
        if not 1 <= len(weights) <= MOST_TABLES:
            raise UnsupportedError(f"{self.name} takes 1 to {MOST_TABLES} tables a launch")
        if not len(weights) == len(indices) == len(offsets):
            raise UnsupportedError("every table needs its weight, indices and offsets")
        frame = self._frame(weights)
        kind, bounds, device = indices[0].dtype, offsets[0].shape, weights[0].device
        check_ids(self.name, indices[0], offsets[0], mode, device)
        for index, offset in zip(indices, offsets, strict=True):
            if index.dtype is not kind or offset.dtype is not kind or offset.shape != bounds:
                raise UnsupportedError(_ONE)
            if index.stride() != _DENSE or offset.stride() != _DENSE or index.device != device:
                check_ids(self.name, index, offset, mode, device)
        return frame

    def _frame(self, weights: _Weights) -> _Frame:
        """Return what these tables decide, checked when they are seen for the first time: an eager
        model's time is the host's."""
        report = report_of(weights[0].device)
        key = (report, *((one.data_ptr(), one.shape, one.stride(), one.dtype) for one in weights))
        found = _frames.get(key)
        if found is None:
            if len(_frames) >= _MOST_FRAMES:
                _frames.clear()
            found = _frames[key] = self._make_frame(weights, report)
        return found

    def _make_frame(self, weights: _Weights, report: Report) -> _Frame:
        tables, alignment, dim, size = [], 0, weights[0].shape[-1], weights[0].element_size()
        for t, weight in enumerate(weights):
            check_weight(self.name, self.dtypes, weight)
            if weight.stride(1) != 1:
                raise UnsupportedError(
                    f"{self.name} takes rows with contiguous columns; fix: weight.contiguous()"
                )
            if weight.shape[0] > MOST_ROWS:
                raise UnsupportedError(f"{self.name} takes at most {MOST_ROWS} rows")
            if (weight.shape[1], weight.dtype) != (dim, weights[0].dtype):
                raise UnsupportedError(_ONE)
            if weight.device != weights[0].device:
                raise UnsupportedError(f"{self.name} takes tensors on one GPU; fix: .to('cuda')")
            rows, stride = weight.shape[0], weight.stride(0) * size
            number = report.number(weight, t if len(weights) > 1 else -1)
            alignment |= weight.data_ptr() | stride
            tables.append((weight.data_ptr(), rows, (rows - 1).bit_length(), stride, number))
        return _Frame(dim=dim, size=size, alignment=alignment, tables=tuple(tables))


_ONE = "the tables of one launch must have one dim, types and number of bags"
_MOST_FRAMES = 256
_DENSE = (1,)
_frames: dict[tuple[object, ...], _Frame] = {}


@cache
def _room_for(tables: int) -> int:
    """Return how many tables the parameters of a kernel hold that serves `tables`: to hand over
    4 KB of them takes longer than what a launch of short bags needs."""
    return 1 if tables == 1 else min(MOST_TABLES, max(4, 1 << (tables - 1).bit_length()))


@cache
def _sms(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _load(shape: Shape | Short, device: torch.device, case: Case) -> launch.Kernel:
    return launch.Kernel(shape.build(launch.arch_of(device), case), "best", device)

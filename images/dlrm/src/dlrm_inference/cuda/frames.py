"""The tables of a launch of `best`: looked at once, whatever ids and bags come, and as kernels get
them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from dlrm_inference.cuda.design import Shape, Short
from dlrm_inference.cuda.report import Report, report_of
from dlrm_inference.cuda.tensors import UnsupportedError, check_weight

MOST_TABLES = 48  # of a launch: its parameters (at most 4 KB) hold them
MOST_ROWS = 2**31 - 1
ONE = "the tables of one launch must have one dim, types and number of bags"
_MOST_FRAMES = 256


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Of tables of one dim and type, on one device."""

    dim: int
    size: int  # bytes of an element
    alignment: int  # of every row, in bytes
    tables: tuple[tuple[int, int, int, int, int], ...]  # address, rows, their bits, stride, number
    plans: dict[Any, Any] = field(default_factory=dict)  # of launches (best.py)


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Tables with their frame, which they keep true: they stay where they are."""

    weights: tuple[torch.Tensor, ...]
    frame: Frame


_frames: dict[tuple[object, ...], Frame] = {}


def frame_of(name: str, dtypes: Sequence[torch.dtype], weights: Sequence[torch.Tensor]) -> Frame:
    """Return what these tables decide, checked when they are seen for the first time: an eager
    model's time is the host's. Raises UnsupportedError with the `name` of who does not take them,
    as tables of other `dtypes`."""
    if not 1 <= len(weights) <= MOST_TABLES:
        raise UnsupportedError(f"{name} takes 1 to {MOST_TABLES} tables a launch")
    report = report_of(weights[0].device)
    key = (report, *((one.data_ptr(), one.shape, one.stride(), one.dtype) for one in weights))
    found = _frames.get(key)
    if found is None:
        if len(_frames) >= _MOST_FRAMES:
            _frames.clear()
        found = _frames[key] = _make_frame(name, dtypes, weights, report)
    return found


def _make_frame(
    name: str, dtypes: Sequence[torch.dtype], weights: Sequence[torch.Tensor], report: Report
) -> Frame:
    tables, alignment, dim, size = [], 0, weights[0].shape[-1], weights[0].element_size()
    for t, weight in enumerate(weights):
        check_weight(name, dtypes, weight)
        if weight.stride(1) != 1:
            raise UnsupportedError(
                f"{name} takes rows with contiguous columns; fix: weight.contiguous()"
            )
        if weight.shape[0] > MOST_ROWS:
            raise UnsupportedError(f"{name} takes at most {MOST_ROWS} rows")
        if (weight.shape[1], weight.dtype) != (dim, weights[0].dtype):
            raise UnsupportedError(ONE)
        if weight.device != weights[0].device:
            raise UnsupportedError(f"{name} takes tensors on one GPU; fix: .to('cuda')")
        rows, stride = weight.shape[0], weight.stride(0) * size
        number = report.number(weight, t if len(weights) > 1 else -1)
        alignment |= weight.data_ptr() | stride
        tables.append((weight.data_ptr(), rows, (rows - 1).bit_length(), stride, number))
    return Frame(dim=dim, size=size, alignment=alignment, tables=tuple(tables))


class Table(ctypes.Structure):
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
    """All of `Table`'s fields, table after table: one call of the host for all of them."""
    return struct.Struct("=" + tables * "3Qqii3Q")


_JOINED = (
    ("indices", ctypes.c_void_p),
    ("offsets", ctypes.c_void_p),
    ("total", ctypes.c_longlong),
    ("average", ctypes.c_longlong),
)


@cache
def arguments_type(tables: int, joined: int) -> type[ctypes.Structure]:
    class Arguments(ctypes.Structure):
        _fields_ = (
            ("out", ctypes.c_void_p),
            ("out_stride", ctypes.c_ulonglong),
            ("report", ctypes.c_void_p),
            ("help", ctypes.c_void_p),
            ("bags", ctypes.c_int),
            ("mean", ctypes.c_int),
            ("cut", ctypes.c_int),
            ("count", ctypes.c_int),
            *(_JOINED if joined else ()),
            ("tables", Table * tables),
        )

    return Arguments


def fill(
    arguments: Any, frame: Frame, shape: Shape | Short, ids: Sequence[tuple[int, int, int, int]]
) -> None:
    """Write the tables of a launch by `shape`. `ids`: of each the addresses of ids and offsets, how
    many ids there are, and how many a bag."""
    bands = (shape.buckets - 1).bit_length()
    fields: list[int] = []
    for (weight, rows, bits, stride, number), one in zip(frame.tables, ids, strict=True):
        shift = bits - bands if bits > bands else 0
        fields += (weight, *one, shift, rows, stride, number)
    _packer(len(ids)).pack_into(arguments, type(arguments).tables.offset, *fields)

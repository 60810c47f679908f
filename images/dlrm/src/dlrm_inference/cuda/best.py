"""`best`: ours, free of the paper's design space. kernels/best.cu says how it works and why."""

from __future__ import annotations

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
from dlrm_inference.cuda.frames import (
    MOST_ROWS,
    MOST_TABLES,
    ONE,
    Frame,
    Tables,
    arguments_type,
    fill,
    frame_of,
)
from dlrm_inference.cuda.places import place_of
from dlrm_inference.cuda.report import report_of
from dlrm_inference.cuda.tensors import (
    INDEX_TYPES,
    Prepared,
    UnsupportedError,
    Variant,
    check_ids,
    make_out,
)

ELEMENTS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
FEW_WARPS = 16  # per SM: as many as fit with the registers of BEST_FEW
_Weights = Sequence[torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class _Launch(Prepared):
    """A launch whose long bags are shared in the place of the stream that it is put on."""

    device: torch.device

    def __call__(self, window: launch.Window | None = None) -> None:
        self.arguments.struct.help = place_of(self.device)
        super().__call__(window)


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

    def tables(self, weights: _Weights) -> Tables:
        """Return tables for `prepare_joined`. Raises UnsupportedError as `forward_tables` does."""
        frame = frame_of(self.name, self.dtypes, weights)
        return Tables(weights=tuple(weights), frame=frame)

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
        bags = offsets[0].numel() - 1
        totals = [index.numel() for index in indices]
        out = make_out(weights[0], bags, out, len(weights) * frame.dim)
        case, shape, arguments = self._form(
            frame, indices[0].dtype, bags, max(totals), max(totals) // max(bags, 1), mode, out
        )
        ids = [
            (index.data_ptr(), offset.data_ptr(), total, min(total // (bags or 1), MOST_ROWS))
            for index, offset, total in zip(indices, offsets, totals, strict=True)
        ]
        fill(arguments, frame, shape, ids)
        return _prepared(case, shape, bags, arguments, (*weights, *indices, *offsets), out)

    def prepare_joined(
        self,
        tables: Tables,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        *,
        mode: str = "sum",
        out: torch.Tensor | None = None,
    ) -> Prepared:
        """Return the launch that `prepare_tables` returns, of ids as TorchRec's KeyedJaggedTensor
        has them: indices: every table's, concatenated; offsets (tables * bags + 1,) into them.

        An eager model's time is the host's, and two tensors are sooner looked at than many.
        """
        weights, frame, count = tables.weights, tables.frame, len(tables.weights)
        check_ids(self.name, indices, offsets, mode, weights[0].device)
        all_bags, total = offsets.numel() - 1, indices.numel()
        bags, left = divmod(all_bags, count)
        if left:
            raise UnsupportedError("offsets must hold tables * bags + 1 entries")
        out = make_out(weights[0], bags, out, count * frame.dim)
        average = min(total // max(all_bags, 1), MOST_ROWS)
        case, shape, arguments = self._form(
            frame, indices.dtype, bags, total, average, mode, out, tables.filled
        )
        arguments.indices, arguments.offsets = indices.data_ptr(), offsets.data_ptr()
        arguments.total, arguments.average = total, average
        return _prepared(case, shape, bags, arguments, (*weights, indices, offsets), out)

    def _form(
        self,
        frame: Frame,
        kind: torch.dtype,
        bags: int,
        most: int,
        average: int,
        mode: str,
        out: torch.Tensor,
        filled: dict[Shape | Short, bytes] | None = None,
    ) -> tuple[Case, Shape | Short, Any]:
        """Return the compile-time choices for `bags` bags a table, and arguments but for the ids.

        `most`: ids of a table; `average`: of a bag. `filled`: of joined ids, arguments by shape.
        """
        count, begin, stride = len(frame.tables), out.data_ptr(), out.stride(0) * frame.size
        everything = frame.alignment | begin | stride | frame.dim * frame.size
        cut = min(max(LONG, 4 * average), MOST_ROWS)
        case = Case(
            index=INDEX_TYPES[kind],
            element=ELEMENTS[out.dtype],
            dim=frame.dim,
            vector=min(16, everything & -everything),
            tables=_room_for(count),
            share=int(not self.lean or most > cut),
            joined=int(filled is not None),
        )
        shape = self.shape(bags * count, average, out.device)
        kind_of = arguments_type(case.tables, case.joined)
        if filled is None:
            arguments = kind_of(count=count)
        else:
            if shape not in filled:
                fill(made := kind_of(count=count), frame, shape, [(0, 0, 0, 0)] * count)
                filled[shape] = bytes(made)
            arguments = kind_of.from_buffer_copy(filled[shape])
        arguments.out, arguments.out_stride = begin, stride
        arguments.report, arguments.bags = report_of(out.device).address, bags
        arguments.mean, arguments.cut = mode == "mean", cut
        return case, shape, arguments

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
    ) -> Frame:
        if not len(weights) == len(indices) == len(offsets):
            raise UnsupportedError("every table needs its weight, indices and offsets")
        frame = frame_of(self.name, self.dtypes, weights)
        kind, bounds, device = indices[0].dtype, offsets[0].shape, weights[0].device
        check_ids(self.name, indices[0], offsets[0], mode, device)
        for index, offset in zip(indices, offsets, strict=True):
            if index.dtype is not kind or offset.dtype is not kind or offset.shape != bounds:
                raise UnsupportedError(ONE)
            if index.stride() != _DENSE or offset.stride() != _DENSE or index.device != device:
                check_ids(self.name, index, offset, mode, device)
        return frame


_DENSE = (1,)


def _prepared(
    case: Case, shape: Shape | Short, bags: int, arguments: Any, owners: _Weights, out: torch.Tensor
) -> Prepared:
    prepared = partial(_Launch, device=out.device) if case.share else Prepared
    return prepared(
        kernel=_load(shape, out.device, case),
        grid=(max(1, -(-bags // shape.block_bags(case))), arguments.count, 1),
        block=(32 * shape.block_warps, 1, 1),
        arguments=launch.Arguments(arguments, (*owners, out)),
        out=out,
    )


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

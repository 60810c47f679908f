"""`best`: ours, free of the paper's design space. kernels/best.cu says how it works and why."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
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
_MOST_PLANS = 64  # of a frame
FEW_WARPS = 16  # per SM: as many as fit with the registers of BEST_FEW
_Weights = Sequence[torch.Tensor]


class _Launch(Prepared):
    """A launch whose long bags are shared in the place of the stream that it is put on."""

    def __call__(self, window: launch.Window | None = None) -> None:
        self.arguments.struct.help = place_of(self.kernel.device)
        super().__call__(window)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """All of a launch that addresses and the number of ids do not decide, made once a `Frame`: an
    eager model's time is the host's."""

    prepared: type[Prepared]
    shape: Shape | Short
    kernel: launch.Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    kind: type[ctypes.Structure]  # of its arguments
    filled: bytes  # the arguments

    def prepare(self, arguments: Any, owners: tuple[object, ...], out: torch.Tensor) -> Prepared:
        """Return the launch by `arguments`; `owners`: what has to live as long."""
        held = launch.Arguments(arguments, owners)
        return self.prepared(self.kernel, self.grid, self.block, held, out)


@dataclass(frozen=True, kw_only=True, eq=False)  # each is itself: plans are looked up by it
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
        most, kind = max(totals), indices[0].dtype
        plan, arguments = self._form(frame, kind, bags, most, most // max(bags, 1), mode, out, 0)
        ids = [
            (index.data_ptr(), offset.data_ptr(), total, min(total // (bags or 1), MOST_ROWS))
            for index, offset, total in zip(indices, offsets, totals, strict=True)
        ]
        fill(arguments, frame, plan.shape, ids)
        return plan.prepare(arguments, (*weights, *indices, *offsets, out), out)

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
        plan, arguments = self._form(frame, indices.dtype, bags, total, average, mode, out, 1)
        arguments.indices, arguments.offsets = indices.data_ptr(), offsets.data_ptr()
        arguments.total = total
        return plan.prepare(arguments, (tables, indices, offsets, out), out)

    def _form(
        self,
        frame: Frame,
        kind: torch.dtype,
        bags: int,
        most: int,
        average: int,
        mode: str,
        out: torch.Tensor,
        joined: int,
    ) -> tuple[_Plan, Any]:
        """Return the plan for `bags` bags a table, and arguments but for the ids.

        `most`: ids of a table, of all tables where they are `joined`; `average`: of a bag.
        """
        begin, stride = out.data_ptr(), out.stride(0) * frame.size
        is_long, alignment = most > _cut(average), (begin | stride) % 16
        key = (self, kind, bags, average, is_long, mode, alignment, joined)
        plan = frame.plans.get(key)
        if plan is None:
            if len(frame.plans) >= _MOST_PLANS:
                frame.plans.clear()
            plan = frame.plans[key] = self._plan(frame, *key[1:], out)
        arguments = plan.kind.from_buffer_copy(plan.filled)
        arguments.out, arguments.out_stride = begin, stride
        return plan, arguments

    def _plan(
        self,
        frame: Frame,
        kind: torch.dtype,
        bags: int,
        average: int,
        is_long: bool,
        mode: str,
        alignment: int,
        joined: int,
        out: torch.Tensor,
    ) -> _Plan:
        count, everything = len(frame.tables), frame.alignment | alignment | frame.dim * frame.size
        case = Case(
            index=INDEX_TYPES[kind],
            element=ELEMENTS[out.dtype],
            dim=frame.dim,
            vector=min(16, everything & -everything),
            tables=_room_for(count),
            share=int(not self.lean or is_long),
            joined=joined,
        )
        shape = self.shape(bags * count, average, out.device)
        arguments = arguments_type(case.tables, joined)(
            report=report_of(out.device).address,
            bags=bags,
            mean=mode == "mean",
            cut=_cut(average),
            count=count,
        )
        if joined:  # no table has ids of its own
            arguments.average = average
            fill(arguments, frame, shape, [(0, 0, 0, 0)] * count)
        return _Plan(
            prepared=_Launch if case.share else Prepared,
            shape=shape,
            kernel=_load(shape, out.device, case),
            grid=(max(1, -(-bags // shape.block_bags(case))), count, 1),
            block=(32 * shape.block_warps, 1, 1),
            kind=type(arguments),
            filled=bytes(arguments),
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
            (most, replace(one, **choices), replace(another, **choices))
            for most, one, another in self.short
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


def _cut(average: int) -> int:
    """Return the most rows of a bag that a warp sums alone."""
    return min(max(LONG, 4 * average), MOST_ROWS)


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

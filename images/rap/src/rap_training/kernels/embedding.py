"""Table-batched embedding sums and their SGD update: one launch for all tables of a rank.

Launch shape: a program per ROWS rows of a segment, all columns of each; `blocks` as in
`horizontal`. Traffic forwards: an id and `dim` floats a row read, `dim` floats written; backwards
the same with atomic adds. Limit: the memory's bandwidth on random rows. Oracle: TorchEmbedding.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from rap_training.kernels.backend import prepared
from rap_training.launches import Call
from rap_training.train.segments import Segment

_ROWS = 16


@triton.jit
def _row(blocks, words, batch, tables, ROWS: tl.constexpr):
    """Row numbers within the segment, their mask, and their places in [world, tables, B]."""
    program = tl.program_id(0)
    at = words + tl.load(blocks + 2 * program) * 8
    row = tl.load(blocks + 2 * program + 1) * ROWS + tl.arange(0, ROWS)
    mask = row < tl.load(at + 6).to(tl.int32)
    whole = row + tl.load(at + 5).to(tl.int32)
    rank = whole // batch
    place = (rank * tables + tl.load(at + 2).to(tl.int32)) * batch + whole - rank * batch
    return at, row, mask, place.to(tl.int64)


@triton.jit
def _ids(at, row, mask, step, width):
    """Rows of the weights for element `step` of every list, what to keep, and what is wrong."""
    source = tl.load(at).to(tl.pointer_type(tl.int64))
    ids = tl.load(source + row * width + step, mask=mask, other=0)
    listed = mask
    lengths = tl.load(at + 1)
    if lengths != 0:
        length = tl.load(lengths.to(tl.pointer_type(tl.int32)) + row, mask=mask, other=0)
        listed = mask & (step < length)
    keep = listed & (ids >= 0) & (ids < tl.load(at + 4))
    return tl.where(keep, ids, 0) + tl.load(at + 3), keep, listed & ~keep


@triton.jit
def forward(
    blocks, words, weights, pooled, bad, batch, tables, DIM: tl.constexpr, PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Sums of rows."""
    at, row, mask, place = _row(blocks, words, batch, tables, ROWS)
    width = tl.load(at + 7).to(tl.int32)
    column = tl.arange(0, PADDED)[None, :]
    inside = column < DIM
    total = tl.zeros((ROWS, PADDED), tl.float32)
    wrong = tl.zeros((ROWS,), tl.int64)
    step = 0
    while step < width:
        index, keep, outside = _ids(at, row, mask, step, width)
        read = keep[:, None] & inside
        total += tl.load(weights + index[:, None] * DIM + column, mask=read, other=0.0)
        wrong += outside.to(tl.int64)
        step += 1
    tl.store(pooled + place[:, None] * DIM + column, total, mask=mask[:, None] & inside)
    count = tl.sum(wrong, 0)
    if count > 0:
        tl.atomic_add(bad + tl.load(at + 2), count)


@triton.jit
def backward(
    blocks, words, weights, gradient, rate, batch, tables, DIM: tl.constexpr, PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """weights -= rate * gradient, for every row that was summed; `rate` float32 [1]."""
    at, row, mask, place = _row(blocks, words, batch, tables, ROWS)
    width = tl.load(at + 7).to(tl.int32)
    column = tl.arange(0, PADDED)[None, :]
    inside = column < DIM
    there = mask[:, None] & inside
    change = tl.load(gradient + place[:, None] * DIM + column, mask=there, other=0.0)
    change = change * -tl.load(rate)
    step = 0
    while step < width:
        index, keep, _ = _ids(at, row, mask, step, width)
        written = keep[:, None] & inside
        tl.atomic_add(weights + index[:, None] * DIM + column, change, mask=written, sem="relaxed")
        step += 1


class TritonEmbedding:
    """The kernels bound to fixed buffers; see `rap_training.train.embedding.Embedding`."""

    def __init__(
        self, weights: torch.Tensor, pooled: torch.Tensor, gradient: torch.Tensor,
        slots: Sequence[Sequence[Segment]], bad: torch.Tensor, rate: torch.Tensor,
    ) -> None:  # fmt: skip
        """As TorchEmbedding."""
        device, dim = weights.device, weights.shape[1]
        _, tables, batch, _ = pooled.shape
        self._slots = slots  # the kernels know their memory by address alone
        self._calls: list[tuple[Call, Call]] = []
        if not tables:  # a grid must not be empty
            self._calls = [(_nothing, _nothing)] * len(slots)
            return
        constants = {"DIM": dim, "PADDED": triton.next_power_of_2(dim), "ROWS": _ROWS}
        for parts in slots:
            words = torch.tensor([_words(part) for part in parts], dtype=torch.int64).to(device)
            counts = [-(-len(part.ids) // _ROWS) for part in parts]
            table = np.empty((sum(counts), 2), np.int32)
            table[:, 0] = np.repeat(np.arange(len(parts)), counts)
            table[:, 1] = np.concatenate([np.arange(count) for count in counts])
            blocks = torch.from_numpy(table).to(device)
            there = (blocks, words, weights)
            looked_up = (*there, pooled, bad, batch, tables)
            updated = (*there, gradient, rate, batch, tables)
            self._calls.append(
                (
                    prepared(forward, len(blocks), looked_up, constants),
                    prepared(backward, len(blocks), updated, constants),
                )
            )

    def forward(self, slot: int) -> None:
        """See Embedding."""
        self._calls[slot][0]()

    def backward(self, slot: int) -> None:
        """See Embedding."""
        self._calls[slot][1]()


def _nothing() -> None:
    """The work of a rank without tables."""


def _words(part: Segment) -> list[int]:
    return [
        part.ids.data_ptr(),
        0 if part.lengths is None else part.lengths.data_ptr(),
        part.place,
        part.first,
        part.limit,
        part.start,
        len(part.ids),
        part.ids.shape[1],
    ]

"""Embedding tables of one rank: sums of rows forwards, stochastic gradient descent backwards.

All tables of a rank stand in one matrix, so one launch serves all. Rows named twice in a batch
get the sum of their gradients, as exact SGD has it. Ids outside of a table add nothing and are
counted by table: `bad` is read where a measurement ends (docs/papers/rap.md, 2.3; semantics: sum
pooling, SGD).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from rap_training.data.columns import DataError
from rap_training.plan.graph import Plan
from rap_training.train.segments import Segment


class Embedding(Protocol):
    """Tables bound to fixed buffers: pooled and gradient are float32 [world, tables, B, dim]."""

    def forward(self, slot: int) -> None:
        """Sum the rows of every id list into `pooled`."""

    def backward(self, slot: int) -> None:
        """Subtract lr times the gradient from every row that was summed."""


class TorchEmbedding:
    """The plain version, for CPUs and as the oracle of the kernels."""

    def __init__(
        self, weights: torch.Tensor, pooled: torch.Tensor, gradient: torch.Tensor,
        slots: Sequence[Sequence[Segment]], bad: torch.Tensor, rate: torch.Tensor,
    ) -> None:  # fmt: skip
        """`weights` float32 [rows of all tables, dim]; `bad` int64 [tables], `rate` float32 [1]."""
        self.weights, self.pooled, self.gradient = weights, pooled, gradient
        self.slots, self.bad, self.rate = slots, bad, rate

    def forward(self, slot: int) -> None:
        """See Embedding."""
        for segment in self.slots[slot]:
            index, keep = self._index(segment)
            self.bad[segment.place] += (self._listed(segment) & ~keep).sum()
            rows = self.weights[index] * keep.unsqueeze(-1)
            pooled = self._view(self.pooled, segment)
            pooled.copy_(rows.sum(1).view(pooled.shape))

    def backward(self, slot: int) -> None:
        """See Embedding."""
        for segment in self.slots[slot]:
            index, keep = self._index(segment)
            gradient = self._view(self.gradient, segment).reshape(len(index), 1, -1)
            spread = gradient.expand(-1, index.shape[1], -1) * keep.unsqueeze(-1)
            self.weights.index_add_(
                0, index.reshape(-1), spread.reshape(-1, spread.shape[-1]), alpha=-float(self.rate)
            )

    @staticmethod
    def _view(buffer: torch.Tensor, segment: Segment) -> torch.Tensor:
        """The rows of a segment, [ranks, B, dim], in [world, tables, B, dim]."""
        batch = buffer.shape[2]
        first = segment.start // batch
        return buffer[first : first + len(segment.ids) // batch, segment.place]

    @staticmethod
    def _listed(segment: Segment) -> torch.Tensor:
        if segment.lengths is None:
            return torch.ones_like(segment.ids, dtype=torch.bool)
        places = torch.arange(segment.ids.shape[1], device=segment.ids.device)
        return places < segment.lengths.unsqueeze(1)

    def _index(self, segment: Segment) -> tuple[torch.Tensor, torch.Tensor]:
        keep = self._listed(segment) & (segment.ids >= 0) & (segment.ids < segment.limit)
        return torch.where(keep, segment.ids, 0) + segment.first, keep


def raise_outside(plan: Plan, counts: Mapping[int, int], done: str) -> None:
    """Raise DataError naming table and node where `counts` has ids outside of a table, by table.

    `done` says what became of them.
    """
    wrong = [table for table, count in counts.items() if count]
    if wrong:
        first = wrong[0]
        output = plan.sparse[first]
        more = f", and ids of {len(wrong) - 1} more tables" if len(wrong) > 1 else ""
        raise DataError(
            f"{counts[first]} ids of table {first}, node {output.node}, were outside of its "
            f"{output.rows} rows{more}, and were {done}; "
            "fix: end the plan's chain with sigrid_hash modulo the table's rows"
        )


def initial_weights(
    tables: Sequence[int], rows: Sequence[int], dim: int, seed: int, device: torch.device
) -> torch.Tensor:
    """float32 [sum of rows, dim], uniform within 1/sqrt(rows); the same on any number of GPUs."""
    weights = torch.empty(sum(rows[table] for table in tables), dim, device=device)
    start = 0
    for table in tables:
        draw_table(weights[start : start + rows[table]], table, seed)
        start += rows[table]
    return weights


def draw_table(memory: torch.Tensor, table: int, seed: int) -> None:
    """Fill one table, float32 [rows, dim], in place."""
    generator = torch.Generator(memory.device).manual_seed(seed * 100_003 + table)
    bound = len(memory) ** -0.5
    memory.uniform_(-bound, bound, generator=generator)

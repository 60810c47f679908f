"""Tensor parallelism: what goes over the wire, and layers whose weights lie on several ranks.

A column-parallel layer holds some of the outputs, a row-parallel one some of the inputs, so a pair
of them needs one all-reduce forward and one backward. Source: Megatron-LM's scheme.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Ways:
    """This rank's place among `size` tensor-parallel ranks, which are all ranks there are."""

    rank: int = 0
    size: int = 1

    def part(self, whole: int) -> slice:
        """This rank's share of `whole` rows or columns. Raises ValueError for a remainder."""
        if whole % self.size:
            raise ValueError(f"{whole} cannot be cut into {self.size} equal parts")
        share = whole // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor


class _Copy(torch.autograd.Function):
    """The same tensor on every rank; its gradients are added up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ways: Ways) -> Tensor:
        ctx.ways = ways
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.ways.sum(gradients[0].contiguous()), None


class _Sum(torch.autograd.Function):
    """The sum of the ranks' tensors on every rank; its gradient is everyone's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ways: Ways) -> Tensor:
        return ways.sum(x.clone() if ways.size > 1 else x.view_as(x))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def copied(x: Tensor, ways: Ways) -> Tensor:
    """Enter a column-parallel layer."""
    found: Tensor = _Copy.apply(x, ways)
    return found


def summed(x: Tensor, ways: Ways) -> Tensor:
    """Leave a row-parallel layer."""
    found: Tensor = _Sum.apply(x, ways)
    return found


def weight(name: str, shape: tuple[int, ...], seed: int, share: tuple[slice, ...]) -> nn.Parameter:
    """This rank's `share` of a weight that is the same for every way of cutting it.

    A name and a seed say all: every rank makes the whole and keeps its part.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name}/{seed}".encode()))
    whole = torch.empty(shape, device="cpu").normal_(std=0.02, generator=generator)
    return nn.Parameter(whole[share].clone())


class ColumnLinear(nn.Module):
    """(..., inputs) -> (..., groups * outputs / ways): each group of outputs is cut alike."""

    def __init__(
        self, name: str, inputs: int, outputs: int, ways: Ways, seed: int, groups: int = 1
    ) -> None:
        super().__init__()
        part = ways.part(outputs)
        share = (slice(None), part)
        self.weight = weight(f"{name}.weight", (groups, outputs, inputs), seed, share)
        self.bias = nn.Parameter(torch.zeros(groups, part.stop - part.start))
        self.ways = ways

    def forward(self, x: Tensor) -> Tensor:
        """This rank's outputs, group after group."""
        return functional.linear(
            copied(x, self.ways), self.weight.flatten(0, 1), self.bias.flatten()
        )


class RowLinear(nn.Module):
    """(..., inputs / ways) -> (..., outputs), the same on every rank."""

    def __init__(self, name: str, inputs: int, outputs: int, ways: Ways, seed: int) -> None:
        super().__init__()
        share = (slice(None), ways.part(inputs))
        self.weight = weight(f"{name}.weight", (outputs, inputs), seed, share)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.ways = ways

    def forward(self, x: Tensor) -> Tensor:
        """The sum of the ranks' products, and the bias once."""
        return summed(functional.linear(x, self.weight), self.ways) + self.bias


class VocabularyEmbedding(nn.Module):
    """An embedding whose rows are cut; it serves as the head too.

    `rows` is the padded vocabulary: padding has logits of its own, as in Megatron-LM.
    """

    def __init__(self, name: str, rows: int, width: int, ways: Ways, seed: int) -> None:
        super().__init__()
        self.part = ways.part(rows)
        self.weight = weight(f"{name}.weight", (rows, width), seed, (self.part,))
        self.ways = ways

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, length) -> (batch, length, width): rows of others come by an all-reduce."""
        local, mine = self._local(ids)
        found = functional.embedding(local, self.weight) * mine.unsqueeze(-1)
        return summed(found, self.ways)

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy of hidden states (batch, length, width); logits stay cut."""
        logits = functional.linear(copied(x, self.ways), self.weight).float()
        most = logits.detach().amax(-1, keepdim=True)
        if self.ways.size > 1:
            dist.all_reduce(most, dist.ReduceOp.MAX)
        logits = logits - most
        local, mine = self._local(labels)
        target = logits.gather(-1, local.unsqueeze(-1)).squeeze(-1) * mine
        total = summed(logits.exp().sum(-1), self.ways)
        return (total.log() - summed(target, self.ways)).mean()

    def _local(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Indices into this rank's rows, and which of them are this rank's."""
        mine = (ids >= self.part.start) & (ids < self.part.stop)
        return torch.where(mine, ids - self.part.start, 0), mine

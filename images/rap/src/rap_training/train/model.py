"""The sizes of a DLRM, its first weights, and the dot interaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch.nn import functional

BOTTOM = (512, 256, 128)


@dataclass(frozen=True, kw_only=True)
class Model:
    """Sizes of a DLRM; `rows[t]` rows of table t, each of `dim` floats."""

    rows: tuple[int, ...]
    dense_width: int
    over: tuple[int, ...] = (1024, 1024, 512, 256, 1)
    bottom: tuple[int, ...] = BOTTOM
    lr: float = 0.1

    @property
    def dim(self) -> int:
        """Floats of a row; the bottom MLP ends in as many."""
        return self.bottom[-1]

    @property
    def pairs(self) -> int:
        """Dot products between features: embeddings and the bottom MLP's output."""
        count = len(self.rows) + 1
        return count * (count - 1) // 2


class Interaction(torch.autograd.Function):
    """Dot products of all pairs of features, behind the bottom MLP's output.

    The gradient of the embeddings goes to a buffer of its own, not to autograd.
    """

    @staticmethod
    def forward(ctx, bottom, features, gradient, pairs, square):  # type: ignore[no-untyped-def]
        """`features` and `gradient` [F + 1, B, dim], place 0 the bottom's; [B, dim + pairs] out."""
        features[0].copy_(bottom)
        by_row = features.transpose(0, 1)
        dots = torch.bmm(by_row, by_row.transpose(1, 2)).flatten(1)
        ctx.buffers = features, gradient, square
        return torch.cat([bottom, dots.index_select(1, pairs)], dim=1)

    @staticmethod
    def backward(ctx, given):  # type: ignore[no-untyped-def]
        """See forward."""
        features, gradient, square = ctx.buffers
        count, batch, dim = features.shape
        padded = functional.pad(given[:, dim:], (0, 1))  # the diagonal's zeros
        both = padded.index_select(1, square).view(batch, count, count)
        gradient.copy_(torch.bmm(both, features.transpose(0, 1)).transpose(0, 1))
        return given[:, :dim] + gradient[0], None, None, None, None


def initial_layers(model: Model, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Weight [out, in] and bias [out] of every layer, the bottom MLP's first, on the CPU."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        bound = shape[-1] ** -0.5
        return torch.empty(shape).uniform_(-bound, bound, generator=generator)

    bottom = [model.dense_width, *model.bottom]
    over = [model.dim + model.pairs, *model.over]
    return [
        (draw(taken, given), draw(taken))
        for sizes in (bottom, over)
        for given, taken in pairwise(sizes)
    ]


def pair_tables(order: Sequence[int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Where pair (i, j), i > j, of features in table order stands in the dots, and back.

    Features stand in `order` behind the bottom's output; the second table maps every place of the
    square to its pair, the diagonal to a further one.
    """
    place = {0: 0} | {table + 1: at + 1 for at, table in enumerate(order)}
    count = len(place)
    pairs: list[int] = []
    square = [count * (count - 1) // 2] * (count * count)
    for i in range(count):
        for j in range(i):
            for one, other in ((place[i], place[j]), (place[j], place[i])):
                square[one * count + other] = len(pairs)
            pairs.append(place[i] * count + place[j])
    return torch.tensor(pairs, device=device), torch.tensor(square, device=device)

"""The GPT of Figure 15, or a pipeline stage of it, with weights cut over tensor-parallel ranks."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from pasta_workloads.parallel.sizes import ParallelSize
from pasta_workloads.parallel.tensor import (
    ColumnLinear,
    RowLinear,
    VocabularyEmbedding,
    Ways,
    weight,
)


class Layer(nn.Module):
    """Causal self-attention and a feed-forward part; heads and inner units are cut."""

    def __init__(self, number: int, size: ParallelSize, ways: Ways, seed: int) -> None:
        super().__init__()
        name, width = f"layers.{number}", size.width
        self.heads = size.heads // ways.size
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.inputs = ColumnLinear(f"{name}.inputs", width, width, ways, seed, groups=3)
        self.output = RowLinear(f"{name}.output", width, width, ways, seed)
        self.up = ColumnLinear(f"{name}.up", width, 4 * width, ways, seed)
        self.down = RowLinear(f"{name}.down", 4 * width, width, ways, seed)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) -> the same."""
        x = x + self.dropout(self.output(self._attention(self.norms[0](x))))
        inner = functional.gelu(self.up(self.norms[1](x)), approximate="tanh")
        result: Tensor = x + self.dropout(self.down(inner))
        return result

    def _attention(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.inputs(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(query.size(-1))
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = self.dropout(scores.masked_fill(later, -1e4).softmax(-1))
        return torch.matmul(weights, value).transpose(1, 2).reshape(batch, length, -1)


class Stage(nn.Module):
    """Layers `first` to `last` (exclusive) of the GPT; the first and last stage hold more.

    The embedding of the last stage is a second copy where it is not the first stage too; the ranks
    add up the two gradients.
    """

    def __init__(self, size: ParallelSize, layers: range, ways: Ways, seed: int) -> None:
        super().__init__()
        self.starts, self.ends = layers.start == 0, layers.stop == size.layers
        if self.starts or self.ends:
            rows = size.padded_vocabulary(ways.size)
            self.tokens = VocabularyEmbedding("tokens", rows, size.width, ways, seed)
        if self.starts:
            self.positions = weight("positions", (size.length, size.width), seed, ())
            self.dropout = nn.Dropout(size.dropout)
        self.layers = nn.ModuleDict({str(n): Layer(n, size, ways, seed) for n in layers})
        if self.ends:
            self.norm = nn.LayerNorm(size.width)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Token ids or the stage before's states -> states, or in the last stage the loss."""
        if self.starts:
            x = self.dropout(self.tokens(x) + self.positions)
        for layer in self.layers.values():
            x = layer(x)
        return self.tokens.loss(self.norm(x), labels) if self.ends else x

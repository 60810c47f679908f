"""BERT in the form of codertimo's BERT-pytorch: every step a plain operator, nothing fused.

Layer norm, GELU and attention are written out, which is where the paper's 487 launches come from
(40 a layer and 7 around them).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pasta_workloads.models.sizes import TextSize


class LayerNorm(nn.Module):
    """Mean and deviation over the last dimension, the deviation with Bessel's correction."""

    def __init__(self, width: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., width)."""
        mean = x.mean(-1, keepdim=True)
        deviation = x.std(-1, keepdim=True)
        return self.scale * (x - mean) / (deviation + self.epsilon) + self.shift


def gelu(x: Tensor) -> Tensor:
    """GELU by its tanh approximation, operator by operator."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


class Attention(nn.Module):
    """Self-attention of several heads; probabilities are kept whole."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.depth = heads, width // heads
        self.inputs = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(batch, length, width), mask (batch, 1, length, length) -> like x."""
        batch = x.size(0)
        query, key, value = (
            linear(x).view(batch, -1, self.heads, self.depth).transpose(1, 2)
            for linear in self.inputs
        )
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.depth)
        weights = self.dropout(scores.masked_fill(mask == 0, -1e9).softmax(-1))
        found = torch.matmul(weights, value).transpose(1, 2).contiguous()
        result: Tensor = self.output(found.view(batch, -1, self.heads * self.depth))
        return result


class Layer(nn.Module):
    """Attention and a feed-forward part, each behind a layer norm and around a residual."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(LayerNorm(width) for _ in range(2))
        self.dropouts = nn.ModuleList(nn.Dropout(dropout) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(batch, length, width) -> the same."""
        x = x + self.dropouts[0](self.attention(self.norms[0](x), mask))
        inner = self.down(self.dropouts[1](gelu(self.up(self.norms[1](x)))))
        x = x + self.dropouts[2](inner)
        result: Tensor = self.dropouts[3](x)
        return result


class Bert(nn.Module):
    """Token ids (batch, length) and segment ids -> (batch, length, width)."""

    positions: Tensor

    def __init__(self, size: TextSize, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width, padding_idx=0)
        self.segments = nn.Embedding(3, size.width, padding_idx=0)
        self.register_buffer("positions", _waves(size.context, size.width))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            Layer(size.width, size.heads, dropout) for _ in range(size.layers)
        )

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        """Hidden states of the last layer."""
        mask = (ids > 0).unsqueeze(1).repeat(1, ids.size(1), 1).unsqueeze(1)
        x = self.tokens(ids) + self.positions[:, : ids.size(1)] + self.segments(segments)
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x, mask)
        found: Tensor = x
        return found


def _waves(context: int, width: int) -> Tensor:
    """Sinusoidal positions, (1, context, width)."""
    place = torch.arange(context).float().unsqueeze(1)
    rate = (torch.arange(0, width, 2).float() * -(math.log(10000.0) / width)).exp()
    return torch.stack(((place * rate).sin(), (place * rate).cos()), -1).view(1, context, width)

"""GPT-2 with a language-model head in the form of graykode's gpt-2-Pytorch: no dropout, unfused.

583 launches a forward with loss: 47 a layer, 15 around them, the head, the loss and one copy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from pasta_workloads.models.bert import gelu
from pasta_workloads.models.sizes import TextSize


class LayerNorm(nn.Module):
    """Layer norm over the last dimension, operator by operator."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., width)."""
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + self.epsilon)
        return self.weight * x + self.bias


class Projection(nn.Module):
    """A linear layer whose weight is (inputs, outputs), as GPT-2's checkpoints have it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        found = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return found.view(*x.shape[:-1], found.size(-1))


class Attention(nn.Module):
    """Causal self-attention; keys and values are stacked for a cache that nobody reads."""

    triangle: Tensor

    def __init__(self, size: TextSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.inputs = Projection(size.width, 3 * size.width)
        self.output = Projection(size.width, size.width)
        self.register_buffer(
            "triangle", torch.tril(torch.ones(size.context, size.context))[None, None]
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, length, width) -> the same, and (2, batch, heads, length, depth)."""
        query, key, value = self.inputs(x).split(x.size(-1), dim=2)
        query, value = self._heads(query), self._heads(value)
        key = self._split(key).permute(0, 2, 3, 1)
        cache = torch.stack((key.transpose(-2, -1), value))
        scores = torch.matmul(query, key) / math.sqrt(value.size(-1))
        wanted, seen = scores.shape[-2:]
        allowed = self.triangle[:, :, seen - wanted : seen, :seen]
        scores = scores * allowed - 1e10 * (1 - allowed)
        found = torch.matmul(scores.softmax(-1), value).permute(0, 2, 1, 3).contiguous()
        return self.output(found.view(*x.shape)), cache

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, x.size(-1) // self.heads)

    def _heads(self, x: Tensor) -> Tensor:
        return self._split(x).permute(0, 2, 1, 3)


class Layer(nn.Module):
    """Attention and a feed-forward part, each behind a layer norm."""

    def __init__(self, size: TextSize) -> None:
        super().__init__()
        self.norms = nn.ModuleList(LayerNorm(size.width) for _ in range(2))
        self.attention = Attention(size)
        self.up = Projection(size.width, 4 * size.width)
        self.down = Projection(4 * size.width, size.width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, length, width) -> the same, and the attention's cache."""
        found, cache = self.attention(self.norms[0](x))
        x = x + found
        return x + self.down(gelu(self.up(self.norms[1](x)))), cache


class Gpt2(nn.Module):
    """Token ids (batch, length) and labels of the same shape -> the mean loss, a scalar."""

    def __init__(self, size: TextSize) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = LayerNorm(size.width)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """The loss; the head shares the token embedding's weight."""
        places = torch.arange(ids.size(-1), dtype=torch.long, device=ids.device)
        x = self.tokens(ids) + self.positions(places.unsqueeze(0).expand_as(ids)) + 0
        caches = []
        for layer in self.layers:
            x, cache = layer(x)
            caches.append(cache)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(
            logits.view(-1, logits.size(-1)), labels.view(-1), ignore_index=-1
        )

"""Whisper in the form of openai-whisper: an encoder of mel spectrograms and a text decoder.

Attention is PyTorch's fused one, causal in the decoder; layer norm and GELU are single operators.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from pasta_workloads.models.sizes import SpeechSize


class Attention(nn.Module):
    """Attention to the sequence itself, or to another one of the same width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, other: Tensor, causal: bool) -> Tensor:
        """(batch, length, width) with (batch, other length, width) -> like x."""
        query, key, value = (
            found.view(*found.shape[:2], self.heads, -1).permute(0, 2, 1, 3)
            for found in (self.query(x), self.key(other), self.value(other))
        )
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
        result: Tensor = self.output(found.permute(0, 2, 1, 3).flatten(start_dim=2))
        return result


class Layer(nn.Module):
    """Self-attention, in the decoder attention to the encoder's states, and feed-forward."""

    def __init__(self, width: int, heads: int, *, decodes: bool) -> None:
        super().__init__()
        self.decodes = decodes
        self.attention = Attention(width, heads)
        self.attention_norm = nn.LayerNorm(width)
        if decodes:
            self.cross = Attention(width, heads)
            self.cross_norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.feed_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, states: Tensor | None = None) -> Tensor:
        """(batch, length, width) -> the same."""
        inner = self.attention_norm(x)
        x = x + self.attention(inner, inner, causal=self.decodes)
        if states is not None:
            x = x + self.cross(self.cross_norm(x), states, causal=False)
        return x + self.feed(self.feed_norm(x))


class Encoder(nn.Module):
    """(batch, mels, frames) -> (batch, frames / 2, width)."""

    positions: Tensor

    def __init__(self, size: SpeechSize) -> None:
        super().__init__()
        self.first = nn.Conv1d(size.mels, size.width, 3, padding=1)
        self.second = nn.Conv1d(size.width, size.width, 3, stride=2, padding=1)
        self.register_buffer("positions", _waves(size.frames // 2, size.width))
        self.layers = nn.ModuleList(
            Layer(size.width, size.heads, decodes=False) for _ in range(size.layers)
        )
        self.norm = nn.LayerNorm(size.width)

    def forward(self, mels: Tensor) -> Tensor:
        """States of the audio."""
        x = functional.gelu(self.first(mels))
        x = functional.gelu(self.second(x)).permute(0, 2, 1)
        x = x + self.positions
        for layer in self.layers:
            x = layer(x)
        result: Tensor = self.norm(x)
        return result


class Decoder(nn.Module):
    """Token ids (batch, length) and audio states -> (batch, length, vocabulary) logits."""

    def __init__(self, size: SpeechSize) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Parameter(torch.empty(size.context, size.width).normal_(std=0.01))
        self.layers = nn.ModuleList(
            Layer(size.width, size.heads, decodes=True) for _ in range(size.layers)
        )
        self.norm = nn.LayerNorm(size.width)

    def forward(self, ids: Tensor, states: Tensor) -> Tensor:
        """Logits; the head shares the token embedding's weight."""
        x = self.tokens(ids) + self.positions[: ids.size(-1)]
        for layer in self.layers:
            x = layer(x, states)
        return self.norm(x) @ self.tokens.weight.t()


class Whisper(nn.Module):
    """Encoder and decoder; without `learn_encoder` the encoder runs without gradients."""

    def __init__(self, size: SpeechSize) -> None:
        super().__init__()
        self.encoder = Encoder(size)
        self.decoder = Decoder(size)

    def forward(self, mels: Tensor, ids: Tensor, learn_encoder: bool = False) -> Tensor:
        """(batch, mels, frames) and (batch, length) -> (batch, length, vocabulary)."""
        with torch.set_grad_enabled(learn_encoder and torch.is_grad_enabled()):
            states = self.encoder(mels)
        result: Tensor = self.decoder(ids, states)
        return result


def _waves(length: int, width: int) -> Tensor:
    """Sinusoidal positions, (length, width): sines first, then cosines."""
    rate = torch.exp(-math.log(10000) / (width // 2 - 1) * torch.arange(width // 2))
    angle = torch.arange(length)[:, None] * rate[None, :]
    return torch.cat((angle.sin(), angle.cos()), dim=1)

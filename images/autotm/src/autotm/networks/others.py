"""Two networks on the home ground of others: a transformer of equal layers, long skips."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

CLASSES_OF_PIXELS = 21


class Layer(nn.Module):
    """Causal attention and a perceptron, each after a norm and beside a skip; no dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """As GPT-2 medium: 24 layers of 1,024, 16 heads; its head shares the embedding's weight."""

    def __init__(
        self, layers: int = 24, width: int = 1024, heads: int = 16, words: int = 50257,
        length: int = 1024,
    ) -> None:  # fmt: skip
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight
        for each in (self.words, self.places):
            nn.init.normal_(each.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.words(x) + self.places.weight[: x.shape[1]]
        found: torch.Tensor = self.head(self.norm(self.layers(y)))
        return found.flatten(0, 1)


class Twice(nn.Sequential):
    """Two 3x3 convolutions, each with BatchNorm and ReLU."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        )  # fmt: skip


class Up(nn.Module):
    """Twice the size and half the channels, then joined with what was there on the way down."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.larger = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.body = Twice(2 * width, width)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.body(torch.cat([skip, self.larger(x)], 1))
        return found


class UNet(nn.Module):
    """A U-Net: what the first level makes waits until the last; a class for each pixel."""

    def __init__(self, levels: int = 4, width: int = 64) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels + 1)]
        self.down = nn.ModuleList(
            Twice(inputs, own) for inputs, own in zip([3, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(Up(own) for own in reversed(widths[:-1]))
        self.last = nn.Conv2d(width, CLASSES_OF_PIXELS, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips: list[torch.Tensor] = []
        for level, body in enumerate(self.down):
            x = body(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        for up, skip in zip(self.up, reversed(skips[:-1]), strict=True):
            x = up(x, skip)
        found: torch.Tensor = self.last(x)
        return found.permute(0, 2, 3, 1).flatten(0, 2)

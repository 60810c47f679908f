"""Small networks with their samples: what a joint graph can hold."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.body(x))


class Block(nn.Module):
    def __init__(self, width: int = 16, heads: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(seen.transpose(1, 2).reshape(batch, length, width)))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    """Its head shares the embedding's weight."""

    def __init__(self, words: int = 20, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(x))).flatten(0, 1)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.middle = nn.Conv2d(16, 16, 3, padding=1)
        self.up2, self.up1 = nn.Conv2d(32, 8, 3, padding=1), nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(F.max_pool2d(a, 2)))
        c = F.interpolate(F.relu(self.middle(F.max_pool2d(b, 2))), scale_factor=2)
        d = F.interpolate(F.relu(self.up2(torch.cat([b, c], 1))), scale_factor=2)
        return self.up1(torch.cat([a, d], 1)).mean((2, 3))


class Mlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 32), nn.ReLU(),
                         nn.Dropout(0.3), nn.Linear(32, 5))  # fmt: skip


class ConvNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 5))  # fmt: skip


def resnet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), Residual(), Residual(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))  # fmt: skip


def deep() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *[Residual() for _ in range(6)],
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))  # fmt: skip


def _image() -> tuple[torch.Tensor, ...]:
    return torch.randn(4, 3, 16, 16), torch.randint(0, 5, (4,))


def _words() -> tuple[torch.Tensor, ...]:
    return torch.randint(0, 20, (2, 6)), torch.randint(0, 20, (12,))


class Decay(nn.Module):
    """What it computes depends on a buffer that it changes: made again, it needs the old one."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12, 8), nn.Linear(8, 5)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x) * self.scale.clone())
        self.scale.mul_(0.5)
        return self.last(torch.sigmoid(h * h))


class Norms(nn.Module):
    """One batch normalisation, used twice: the second time it starts with what the first gave."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(n, 8, 3, padding=1) for n in (3, 8))
        self.norm, self.last = nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.norm(self.first(x)))
        return self.last(F.relu(self.norm(self.second(h))).mean((2, 3)))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "decay": (Decay, lambda: (torch.randn(6, 12), torch.randint(0, 5, (6,)))),
    "mlp": (Mlp, lambda: (torch.randn(6, 12), torch.randint(0, 5, (6,)))),
    "conv": (ConvNet, _image),
    "norms": (Norms, _image),
    "residual": (resnet, _image),
    "transformer": (Transformer, _words),
    "unet": (UNet, lambda: (torch.randn(2, 3, 16, 16), torch.randint(0, 2, (2,)))),
}


DEEP = {"deep": (deep, _image)}


def network(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A network in training mode and its sample, the same each time."""
    torch.manual_seed(0)
    make, sample = {**NETWORKS, **DEEP}[name]
    return make(), sample()

"""Inception v4 as a PyTorch module: ReLU after every convolution, no BatchNorm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

CLASSES = 1000
Layer = tuple[int, tuple[int, int] | int]  # channels, kernel


class Join(nn.Module):
    """Branches on the same input; their channels one after the other."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class _Maker:
    """Layers with their channels divided, for a small version."""

    def __init__(self, divisor: int) -> None:
        self._divisor = divisor

    def chain(self, inputs: int, *layers: Layer) -> nn.Sequential:
        """Convolutions that keep the size, and ReLUs."""
        found: list[nn.Module] = []
        for channels, size in layers:
            rows, columns = (size, size) if isinstance(size, int) else size
            pad = ((rows - 1) // 2, (columns - 1) // 2)
            found += [self._conv(inputs, channels, (rows, columns), padding=pad), nn.ReLU()]
            inputs = channels
        return nn.Sequential(*found)

    def valid(self, inputs: int, channels: int, size: int, stride: int = 1) -> nn.Sequential:
        """A convolution without padding, and a ReLU."""
        return nn.Sequential(self._conv(inputs, channels, (size, size), stride), nn.ReLU())

    def _conv(
        self, inputs: int, channels: int, size: tuple[int, int], stride: int = 1,
        padding: tuple[int, int] = (0, 0),
    ) -> nn.Module:  # fmt: skip
        divided = inputs if inputs == 3 else inputs // self._divisor
        return nn.Conv2d(divided, channels // self._divisor, size, stride, padding)

    def block(
        self, inputs: int, pooled: int, single: int, towers: Sequence[Sequence[Layer]]
    ) -> Join:
        average = nn.Sequential(nn.AvgPool2d(3, 1, 1), *self.chain(inputs, (pooled, 1)))
        single_one = self.chain(inputs, (single, 1))
        return Join(average, single_one, *(self.chain(inputs, *tower) for tower in towers))

    def split(self, inputs: int, *layers: Layer) -> nn.Sequential:
        """Layers, then a 1x3 and a 3x1 side by side."""
        last = layers[-1][0]
        ends = Join(self.chain(last, (256, (1, 3))), self.chain(last, (256, (3, 1))))
        return nn.Sequential(*self.chain(inputs, *layers), ends)


def inception_v4(
    counts: tuple[int, int, int] = (4, 7, 3), divisor: int = 1, pixels: int = 299
) -> nn.Module:
    """Blocks A, B, C; reductions (192, 224, 256, 384). divisor: of all channels."""
    net = _Maker(divisor)
    tall: list[Layer] = [(192, 1), (224, (1, 7)), (256, (7, 1))]
    long: list[Layer] = [(192, 1), (192, (1, 7)), (224, (7, 1)), (224, (1, 7)), (256, (7, 1))]
    layers: list[nn.Module] = [
        net.valid(3, 32, 3, 2), net.valid(32, 32, 3), net.chain(32, (64, 3)),
        Join(nn.MaxPool2d(3, 2), net.valid(64, 96, 3, 2)),
        Join(
            nn.Sequential(*net.chain(160, (64, 1)), *net.valid(64, 96, 3)),
            nn.Sequential(*net.chain(160, (64, 1), (64, (1, 7)), (64, (7, 1))),
                          *net.valid(64, 96, 3)),
        ),
        Join(net.valid(192, 192, 3, 2), nn.MaxPool2d(3, 2)),
        *(net.block(384, 96, 96, [[(64, 1), (96, 3)], [(64, 1), (96, 3), (96, 3)]])
          for _ in range(counts[0])),
        Join(
            nn.MaxPool2d(3, 2), net.valid(384, 384, 3, 2),
            nn.Sequential(*net.chain(384, (192, 1), (224, 3)), *net.valid(224, 256, 3, 2)),
        ),
        *(net.block(1024, 128, 384, [tall, long]) for _ in range(counts[1])),
        Join(
            nn.MaxPool2d(3, 2),
            nn.Sequential(*net.chain(1024, (192, 1)), *net.valid(192, 192, 3, 2)),
            nn.Sequential(*net.chain(1024, (256, 1), (256, (1, 7)), (320, (7, 1))),
                          *net.valid(320, 320, 3, 2)),
        ),
        *(Join(
            nn.Sequential(nn.AvgPool2d(3, 1, 1), *net.chain(1536, (256, 1))),
            net.chain(1536, (256, 1)),
            net.split(1536, (384, 1)),
            net.split(1536, (384, 1), (448, (1, 3)), (512, (3, 1))),
        ) for _ in range(counts[2])),
    ]  # fmt: skip
    last = 1 + (pixels - 75) // 32
    features = 1536 // divisor
    return nn.Sequential(*layers, nn.AvgPool2d(last), nn.Flatten(), nn.Linear(features, CLASSES))

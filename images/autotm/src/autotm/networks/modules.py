"""Networks of the evaluation as PyTorch modules, to be run: same layers as their graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

CLASSES = 1000


def vgg19() -> nn.Module:
    """VGG-19."""
    layers: list[nn.Module] = []
    channels = 3
    for width, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    for size in (25088, 4096):
        layers += [nn.Linear(size, 4096), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(4096, CLASSES))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with the stride on the last; a projection where the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int, project: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, stride), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        self.short: nn.Module = nn.Identity()
        if project:
            conv = nn.Conv2d(inputs, 4 * width, 1, stride)
            self.short = nn.Sequential(conv, nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.short(x))


def resnet200() -> nn.Module:
    """Bottlenecks (3, 24, 36, 3)."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, blocks in enumerate((3, 24, 36, 3)):
        width = 64 * 2**stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            layers.append(Bottleneck(inputs, width, stride, project=not block))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AvgPool2d(7), nn.Flatten(), nn.Linear(inputs, CLASSES))


class Dense(nn.Module):
    """What it makes is appended to what it gets."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, 4 * growth, 1),
            nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.body(x)], 1)


def densenet264(growth: int = 32) -> nn.Module:
    """Blocks (6, 12, 64, 48); transitions to twice the growth."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for block, count in enumerate((6, 12, 64, 48)):
        if block:
            conv = nn.Conv2d(channels, 2 * growth, 1)
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), conv, nn.AvgPool2d(2)]
            channels = 2 * growth
        for _ in range(count):
            layers.append(Dense(channels, growth))
            channels += growth
    return nn.Sequential(*layers, nn.AvgPool2d(7), nn.Flatten(), nn.Linear(channels, CLASSES))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "vgg19": vgg19,
    "resnet200": resnet200,
    "densenet264": densenet264,
}


def module(name: str, device: str) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """The module of `<network>_<batch>` and a synthetic sample. Raises ValueError."""
    net, _, batch = name.rpartition("_")
    if net not in MODULES:
        raise ValueError(f"'{name}' cannot be run; fix: <network>_<batch>, of {', '.join(MODULES)}")
    with torch.device(device):
        sample = torch.randn(int(batch), 3, 224, 224), torch.randint(0, CLASSES, (int(batch),))
        return MODULES[net](), sample

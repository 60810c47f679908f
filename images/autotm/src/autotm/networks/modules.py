"""Networks of the evaluation as PyTorch modules, to be run: same layers as their graphs.

Beside them stand two on the home ground of others, and a small version of each for a first look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from autotm.networks.branches import inception_v4
from autotm.networks.catalogue import TRAINED, named
from autotm.networks.others import CLASSES_OF_PIXELS, Gpt2, UNet

CLASSES = 1000
SIZES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))


def vgg19(
    stages: Sequence[tuple[int, int]] = SIZES, pixels: int = 224, hidden: int = 4096
) -> nn.Module:
    """VGG-19. stages: channels and convolutions of each; then two hidden layers."""
    layers: list[nn.Module] = []
    channels = 3
    for width, count in stages:
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    for size in (channels * (pixels >> len(stages)) ** 2, hidden):
        layers += [nn.Linear(size, hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, CLASSES))


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


def resnet200(
    counts: Sequence[int] = (3, 24, 36, 3), width: int = 64, pixels: int = 224
) -> nn.Module:
    """Bottlenecks; each stage is twice as wide as the one before."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3), nn.MaxPool2d(3, 2, 1)]
    inputs = width
    for stage, count in enumerate(counts):
        wide = width * 2**stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            layers.append(Bottleneck(inputs, wide, stride, project=not block))
            inputs = 4 * wide
    last = pixels >> (len(counts) + 1)
    return nn.Sequential(*layers, nn.AvgPool2d(last), nn.Flatten(), nn.Linear(inputs, CLASSES))


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


def densenet264(
    counts: Sequence[int] = (6, 12, 64, 48), growth: int = 32, pixels: int = 224
) -> nn.Module:
    """Dense blocks; transitions to twice the growth."""
    channels = 2 * growth
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for block, count in enumerate(counts):
        if block:
            conv = nn.Conv2d(channels, 2 * growth, 1)
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), conv, nn.AvgPool2d(2)]
            channels = 2 * growth
        for _ in range(count):
            layers.append(Dense(channels, growth))
            channels += growth
    last = pixels >> (len(counts) + 1)
    return nn.Sequential(*layers, nn.AvgPool2d(last), nn.Flatten(), nn.Linear(channels, CLASSES))


@dataclass(frozen=True)
class Network:
    """A module and what its sample looks like. pixels: of an image's side; words: of a text.

    each: the sample has a class for each pixel.
    """

    make: Callable[[], nn.Module]
    pixels: int = 0
    words: int = 0
    vocabulary: int = 0
    each: bool = False

    def sample(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Random inputs and classes."""
        if self.words:
            text = torch.randint(0, self.vocabulary, (2, batch, self.words))
            return text[0], text[1].flatten()
        classes = CLASSES_OF_PIXELS if self.each else CLASSES
        count = batch * self.pixels**2 if self.each else batch
        image = torch.randn(batch, 3, self.pixels, self.pixels)
        return image, torch.randint(0, classes, (count,))


MODULES = {
    "vgg19": Network(vgg19, 224),
    "inception": Network(inception_v4, 299),
    "resnet200": Network(resnet200, 224),
    "densenet264": Network(densenet264, 224),
    "gpt2medium": Network(Gpt2, words=1024, vocabulary=50257),
    "unet": Network(UNet, 512, each=True),
    "small-vgg": Network(partial(vgg19, ((4, 1), (8, 2)), 16, 32), 16),
    "small-inception": Network(partial(inception_v4, (1, 1, 1), 16, 75), 75),
    "small-resnet": Network(partial(resnet200, (1, 2), 4, 32), 32),
    "small-densenet": Network(partial(densenet264, (2, 2), 4, 32), 32),
    "small-gpt2": Network(partial(Gpt2, 2, 16, 2, 50, 12), words=12, vocabulary=50),
    "small-unet": Network(partial(UNet, 2, 4), 16, each=True),
}


class Cast(nn.Module):
    """A module whose forward runs under autocast; what it gives is float32."""

    def __init__(self, body: nn.Module, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.body, self._device, self._dtype = body, device, dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self._device, self._dtype):
            found: torch.Tensor = self.body(x)
        return found.float()


def module(
    name: str, device: str, precision: str = "fp32"
) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """The module of `<network>_<batch>` and a synthetic sample. Raises ValueError.

    precision: fp32, or bf16 by autocast (parameters stay float32).
    """
    net, batch = named(name, TRAINED)
    with torch.device(device):
        found, sample = MODULES[net].make(), MODULES[net].sample(batch)
    kind = torch.device(device).type
    return (Cast(found, kind, torch.bfloat16) if precision == "bf16" else found), sample

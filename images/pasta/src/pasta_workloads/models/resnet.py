"""ResNet-18 and ResNet-34 as the artifact's benchmarks have them.

Unlike torchvision's: ReLUs out of place, the shortcut cloned at the start of a block, and a bias in
the shortcut's convolution. All three show in kernels and working sets.
"""

from __future__ import annotations

from torch import Tensor, nn

LAYERS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}


class Block(nn.Module):
    """Two 3x3 convolutions with batch norm, and a shortcut."""

    def __init__(self, channels: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, planes, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(planes)
        self.second = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU()
        self.shortcut = (
            nn.Identity()
            if stride == 1 and channels == planes
            else nn.Sequential(
                nn.Conv2d(channels, planes, 1, stride=stride), nn.BatchNorm2d(planes)
            )
        )

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, h, w) -> (batch, planes, h / stride, w / stride)."""
        kept = images.clone()
        found = self.relu(self.first_norm(self.first(images)))
        found = self.second_norm(self.second(found))
        found += self.shortcut(kept)
        result: Tensor = self.relu(found)
        return result


class ResNet(nn.Module):
    """(batch, 3, pixels, pixels) -> (batch, classes) logits; `layers` blocks in the four stages."""

    def __init__(self, layers: tuple[int, ...], classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )  # fmt: skip
        blocks: list[Block] = []
        channels = 64
        for stage, count in enumerate(layers):
            planes = 64 << stage
            for number in range(count):
                blocks.append(Block(channels, planes, stride=2 if stage and not number else 1))
                channels = planes
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        found = self.pool(self.blocks(self.stem(images)))
        logits: Tensor = self.head(found.flatten(1))
        return logits

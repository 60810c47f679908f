"""AlexNet with ten classes: five convolutions, three linear layers, dropout in the classifier."""

from __future__ import annotations

from torch import Tensor, nn


class AlexNet(nn.Module):
    """(batch, 3, pixels, pixels) -> (batch, classes) logits. `pixels` of at least 63.

    ReLUs work in place: the working set of a ReLU is one tensor forward and three backward.
    """

    def __init__(self, classes: int = 10, dropout: float = 0.5) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_convolution(3, 64, kernel_size=11, stride=4, padding=2),
            nn.MaxPool2d(3, 2),
            *_convolution(64, 192, kernel_size=5, padding=2),
            nn.MaxPool2d(3, 2),
            *_convolution(192, 384, kernel_size=3, padding=1),
            *_convolution(384, 256, kernel_size=3, padding=1),
            *_convolution(256, 256, kernel_size=3, padding=1),
            nn.MaxPool2d(3, 2),
            nn.AdaptiveAvgPool2d(6),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(256 * 36, 4096), nn.ReLU(inplace=True),
            nn.Dropout(dropout), nn.Linear(4096, 4096), nn.ReLU(inplace=True),
            nn.Linear(4096, classes),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        found: Tensor = self.classifier(self.features(images).flatten(1))
        return found


def _convolution(
    channels: int, planes: int, *, kernel_size: int, padding: int, stride: int = 1
) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(channels, planes, kernel_size, stride=stride, padding=padding)
    return convolution, nn.ReLU(inplace=True)

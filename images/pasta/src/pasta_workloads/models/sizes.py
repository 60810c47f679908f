"""Sizes of the six workloads: the paper's (docs/papers/pasta.md, 2) and smaller ones.

`full` is the paper's. `small` is what the CPU variants of the collector finish in minutes, with the
same kernels. `tiny` runs on a CPU in well under a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

MODELS = ("alexnet", "resnet18", "resnet34", "bert", "gpt2", "whisper")
# Whisper as the paper counts it: with the launches that loading its published weights takes.
PUBLISHED = "whisper_paper"
SIZES = ("full", "small", "tiny")


@dataclass(frozen=True, kw_only=True)
class ImageSize:
    """A batch of square RGB images; `classes` soft labels each."""

    batch: int
    pixels: int
    classes: int = 10


@dataclass(frozen=True, kw_only=True)
class TextSize:
    """A batch of token sequences, padded to `length`; `context` positions at most."""

    batch: int
    length: int
    layers: int
    width: int
    heads: int
    vocabulary: int
    context: int


@dataclass(frozen=True, kw_only=True)
class SpeechSize:
    """A batch of mel spectrograms (`mels` x `frames`) with transcripts of `length` tokens."""

    batch: int
    mels: int
    frames: int
    length: int
    layers: int
    width: int
    heads: int
    vocabulary: int
    context: int


Size = ImageSize | TextSize | SpeechSize
_Kind = TypeVar("_Kind", ImageSize, TextSize, SpeechSize)

_TINY = {"layers": 2, "width": 32, "heads": 4}
_SMALL = {"layers": 2, "width": 768, "heads": 12}
_FULL = {"layers": 12, "width": 768, "heads": 12}
_TABLE: dict[str, dict[str, Size]] = {
    "alexnet": {
        "full": ImageSize(batch=128, pixels=512),
        "small": ImageSize(batch=4, pixels=128),
        "tiny": ImageSize(batch=2, pixels=64),
    },
    "resnet18": {
        "full": ImageSize(batch=32, pixels=512),
        "small": ImageSize(batch=2, pixels=128),
        "tiny": ImageSize(batch=2, pixels=32),
    },
    "resnet34": {
        "full": ImageSize(batch=32, pixels=512),
        "small": ImageSize(batch=2, pixels=128),
        "tiny": ImageSize(batch=2, pixels=32),
    },
    "bert": {  # length: the artifact's random seed 100 gives 378
        "full": TextSize(batch=16, length=378, vocabulary=30522, context=512, **_FULL),
        "small": TextSize(batch=2, length=64, vocabulary=30522, context=512, **_SMALL),
        "tiny": TextSize(batch=2, length=8, vocabulary=100, context=16, **_TINY),
    },
    "gpt2": {  # length: lengths of 341 to 512, padded to the batch's longest
        "full": TextSize(batch=8, length=487, vocabulary=50257, context=1024, **_FULL),
        "small": TextSize(batch=2, length=64, vocabulary=50257, context=1024, **_SMALL),
        "tiny": TextSize(batch=2, length=8, vocabulary=100, context=16, **_TINY),
    },
    "whisper": {  # length: lengths of 80 to 160; the longest of the first sixteen
        "full": SpeechSize(
            batch=16, mels=80, frames=3000, length=148, vocabulary=51865, context=448, **_FULL
        ),
        "small": SpeechSize(
            batch=2, mels=80, frames=300, length=32, vocabulary=51865, context=448, **_SMALL
        ),
        "tiny": SpeechSize(
            batch=2, mels=8, frames=20, length=6, vocabulary=100, context=16, **_TINY
        ),
    },
}


def size_of(model: str, size: str) -> Size:
    """The size called `size` of `model`. Raises KeyError for a name that is none."""
    return _TABLE["whisper" if model == PUBLISHED else model][size]


def image_size(model: str, size: str) -> ImageSize:
    """The same for AlexNet and the ResNets. Raises TypeError for another model."""
    return _of(size_of(model, size), ImageSize)


def text_size(model: str, size: str) -> TextSize:
    """The same for BERT and GPT-2."""
    return _of(size_of(model, size), TextSize)


def speech_size(model: str, size: str) -> SpeechSize:
    """The same for Whisper."""
    return _of(size_of(model, size), SpeechSize)


def _of(size: Size, kind: type[_Kind]) -> _Kind:
    if not isinstance(size, kind):
        raise TypeError(f"{size} is no {kind.__name__}")
    return size

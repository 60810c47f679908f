"""One model in one mode: its weights, its batch, and one iteration as the artifact's script has it.

| mode  | what an iteration is |
|-------|----------------------|
| test  | forward without gradients; GPT-2: in training mode, with gradients and loss; Whisper: the
|       | decoder with gradients, the encoder without |
| train | AlexNet and GPT-2: a training step; the others: forward and loss in training mode, because
|       | their scripts have the backward pass commented out |
| step  | ours: a training step of every model, Whisper's encoder included |
| test_bf16, step_bf16 | ours: the same with weights, batch and arithmetic in bf16 |

An iteration begins with the copy of its batch to the device. Source: docs/papers/pasta.md, 2.
The variant PUBLISHED of Whisper also loads its weights as openai-whisper does, in `load`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer

from pasta_workloads.config import BF16, MODES
from pasta_workloads.models.alexnet import AlexNet
from pasta_workloads.models.bert import Bert
from pasta_workloads.models.gpt2 import Gpt2
from pasta_workloads.models.resnet import LAYERS, ResNet
from pasta_workloads.models.sizes import MODELS, PUBLISHED, image_size, speech_size, text_size
from pasta_workloads.models.whisper import Whisper

LEARNS = {"train": ("alexnet", "gpt2"), "step": MODELS}
# Their test loads its checkpoint onto the GPU beside the model; the others' before the model.
LOADS_BESIDE = ("bert", "gpt2", "whisper")


@dataclass(frozen=True)
class Workload:
    """A model that is ready to run. `iteration()` returns its result: outputs or the loss.

    Where the loading of weights is part of what is counted, `load()` must come before.
    """

    model: nn.Module
    optimizer: Optimizer | None
    batch: tuple[Tensor, ...]
    iteration: Callable[[], Tensor]
    load: Callable[[], None] | None = None


def build_model(name: str, size: str) -> nn.Module:
    """The model with new weights, on PyTorch's default device. Raises KeyError for bad names."""
    if name == "alexnet":
        return AlexNet(image_size(name, size).classes)
    if name in LAYERS:
        return ResNet(LAYERS[name], image_size(name, size).classes)
    if name == "bert":
        return Bert(text_size(name, size))
    if name == "gpt2":
        return Gpt2(text_size(name, size))
    if name == "whisper":
        return Whisper(speech_size(name, size))
    raise KeyError(name)


def build_batch(name: str, size: str) -> tuple[Tensor, ...]:
    """Inputs and targets, as the artifact's data loaders collate them, on the default device."""
    if name == "alexnet" or name in LAYERS:
        image = image_size(name, size)
        images = torch.randn(image.batch, 3, image.pixels, image.pixels)
        return images, torch.rand(image.batch, image.classes)
    if name == "bert":
        text = text_size(name, size)
        ids = torch.randint(1, text.vocabulary, (text.batch, text.length))
        return ids, torch.randn(text.batch, text.width, text.length)
    if name == "gpt2":
        text = text_size(name, size)
        shape = (text.batch, text.length)
        return torch.randint(text.vocabulary, shape), torch.randint(text.vocabulary, shape)
    if name == "whisper":
        speech = speech_size(name, size)
        tokens = torch.ones(speech.batch, speech.length, dtype=torch.long)
        return torch.rand(speech.batch, speech.mels, speech.frames), tokens, tokens.clone()
    raise KeyError(name)


def build(name: str, mode: str, size: str, device: str, seed: int = 100) -> Workload:
    """Make weights and batch on the CPU and move the model to `device` (`meta` makes no data).

    Test modes load a checkpoint as the scripts do, made from the same weights: on a GPU it leaves
    its memory in PyTorch's cache, which the footprint shows.
    """
    if mode not in MODES:
        raise KeyError(mode)
    published, name = name == PUBLISHED, "whisper" if name == PUBLISHED else name
    halved, mode = mode.endswith(BF16), mode.removesuffix(BF16)
    torch.manual_seed(seed)
    with torch.device("meta" if device == "meta" else "cpu"):
        model, batch = build_model(name, size), build_batch(name, size)
    if halved:
        model.bfloat16()
        batch = tuple(part.bfloat16() if part.is_floating_point() else part for part in batch)
    if mode == "test" and name not in LOADS_BESIDE:
        _load_checkpoint(model, device)

    def move() -> None:
        model.to(device)
        if mode == "test" and name in LOADS_BESIDE:
            _load_checkpoint(model, device)

    load = _published(model, device, move) if published else None
    if load is None:
        move()
    # Whisper's script never calls train(); it has no dropout, so nothing hangs on it.
    model.train(mode != "test" or name == "gpt2")
    learns = name in LEARNS.get(mode, ())
    optimizer = _optimizer(name, model) if learns else None
    forward = _FORWARDS[name]

    def iteration() -> Tensor:
        there = [part.to(device) for part in batch]
        with torch.set_grad_enabled(mode != "test" or name in ("gpt2", "whisper")):
            found: Tensor = forward(model, there, mode)
        if optimizer is not None:
            optimizer.zero_grad()
            found.backward()
            optimizer.step()
        return found

    return Workload(model, optimizer, batch, iteration, load)


def _published(model: nn.Module, device: str, move: Callable[[], None]) -> Callable[[], None]:
    """What loads weights as openai-whisper's load_model does, from a checkpoint like OpenAI's.

    That holds fp16, the weights of linear layers with their columns one after another (derived
    from Table V: docs/papers/pasta.md, 6.4). It is on the device while the model is still on the
    CPU; filling the model makes each of these weights dense first, by a kernel; and it goes when
    the model has moved.
    """
    linear = {id(part.weight) for part in model.modules() if isinstance(part, nn.Linear)}
    parameters = list(model.parameters())
    stored = [part.detach().half() for part in parameters]
    stored = [
        half.t().contiguous().t() if id(part) in linear else half
        for half, part in zip(stored, parameters, strict=True)
    ]

    def load() -> None:
        checkpoint = [half.to(device) for half in stored]
        for part, half in zip(parameters, checkpoint, strict=True):
            dense = half.contiguous()
            if not part.is_meta:
                part.data.copy_(dense)
        move()

    return load


def _load_checkpoint(model: nn.Module, device: str) -> None:
    state = {name: tensor.to(device, copy=True) for name, tensor in model.state_dict().items()}
    if device != "meta":
        model.load_state_dict(state)


def _optimizer(name: str, model: nn.Module) -> Optimizer:
    """With foreach kernels, which PyTorch takes on a GPU of its own accord."""
    parameters = model.parameters()
    if name in ("bert", "gpt2", "whisper"):
        return AdamW(parameters, lr=1e-3 if name == "whisper" else 5e-5, foreach=True)
    return SGD(parameters, lr=1e-3, foreach=True)


def _images(model: nn.Module, batch: list[Tensor], mode: str) -> Tensor:
    images, targets = batch if mode != "test" else (batch[0], batch[0])
    found: Tensor = model(images)
    return found if mode == "test" else functional.cross_entropy(found, targets)


def _bert(model: nn.Module, batch: list[Tensor], mode: str) -> Tensor:
    ids, targets = batch
    found: Tensor = model(ids, torch.zeros_like(ids)).transpose(1, 2)
    return found if mode == "test" else functional.cross_entropy(found, targets)


def _gpt2(model: nn.Module, batch: list[Tensor], mode: str) -> Tensor:
    del mode  # the script computes the loss in both
    found: Tensor = model(*batch)
    return found


def _whisper(model: nn.Module, batch: list[Tensor], mode: str) -> Tensor:
    mels, ids, labels = batch
    found: Tensor = model(mels, ids, learn_encoder=mode == "step")
    if mode == "test":
        return found
    return functional.cross_entropy(found.view(-1, found.size(-1)), labels.view(-1))


_FORWARDS: dict[str, Any] = {
    "alexnet": _images, "resnet18": _images, "resnet34": _images, "bert": _bert, "gpt2": _gpt2,
    "whisper": _whisper,
}  # fmt: skip

"""What a rival is: a training step of a module with one knob."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autotm.executor.trying import unchanged_random

Run = Callable[[], torch.Tensor]
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Rival:
    """A name, the knobs to begin with (ascending), and the step at a knob.

    A step is a context: within, `run()` is an iteration (loss and gradients) of the module. whole:
    knobs are whole numbers. missing: why it cannot run with this PyTorch, or nothing. form: one of
    several ways to use it; all are tried.
    """

    name: str
    knobs: tuple[float, ...]
    step: Callable[[float], AbstractContextManager[Run]]
    whole: bool = True
    missing: str = ""
    form: str = ""


def blocks(module: nn.Module) -> list[nn.Module]:
    """What a person would wrap: the children of the outermost lists, or else of the module."""
    found: list[nn.Module] = []

    def walk(parent: nn.Module) -> None:
        for child in parent.children():
            if isinstance(parent, (nn.Sequential, nn.ModuleList)):
                found.append(child)
            else:
                walk(child)

    walk(module)
    return found or list(module.children())


@contextmanager
def wrapped(chosen: Sequence[nn.Module], wrap: Wrap) -> Iterator[None]:
    """Within, the blocks' forwards are wrapped."""
    for block in chosen:
        block.forward = wrap(block.forward)
    try:
        yield
    finally:
        for block in chosen:
            del block.forward


@contextmanager
def unchanged(module: nn.Module, sample: Sequence[torch.Tensor]) -> Iterator[None]:
    """Within, a forward may run for a look: buffers and random numbers are as before afterwards."""
    before = [(each, each.clone()) for each in module.buffers()]
    with unchanged_random(sample[0].device):
        try:
            yield
        finally:
            with torch.no_grad():
                for each, old in before:
                    each.copy_(old)


def iterate(compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Loss and gradients; the loss."""
    found = compute()
    found.backward()  # type: ignore[no-untyped-call]
    return found.detach()

"""What a rival is: a training step of a module with one knob."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import groupby
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


Block = tuple[nn.Module, ...]  # that run one after the other, each on what the last one gave


def blocks(module: nn.Module) -> list[Block]:
    """What a person would wrap: the children of the outermost lists, or else of the module.

    Single layers in a row are cut into as many pieces as each has layers, as nobody would wrap one
    layer: what it reads is kept, and that is what a convolution saves anyway. A sequence in which a
    layer stands twice has no such rows; others must be called as a whole.
    """
    found: list[Block] = []

    def walk(parent: nn.Module) -> None:
        children = list(parent.children())
        if isinstance(parent, nn.Sequential) and len(parent) == len(children):
            for alone, row in groupby(children, lambda child: not list(child.children())):
                layers = list(row)
                size = math.isqrt(len(layers) - 1) + 1 if alone else 1
                found.extend(tuple(layers[n : n + size]) for n in range(0, len(layers), size))
        elif isinstance(parent, (nn.Sequential, nn.ModuleList)):
            found.extend((child,) for child in children)
        else:
            for child in children:
                walk(child)

    walk(module)
    return found or [(each,) for each in module.children()]


@contextmanager
def wrapped(chosen: Sequence[Block], wrap: Wrap) -> Iterator[None]:
    """Within, the blocks' forwards are wrapped."""
    for block in chosen:
        forward = wrap(_one_after_another([each.forward for each in block]))
        for each in block:
            each.forward = _nothing
        block[0].forward = forward
    try:
        yield
    finally:
        for block in chosen:
            for each in block:
                del each.forward


def _one_after_another(forwards: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    def forward(*args: Any) -> Any:
        found = forwards[0](*args)
        for each in forwards[1:]:
            found = each(found)
        return found

    return forward if len(forwards) > 1 else forwards[0]


def _nothing(value: Any) -> Any:
    return value


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
    found.backward()
    return found.detach()

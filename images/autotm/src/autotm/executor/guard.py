"""What a captured graph depends on: the parts of a module, the likeness of the sample, autocast.

It is looked at before each iteration, while the GPU waits.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from operator import is_
from typing import Any

import torch
from torch import nn

from autotm.executor.outside import Held, held_by


class Guard:
    """A module's modes, shapes, what is trained, what has two names; a loss that is a module.

    First whether every part is the very same as the last time: that takes little.
    """

    def __init__(self, module: nn.Module, loss: Any = None) -> None:
        found = held_by(module)
        self._training, self._tied = found.training, _tied(found)
        self._keep(module, found)
        self._loss = list(loss.modules()) if isinstance(loss, nn.Module) else []
        self._of_loss = _parts(self._loss)

    def held(self, module: nn.Module) -> Held | None:
        """What the module has now, where it and its loss are as they were captured."""
        if not _same(_parts(self._loss), self._of_loss):
            return None
        if module is self._parts[0] and _same(_parts(self._modules), self._parts):
            if [each.training for each in self._modules] != self._modes:
                return None
            if _seen(self._found) == self._seen:
                return self._found
        now = held_by(module)
        if now.training != self._training or _tied(now) != self._tied:
            return None
        self._keep(module, now)
        return now

    def _keep(self, module: nn.Module, found: Held) -> None:
        self._found, self._seen = found, _seen(found)
        self._modules = list(module.modules())
        self._modes = [each.training for each in self._modules]
        self._parts = _parts(self._modules)


def _parts(modules: Sequence[nn.Module]) -> list[Any]:
    """The modules, and all that is directly in one."""
    inner = [(each._modules, each._parameters, each._buffers) for each in modules]
    return [*modules, *(part for three in inner for each in three for part in each.values())]


def _same(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


def _seen(held: Held) -> list[tuple[Any, ...]]:
    every = (*held.parameters.values(), *held.buffers.values())
    return [(t.shape, t.stride(), t.dtype, t.device, t.requires_grad) for t in every]


def _tied(held: Held) -> list[Any]:
    first: dict[int, int] = {}
    return [
        (first.setdefault(id(each), len(first)), each.requires_grad, likeness(each))
        for named in (held.parameters, held.buffers)
        for each in named.values()
    ]


def casting(device: torch.device) -> tuple[Any, ...]:
    """Whether autocast is on for a device, and to which type."""
    on = torch.is_autocast_enabled(device.type)
    return on, torch.get_autocast_dtype(device.type) if on else None


def likeness(value: Any) -> tuple[Any, ...]:
    """What a graph needs of a tensor. One of `inference_mode` has no versions to be compared."""
    if not isinstance(value, torch.Tensor):
        return (type(value),)
    return value.shape, value.stride(), value.dtype, value.device, value.is_inference()


def unlike(fitted: Sequence[tuple[Any, ...]], given: Sequence[tuple[Any, ...]]) -> str:
    """Two lists of `likeness` in a sentence: shapes, and what else differs; empty where nothing."""
    if fitted == given:
        return ""
    pairs = [(a, b) for a, b in zip(fitted, given, strict=False) if len(a) == len(b) > 1]
    shown = {part for a, b in pairs for part in range(1, len(a)) if a[part] != b[part]}
    want, got = (", ".join(_words(each, shown) for each in many) for many in (fitted, given))
    got = got or "none"
    return f"this step was fitted for inputs {want}, and got {got}; fit again for other inputs"


def _words(like: tuple[Any, ...], shown: Set[int]) -> str:
    if len(like) == 1:
        return str(like[0].__name__)
    shape, stride, dtype, device, inference = like
    rest = (f"of strides {stride}", str(dtype).removeprefix("torch."), f"on {device}",
            "of inference_mode()" if inference else "")  # fmt: skip
    words = [str(tuple(shape)), *(rest[part - 1] for part in (2, 3, 1, 4) if part in shown)]
    return " ".join(filter(None, words))

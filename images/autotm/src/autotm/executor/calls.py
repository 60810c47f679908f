"""What a capture is made of: views of storages, calls on them, and where each storage is from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from autotm.graph import ENDS, Graph, aligned

BLOCK = 512  # PyTorch's allocator on a GPU gives whole ones

Role = tuple[str, Any]  # ("parameter" | "buffer", name), ("input", position), ("tangent" | ...)


@dataclass(frozen=True)
class View:
    """Part of storage `tensor`: elements of `dtype`, `size` and `stride`, from element `offset`.

    For parameters and inputs the offset counts from where that tensor begins in its storage.
    """

    tensor: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Call:
    """One operator: `args` and `kwargs` hold a View where the operator gets a tensor.

    outputs: a View per returned value, None for one that nobody reads. forward: it is needed
    before the loss is known. seeded: it draws random numbers.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[View | None, ...]
    forward: bool
    seeded: bool


@dataclass(frozen=True)
class Capture:
    """A training iteration.

    graph: what the planner sees, with an op for each call in the same order, its seconds 0.
    roles: for each parameter or input, where it comes from. constants: tensors of the graph itself.
    loss: the view that is the loss. gradients: parameter name to its view. updates: buffer name to
    the view of its new value. inputs: the sample's tensors, flat, that calls must resemble.
    hosted: results that operators leave on the host, a few numbers each. rooms: by op, the tensor
    that is the memory in which it runs (`workspace.placed`).
    """

    graph: Graph
    calls: tuple[Call, ...]
    roles: dict[int, Role]
    constants: dict[int, torch.Tensor]
    loss: View
    gradients: dict[str, View]
    updates: dict[str, View]
    inputs: tuple[torch.Tensor, ...]
    device: torch.device
    hosted: frozenset[int] = frozenset()
    rooms: Mapping[int, int] = field(default_factory=dict)

    @property
    def changing(self) -> set[int]:
        """Buffers that the iteration gives new values."""
        return {
            tensor
            for tensor, (role, name) in self.roles.items()
            if role == "buffer" and name in self.updates
        }

    @property
    def resident_bytes(self) -> int:
        """Bytes outside the arena, in the allocator's blocks: parameters, buffers, inputs,
        gradients, the loss; and buffers as they were, for a step that is made again after them.
        """
        tensors = self.graph.tensors
        block = BLOCK if self.device.type == "cuda" else 1
        held = [each.id for each in tensors if each.kind in ENDS]
        return sum(aligned(tensors[each].bytes, block) for each in [*held, *self.changing])


def views_of(value: Any) -> list[View]:
    """Every View in arguments, in order."""
    if isinstance(value, View):
        return [value]
    if isinstance(value, dict):
        return [view for each in value.values() for view in views_of(each)]
    if isinstance(value, (tuple, list)):
        return [view for each in value for view in views_of(each)]
    return []


def mapped(value: Any, function: Callable[[View], Any]) -> Any:
    """Arguments with another thing in place of each View."""
    if isinstance(value, View):
        return function(value)
    if isinstance(value, dict):
        return {key: mapped(each, function) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(mapped(each, function) for each in value)
    return value

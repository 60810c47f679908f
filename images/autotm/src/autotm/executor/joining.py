"""Batch normalisation by the library that eager PyTorch takes, and its only reader: one call.

AOTAutograd has ATen's own kernels, which read the input twice. PyTorch's operator that takes cuDNN
has no out variant that works, and to copy its result into the arena would cost as much. But most
of these results are read by one operator, element by element (an activation, a sum): that one
writes into the arena, and the result between the two lies outside of it for a moment.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from autotm.executor.guard import likeness

NORM = torch.ops.aten._native_batch_norm_legit_functional.default
ARGUMENTS = 8  # of NORM
_BY_LIBRARY = torch.ops.aten._batch_norm_with_update.default


@dataclass(frozen=True)
class Pair:
    """Two operators as one node of a graph: `then` alone reads what the first one gives."""

    then: Any
    __name__ = "pair"  # for FX

    @property
    def tags(self) -> Any:
        return self.then.tags


@dataclass(frozen=True)
class Joined(Pair):
    """NORM and `then`, which reads its result as argument number `place`.

    Called with NORM's arguments, and after them the others of `then`. Gives the result of `then`
    and, as NORM, the statistics of the batch and the new running statistics.
    """

    place: int

    def __str__(self) -> str:
        return f"aten.batch_norm+{str(self.then).removeprefix('aten.')}"

    def __call__(self, *args: Any) -> tuple[torch.Tensor, ...]:
        mean, variance = args[3].clone(), args[4].clone()
        between, *statistics = normed(args, mean, variance)
        return self.then(*self.rest(args, between)), *statistics, mean, variance

    def rest(self, args: Sequence[Any], between: Any) -> list[Any]:
        """The arguments of `then`."""
        rest = list(args[ARGUMENTS:])
        rest.insert(self.place, between)
        return rest


def normed(args: Sequence[Any], mean: torch.Tensor, variance: torch.Tensor) -> list[torch.Tensor]:
    """NORM's result and statistics of the batch; updates the running ones in place."""
    x, weight, bias, _, _, _, momentum, eps = args[:ARGUMENTS]
    return list(_BY_LIBRARY(x, weight, bias, mean, variance, momentum, eps)[:3])


def by_library(x: torch.Tensor, weight: Any, training: Any) -> bool:
    """Whether PyTorch's operators that take cuDNN can be used: in training, with a weight, and
    channels first, where cuDNN reserves nothing for the gradient."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    first = x.is_contiguous() and not (last and x.is_contiguous(memory_format=last))
    return bool(training) and weight is not None and first


def join(graph: fx.Graph) -> None:
    """Put one node in the place of each such pair of a joint graph."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    for norm in [node for node in graph.nodes if node.target == NORM]:
        parts = {user.args[1]: user for user in norm.users}
        readers = list(parts[0].users) if 0 in parts else []
        if len(readers) != 1 or not _joinable(norm, parts[0], readers[0]):
            continue
        then = readers[0]
        others = [part for place, part in parts.items() if place]
        if any(order[user] < order[then] for part in others for user in part.users):
            continue
        place = then.args.index(parts[0])
        rest = [each for each in then.args if each is not parts[0]]
        with graph.inserting_before(then):
            joined = graph.call_function(Joined(then.target, place), (*norm.args, *rest))
            for number, old in {**parts, 0: then}.items():
                order[new := graph.call_function(operator.getitem, (joined, number))] = order[then]
                old.replace_all_uses_with(new)
        for old in (then, *parts.values(), norm):
            graph.erase_node(old)


def _joinable(norm: fx.Node, result: fx.Node, then: fx.Node) -> bool:
    target = then.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.pointwise not in target.tags:
        return False
    if then.kwargs or then.args.count(result) != 1 or is_backward(then) or is_backward(norm):
        return False
    x, value, between = (node.meta.get("val") for node in (norm.args[0], then, result))
    same = isinstance(value, torch.Tensor) and likeness(value) == likeness(between)
    return same and by_library(x, norm.args[1], norm.args[5])


def is_backward(node: fx.Node) -> bool:
    """Whether a node of a joint graph comes after the loss."""
    return node.meta.get("partitioner_tag") == "is_backward"

"""Counters of batches, of which every batch normalisation has one: all of a network in one call.

In the joint graph each is an operator by itself, and so a launch that the host has to make.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from autotm.executor.joining import is_backward

_aten = torch.ops.aten


def gather(graph: fx.Graph) -> None:
    """Put one node in the place of all sums of a whole number and a tensor of such that comes in
    from outside, where they only leave the graph."""
    alike: dict[Any, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.target == _aten.add.Tensor and _counts(node):
            value = node.meta["val"]
            alike.setdefault((node.args[1], value.dtype, value.device), []).append(node)
    for (number, *_), nodes in alike.items():
        if len(nodes) == 1:
            continue
        with graph.inserting_before(nodes[0]):
            counters = [node.args[0] for node in nodes]
            whole = graph.call_function(_aten._foreach_add.Scalar, (counters, number))
            whole.meta = {key: value for key, value in nodes[0].meta.items() if key != "val"}
            for place, old in enumerate(nodes):
                part = graph.call_function(operator.getitem, (whole, place))
                part.meta = dict(old.meta)
                old.replace_all_uses_with(part)
        for old in nodes:
            graph.erase_node(old)


def _counts(node: fx.Node) -> bool:
    counter, number = node.args
    return (
        isinstance(counter, fx.Node)
        and counter.op == "placeholder"
        and type(number) is int
        and not node.kwargs
        and not node.meta["val"].dtype.is_floating_point
        and not node.meta["val"].dtype.is_complex
        and all(user.op == "output" for user in node.users)
        and not is_backward(node)
    )

"""What of a captured graph an arena holds: activations and their gradients.

Parameters, buffers, inputs, the loss and the parameters' gradients stay outside, where PyTorch and
its optimizers expect them, and so does what operators hand on (`handing.py`). For the planner these
take no bytes; a budget pays for them first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotm.graph import OUTSIDE, Graph


def arena_graph(graph: Graph, seconds: Sequence[float] | None = None) -> Graph:
    """The graph with no bytes for what lies outside the arena, and with times of the ops."""
    tensors = tuple(
        replace(each, bytes=0) if each.kind in OUTSIDE else each for each in graph.tensors
    )
    times = [op.seconds for op in graph.ops] if seconds is None else seconds
    ops = tuple(replace(op, seconds=float(time)) for op, time in zip(graph.ops, times, strict=True))
    return Graph(tensors, ops, graph.name)

"""Chains of operators written down as steps, and the nodes they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rap_training.plan.graph import Node

Step = tuple[str, Mapping[str, Any]]


def step(op: str, **parameters: Any) -> Step:
    """One operator of a chain with its parameters."""
    return op, parameters


def chain(source: str, steps: Sequence[Step], *, first: int = 0) -> tuple[Node, ...]:
    """The nodes that apply `steps` to `source`, named source_position_operator."""
    nodes: list[Node] = []
    at = source
    for position, (op, parameters) in enumerate(steps, start=first):
        nodes.append(Node(name=f"{source}_{position}_{op}", op=op, input=at, parameters=parameters))
        at = nodes[-1].name
    return tuple(nodes)

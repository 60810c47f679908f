"""A softmax's gradient over the gradient that it reads: one call, and one tensor instead of two.

Beside a loss over many classes, or attention written out, both are as large as all the scores. The
kernels read an element where they write it, but PyTorch does not promise that: it is tried once
against the operators' own bits (`kernels.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from autotm.executor.calls import Call
from autotm.executor.guard import likeness
from autotm.executor.joining import Pair, is_backward
from autotm.executor.variants import Into, named, out_variant

_aten = torch.ops.aten
_OVER = (_aten._log_softmax_backward_data.default, _aten._softmax_backward_data.default)


@dataclass(frozen=True)
class Over(Pair):
    """`first`, and `then` which reads its result as its first argument.

    Called with the `count` arguments of `first`, and after them the others of `then`.
    """

    first: Any
    count: int

    def __str__(self) -> str:
        return f"{self.first}+{str(self.then).removeprefix('aten.')}"

    def __call__(self, *args: Any) -> Any:
        return self.then(self.first(*args[: self.count]), *args[self.count :])


def overwrite(graph: fx.Graph) -> None:
    """Put one node in the place of each such pair of a joint graph."""
    for then in [node for node in graph.nodes if node.target in _OVER]:
        first, *rest = then.args
        if then.kwargs or not is_backward(then) or not _overwritable(first, then):
            continue
        with graph.inserting_before(then):
            over = Over(then.target, first.target, len(first.args))
            node = graph.call_function(over, (*first.args, *rest))
        node.meta = dict(then.meta)
        then.replace_all_uses_with(node)
        for old in (then, first):
            graph.erase_node(old)


def _overwritable(first: fx.Node, then: fx.Node) -> bool:
    target = first.target
    if not isinstance(target, torch._ops.OpOverload) or len(target._schema.returns) != 1:
        return False
    if first.kwargs or len(first.users) != 1 or not is_backward(first):
        return False
    looks = any(each.alias_info is not None for each in target._schema.returns)
    seeded = torch.Tag.nondeterministic_seeded in target.tags
    same = likeness(first.meta["val"]) == likeness(then.meta["val"])
    return same and not looks and not seeded


def over(call: Call, device: str) -> Into | None:
    """Both into one place; None where one of them cannot write into a place."""
    both = [out_variant(each, device) for each in (call.target.first, call.target.then)]
    if both[0] is None or both[1] is None:
        return None
    write, rewrite = (named(target, names[0]) for target, names in both)  # type: ignore[misc]
    count = call.target.count

    def into(outs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        write(outs, args[:count], {})
        rewrite(outs, (outs[0], *args[count:]), {})

    return into

"""The out variants that PyTorch has of an operator, and where they can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from autotm.executor.calls import Call, views_of

Into = Callable[[Sequence[torch.Tensor], tuple[Any, ...], dict[str, Any]], None]
_aten = torch.ops.aten


def _relu(outs: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    torch.clamp_min(args[0], 0, out=outs[0])


def _copy(outs: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    outs[0].copy_(args[0])


def _fill(outs: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    outs[0].fill_(args[1])


def _ones(outs: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    outs[0].fill_(1)


def _zeros(outs: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    outs[0].zero_()


def _stack(outs: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    torch.stack(*args, **kwargs, out=outs[0])


def _scalar(function: Callable[..., Any]) -> Into:
    def into(outs: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        function(*args, **kwargs, out=outs[0])

    return into


# Operators whose functional kernel is these very calls.
KNOWN: dict[Any, Into] = {
    _aten.relu.default: _relu,
    _aten.clone.default: _copy,
    _aten._to_copy.default: _copy,
    _aten.full_like.default: _fill,
    _aten.full.default: _fill,
    _aten.ones_like.default: _ones,
    _aten.zeros_like.default: _zeros,
    _aten.zeros.default: _zeros,
    _aten.stack.default: _stack,
    _aten.add.Scalar: _scalar(torch.add),
    _aten.sub.Scalar: _scalar(torch.sub),
    _aten.mul.Scalar: _scalar(torch.mul),
    _aten.div.Scalar: _scalar(torch.div),
}


@cache
def out_variant(target: Any, device: str) -> tuple[Any, tuple[str, ...]] | None:
    """The out variant of `target` with a kernel of its own on `device`, and its outputs' names.

    Not of losses: some first make room in the output for one element of each input, and write it.
    """
    arguments = {each.name for each in target._schema.arguments}
    if "reduction" in arguments and "backward" not in target._schema.name:
        return None
    wanted = [(each.name, str(each.type)) for each in target._schema.arguments]
    for name in target.overloadpacket.overloads():
        found = getattr(target.overloadpacket, name)
        outs = tuple(each.name for each in found._schema.arguments if each.is_out)
        rest = [(each.name, str(each.type)) for each in found._schema.arguments if not each.is_out]
        if len(outs) != len(target._schema.returns) or rest != wanted:
            continue
        key = {"cpu": "CPU", "cuda": "CUDA"}.get(device, "")
        if key and torch._C._dispatch_has_kernel_for_dispatch_key(str(found._schema.name)
                                                                  + f".{name}", key):  # fmt: skip
            return found, outs
    return None


def named(target: Any, name: str) -> Into:
    def into(outs: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        target(*args, **kwargs, **{name: outs[0]})

    return into


def row_by_row(call: Call) -> bool:
    """Whether all that it reads and gives lies so."""
    return all(
        torch.empty_strided(view.size, view.stride, device="meta").is_contiguous()
        for view in views_of((call.args, call.kwargs, call.outputs))
    )

"""Types and devices as operators really give them: what fake tensors foretell is not always so.

Under autocast a CPU's batch normalisation, say, keeps its statistics in float32 where its fake
says bfloat16; an attention's random state may lie on the host. Each kind of call is run once, by
itself, on made-up operands.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any

import torch

from autotm.executor.calls import Call, Capture, View, mapped
from autotm.executor.errors import CaptureError
from autotm.executor.trying import tried, unchanged_random
from autotm.graph import Graph


def settled(capture: Capture) -> Capture:
    """The capture with what the operators give here. Raises CaptureError."""
    told: dict[int, torch.dtype] = {}  # tensor -> type as foretold
    true: dict[int, torch.dtype] = {}
    elsewhere: set[int] = set()  # on another device: too small to be worth a place in the arena

    def view(old: View) -> View:
        if old.tensor in true and old.dtype == told[old.tensor]:
            return replace(old, dtype=true[old.tensor])
        return old

    known: dict[str, list[Any]] = {}
    calls = []
    with torch.no_grad(), torch.autocast(capture.device.type, enabled=False):
        for call in capture.calls:
            now = replace(call, args=mapped(call.args, view), kwargs=mapped(call.kwargs, view))
            kind = repr((call.target, mapped(now.args, _like), mapped(now.kwargs, _like)))
            if kind not in known:
                known[kind] = _given(now, capture.device, elsewhere)
            for each, given in zip(now.outputs, known[kind], strict=True):
                if each is not None and each.dtype != given[0]:
                    told[each.tensor], true[each.tensor] = each.dtype, given[0]
                if each is not None and given[1] != capture.device.type:
                    elsewhere.add(each.tensor)
            calls.append(replace(now, outputs=mapped(now.outputs, view)))
    tensors = list(capture.graph.tensors)
    for tensor, dtype in true.items():
        size = tensors[tensor].bytes // told[tensor].itemsize * dtype.itemsize
        tensors[tensor] = replace(tensors[tensor], bytes=size)
    for tensor in elsewhere:
        tensors[tensor] = replace(tensors[tensor], kind="output")
    return replace(
        capture,
        graph=Graph(tuple(tensors), capture.graph.ops, capture.graph.name),
        calls=tuple(calls),
        loss=view(capture.loss),
        gradients=mapped(capture.gradients, view),
        updates=mapped(capture.updates, view),
        hosted=frozenset(elsewhere),
    )


def _like(view: View) -> Any:
    return view.dtype, view.size, view.stride


def _given(call: Call, device: torch.device, hosted: Set[int]) -> list[Any]:
    """Type and kind of device of what a call gives back, None where it is no tensor."""
    with unchanged_random(device):
        results = tried(lambda args, kwargs, _: call.target(*args, **kwargs), call, device, hosted)
    many = results if isinstance(results, (tuple, list)) else [results]
    for view, result in zip(call.outputs, many, strict=True):
        if view is not None and not isinstance(result, torch.Tensor):
            raise CaptureError(
                f"{call.target} gives back no tensor where PyTorch foretells one, so it has no "
                "place in a plan; write it with other operators"
            )
        if view is not None and tuple(result.shape) != view.size:
            raise CaptureError(
                f"{call.target} gives back {tuple(result.shape)} and was expected to give "
                f"{view.size}: its result depends on values, so it has no place in a plan"
            )
    return [
        (result.dtype, result.device.type) if isinstance(result, torch.Tensor) else None
        for result in many
    ]

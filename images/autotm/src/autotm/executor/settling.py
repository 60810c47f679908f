"""Types as operators really give them: what fake tensors foretell is not always so.

Under autocast a CPU's batch normalisation, say, keeps its statistics in float32 where its fake
says bfloat16. Each kind of call is run once, by itself, on made-up operands.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from autotm.executor.calls import Call, Capture, View, mapped
from autotm.executor.errors import CaptureError
from autotm.executor.profiling import operands, unchanged_random
from autotm.graph import Graph


def settled(capture: Capture) -> Capture:
    """The capture with the types that the operators give here. Raises CaptureError."""
    told: dict[int, torch.dtype] = {}  # tensor -> type as foretold
    true: dict[int, torch.dtype] = {}

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
                known[kind] = _given(now, capture.device)
            for each, dtype in zip(now.outputs, known[kind], strict=True):
                if each is not None and each.dtype != dtype:
                    told[each.tensor], true[each.tensor] = each.dtype, dtype
            calls.append(replace(now, outputs=mapped(now.outputs, view)))
    tensors = tuple(
        replace(each, bytes=each.bytes // told[each.id].itemsize * true[each.id].itemsize)
        if each.id in true
        else each
        for each in capture.graph.tensors
    )
    return replace(
        capture,
        graph=Graph(tensors, capture.graph.ops, capture.graph.name),
        calls=tuple(calls),
        loss=view(capture.loss),
        gradients=mapped(capture.gradients, view),
        updates=mapped(capture.updates, view),
    )


def _like(view: View) -> Any:
    return view.dtype, view.size, view.stride


def _given(call: Call, device: torch.device) -> list[Any]:
    """The types of what a call gives back, None where it is no tensor."""
    made: dict[int, torch.Tensor] = {}
    with unchanged_random(device):
        results = call.target(
            *operands(call.args, device, made), **operands(call.kwargs, device, made)
        )
    many = results if isinstance(results, (tuple, list)) else [results]
    for view, result in zip(call.outputs, many, strict=True):
        if view is not None and tuple(result.shape) != view.size:
            raise CaptureError(
                f"{call.target} gives back {tuple(result.shape)} and was expected to give "
                f"{view.size}: its result depends on values, so it has no place in a plan"
            )
    return [result.dtype if isinstance(result, torch.Tensor) else None for result in many]

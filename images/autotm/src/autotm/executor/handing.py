"""Gradients that one operator hands to the next, and that never lie in the arena.

What PyTorch cannot write in place would be copied into the arena, to be read once by the very next
operator: most of what a backward copies. It is handed on as it lies instead: always where operators
run in a region, as what is handed on lies there; else wherever that takes no more room at a time
than the largest of those copies and what lies between two operators that are joined. Workspace
comes on top, and is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotm.executor.calls import BLOCK, Capture
from autotm.executor.joining import Joined
from autotm.executor.kernels import Kernel, kernel
from autotm.executor.memory import regions_on
from autotm.executor.profiling import Measured
from autotm.graph import OUTSIDE, Op, aligned


def handing(capture: Capture) -> Capture:
    """The capture with such tensors of kind `handed`. Who makes or reads one runs but once."""
    graph = capture.graph
    inside = {each.id for each in graph.tensors if each.kind not in OUTSIDE}
    kernels = [kernel(call, lambda v: v.tensor in inside, capture.device.type)
               for call in capture.calls]  # fmt: skip
    most = sum(
        max((each.outside for each in kernels if joined(each) is it), default=0)
        for it in (False, True)
    )
    again = max((each.outside for each in kernels if each.call.forward), default=0)
    always = regions_on(capture.device)
    tensors, ops = list(graph.tensors), list(graph.ops)
    for op, mine, following in zip(graph.ops, kernels, kernels[1:], strict=False):
        handed = _candidates(capture, op, mine)
        size = sum(tensors[each].bytes for each in handed)
        if handed and (always or size + max(following.outside, again) <= most):
            for each in handed:
                tensors[each] = replace(tensors[each], kind="handed")
            for index in (op.index, op.index + 1):
                ops[index] = replace(ops[index], recomputable=False)
    return replace(capture, graph=replace(graph, tensors=tuple(tensors), ops=tuple(ops)))


def joined(kernel: Kernel) -> bool:
    return isinstance(kernel.call.target, Joined)


def _candidates(capture: Capture, op: Op, mine: Kernel) -> list[int]:
    graph = capture.graph
    if mine.direct and not mine.by_parts:
        return []
    return [
        each
        for each in op.outputs
        if graph.tensors[each].kind == "gradient" and graph.uses[each] == (op.index + 1,)
    ]


def room(capture: Capture, measured: Sequence[Measured]) -> int:
    """Bytes outside the arena for operators at work and for what is handed on meanwhile.

    Those that run within the arena (`workspace.placed`) need none. Between the two who hand a
    tensor on, operators of the forward may be made again.
    """
    graph = capture.graph
    needs = [0 if n in capture.rooms else each.outside for n, each in enumerate(measured)]

    def held(tensors: Sequence[int]) -> int:
        found = [graph.tensors[t] for t in tensors if graph.producer[t] not in capture.rooms]
        return sum(aligned(each.bytes, BLOCK) for each in found if each.kind == "handed")

    pairs = list(zip(graph.ops, capture.calls, needs, strict=True))
    work = max((need + held(op.operands) for op, _, need in pairs), default=0)
    waiting = max((held(op.outputs) for op in graph.ops), default=0)
    again = max((need for _, call, need in pairs if call.forward), default=0)
    return max(work, waiting + again if waiting else 0)

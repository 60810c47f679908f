"""Rivals that PyTorch compiles: its memory budget, and its own offloading. Each in several forms.

`activation_memory_budget` promises what passes from a graph's forward to its backward: at most that
share of what is saved at 1. It says nothing of the peak: at a low budget the backward of one whole
graph makes all of the forward again at once. Compiled block by block, as large models are trained,
the same budget holds for each block, and so does the peak; what a compiler could have joined across
blocks is lost. A person would try both, so both are forms of the rival.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from shutil import which
from typing import Any

import torch
import torch._dynamo.config as dynamo
import torch._functorch.config as functorch
import torch._inductor.config as inductor
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch.partitioners import min_cut_rematerialization_partition

from autotm.executor.lossy import Loss, whole
from autotm.rivals.base import Rival, Run, blocks, iterate, wrapped

OFFLOADING = ("enable_activation_offloading",)
STREAMS = (*OFFLOADING, "activation_offload_separate_stream", "activation_reload_prefetch")
EIGHTHS = tuple(share / 8 for share in range(9))


def compiled_rivals(
    module: nn.Module, sample: Sequence[torch.Tensor], loss: Loss | None, backend: str
) -> list[Rival]:
    """Each rival in each form. backend: torch.compile's."""
    lacking = _no_compiler() if backend == "inductor" else ""
    step = partial(_compiled, module, sample, loss)
    grid = tuple(share / 10 for share in range(11))
    found = []
    for solver in ("dp", "greedy", "ilp"):
        missing = lacking or (_lacks("scipy") if solver == "ilp" else "")
        for form in ("whole", "blocks"):
            found.append(
                Rival(
                    f"memory_budget_{solver}", grid, _budget(step, backend, solver, form),
                    whole=False, missing=missing, form=form,
                )
            )  # fmt: skip
    for form, names, using in (
        ("streams", STREAMS, backend),
        ("one_stream", OFFLOADING, backend),
        ("streams_uncompiled", STREAMS, "aot_eager"),  # the same passes, operators as they are
    ):
        absent = [f"this PyTorch has no {name}" for name in names if not hasattr(functorch, name)]
        missing = next(iter(absent), lacking if using == "inductor" else "")
        found.append(
            Rival(
                "activation_offloading", EIGHTHS, _offloading(step, using, names),
                whole=False, missing=missing, form=form,
            )
        )  # fmt: skip
    return found


Step = Callable[..., AbstractContextManager[Run]]


def _budget(
    step: Step, backend: str, solver: str, form: str
) -> Callable[[float], AbstractContextManager[Run]]:
    def at(knob: float) -> AbstractContextManager[Run]:
        patches = {"activation_memory_budget_solver": solver, "activation_memory_budget": knob}
        return step(backend, patches, by_block=form == "blocks")

    return at


def _offloading(
    step: Step, backend: str, names: Sequence[str]
) -> Callable[[float], AbstractContextManager[Run]]:
    """PyTorch's offloading pass; of the largest saved tensors, a share (the knob) is tagged."""
    return lambda knob: step(backend, dict.fromkeys(names, True), tagged=knob)


def _no_compiler() -> str:
    """Why Inductor cannot compile here, or nothing."""
    there = any(map(which, (os.environ.get("CC", "cc"), "gcc", "clang")))
    return "" if there else "torch.compile needs a C compiler, and there is none"


def _lacks(package: str) -> str:
    return "" if find_spec(package) else f"{package} is not installed"


@contextmanager
def _compiled(
    module: nn.Module, sample: Sequence[torch.Tensor], loss: Loss | None, backend: str,
    patches: dict[str, Any], *, tagged: float | None = None, by_block: bool = False,
) -> Iterator[Run]:  # fmt: skip
    torch.compiler.reset()
    with ExitStack() as stack:
        stack.enter_context(functorch.patch(patches))
        # One code serves all blocks of a kind, compiled anew for each shape; never left eager.
        stack.enter_context(dynamo.patch(recompile_limit=256, fail_on_recompile_limit_hit=True))
        using: Any = backend
        if tagged is not None and backend == "inductor":
            stack.enter_context(inductor.patch(joint_custom_post_pass=partial(_tag, tagged)))
        elif tagged is not None:
            using = _uncompiled(tagged)
        compile = partial(torch.compile, backend=using, dynamic=False)
        if by_block:
            stack.enter_context(wrapped(blocks(module), compile))
            yield lambda: iterate(lambda: whole(module, loss, sample))
        else:
            compute = compile(lambda *args: whole(module, loss, args))
            yield lambda: iterate(lambda: compute(*sample))
    torch.compiler.reset()


def _tag(share: float, graph: Any) -> None:
    """Tag a share of what a joint graph would save, by bytes, to leave."""
    nodes = [node for node in graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    crossing = [node for node in nodes if _crosses(node)]
    sizes = {node: node.meta["val"].numel() * node.meta["val"].itemsize for node in crossing}
    left = share * sum(sizes.values())
    for node in sorted(crossing, key=lambda each: -sizes[each]):
        if sizes[node] <= left:
            node.meta["should_offload"] = True
            left -= sizes[node]


def _uncompiled(share: float) -> Any:
    """A backend that partitions as Inductor does and then runs each operator as it is."""

    def partition(joint: Any, inputs: Any, **options: Any) -> Any:
        _tag(share, joint.graph)
        return min_cut_rematerialization_partition(joint, inputs, **options)

    return aot_autograd(fw_compiler=boxed_nop, bw_compiler=boxed_nop, partition_fn=partition)


def _crosses(node: Any) -> bool:
    """Whether a value of the forward is read by the backward."""
    backward = "is_backward"
    mine = node.op == "call_function" and node.meta.get("partitioner_tag") != backward
    return mine and any(user.meta.get("partitioner_tag") == backward for user in node.users)

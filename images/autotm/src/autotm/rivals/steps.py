"""The rivals: a training step each, in eager PyTorch or compiled, with one knob.

A step is a context: within, `run()` is an iteration (loss and gradients) of the module. The knob of
the eager ones is how many blocks of the module take part, that of `activation_memory_budget` is
the budget itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from shutil import which
from typing import Any

import torch
import torch._functorch.config as functorch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from autotm.executor.capture import Loss, whole
from autotm.rivals.offload import OffloadActivations

Run = Callable[[], torch.Tensor]
_aten = torch.ops.aten
# What is dear to compute beside its bytes; the rest is made again.
DEAR = {
    _aten.convolution.default, _aten.mm.default, _aten.addmm.default, _aten.bmm.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
}  # fmt: skip


@dataclass(frozen=True)
class Rival:
    """A name, the knobs to begin with (ascending), and the step at a knob.

    whole: knobs are whole numbers. missing: why it cannot run with this PyTorch, or nothing.
    """

    name: str
    knobs: tuple[float, ...]
    step: Callable[[float], AbstractContextManager[Run]]
    whole: bool = True
    missing: str = ""


def blocks(module: nn.Module) -> list[nn.Module]:
    """What a person would wrap: the children of the outermost lists, or else of the module."""
    found: list[nn.Module] = []

    def walk(parent: nn.Module) -> None:
        for child in parent.children():
            if isinstance(parent, (nn.Sequential, nn.ModuleList)):
                found.append(child)
            else:
                walk(child)

    walk(module)
    return found or list(module.children())


@contextmanager
def _wrapped(
    chosen: Sequence[nn.Module], wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Within, the blocks' forwards are wrapped."""
    for block in chosen:
        block.forward = wrap(block.forward)
    try:
        yield
    finally:
        for block in chosen:
            del block.forward


def rivals(
    module: nn.Module, sample: Sequence[torch.Tensor], loss: Loss | None, backend: str = "inductor"
) -> list[Rival]:
    """All rivals for a module. backend: torch.compile's, for those that need it."""
    count = len(blocks(module))
    some = tuple(float(n) for n in sorted({round(count * share / 8) for share in range(9)}))
    grid = tuple(share / 10 for share in range(11))
    eager = partial(_eager, module, sample, loss)
    compiled = partial(_compiled, module, sample, loss, backend)
    found = [
        Rival("plain", (0.0,), lambda knob: eager(0, None)),
        Rival("save_on_cpu", some, lambda knob: eager(int(knob), _saving)),
        Rival("checkpoint", some, lambda knob: eager(int(knob), _again)),
        Rival("selective_checkpoint", some, lambda knob: eager(int(knob), _selective)),
        Rival(
            "offload_activations", some, lambda knob: eager(int(knob), _offloading(module)),
        ),
    ]  # fmt: skip
    lacking = _no_compiler() if backend == "inductor" else ""
    for solver in ("dp", "greedy", "ilp"):
        patches = {"activation_memory_budget_solver": solver}
        found.append(
            Rival(
                f"memory_budget_{solver}", grid,
                lambda knob, p=patches: compiled({**p, "activation_memory_budget": knob}),  # type: ignore[misc]
                whole=False, missing=lacking or (_lacks("scipy") if solver == "ilp" else ""),
            )
        )  # fmt: skip
    return [*found, _built_in(compiled, lacking)]


def _built_in(compiled: Callable[..., AbstractContextManager[Run]], lacking: str) -> Rival:
    """PyTorch's own offloading pass; of the largest saved tensors, a share (the knob) is tagged."""
    names = ("enable_activation_offloading", "activation_offload_separate_stream",
             "activation_reload_prefetch")  # fmt: skip
    missing = [f"this PyTorch has no {name}" for name in names if not hasattr(functorch, name)]
    if torch.__version__.startswith("2.11."):  # seen on a GPU: Inductor fails at record_stream
        missing.append("PyTorch 2.11 cannot compile the streams of its own offloading")
    grid = tuple(share / 8 for share in range(9))
    return Rival(
        "activation_offloading", grid,
        lambda knob: compiled(dict.fromkeys(names, True), tagged=knob), whole=False,
        missing=lacking or next(iter(missing), ""),
    )  # fmt: skip


def _no_compiler() -> str:
    """Why Inductor cannot compile here, or nothing."""
    there = any(map(which, (os.environ.get("CC", "cc"), "gcc", "clang")))
    return "" if there else "torch.compile needs a C compiler, and there is none"


def _lacks(package: str) -> str:
    return "" if find_spec(package) else f"{package} is not installed"


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


@contextmanager
def _eager(
    module: nn.Module, sample: Sequence[torch.Tensor], loss: Loss | None, count: int,
    wrap: Wrap | None,
) -> Iterator[Run]:  # fmt: skip
    with _wrapped(blocks(module)[:count], wrap) if wrap is not None else nullcontext():
        yield lambda: _iterate(lambda: whole(module, loss, sample))


def _iterate(compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    found = compute()
    found.backward()  # type: ignore[no-untyped-call]
    return found.detach()


def _saving(forward: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available()):
            return forward(*args)

    return call


def _again(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: checkpoint(forward, *args, use_reentrant=False)


def _policy(_: Any, target: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    dear = target in DEAR
    return CheckpointPolicy.MUST_SAVE if dear else CheckpointPolicy.PREFER_RECOMPUTE


def _selective(forward: Callable[..., Any]) -> Callable[..., Any]:
    contexts = partial(create_selective_checkpoint_contexts, _policy)
    return lambda *args: checkpoint(forward, *args, use_reentrant=False, context_fn=contexts)


def _offloading(module: nn.Module) -> Wrap:
    hooks = OffloadActivations([*module.parameters(), *module.buffers()])

    def wrap(forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with hooks:
                return forward(*args)

        return call

    return wrap


@contextmanager
def _compiled(
    module: nn.Module, sample: Sequence[torch.Tensor], loss: Loss | None, backend: str,
    patches: dict[str, Any], tagged: float | None = None,
) -> Iterator[Run]:  # fmt: skip
    torch.compiler.reset()
    with ExitStack() as stack:
        stack.enter_context(functorch.patch(patches))
        if tagged is not None:
            stack.enter_context(_tagging(tagged))
        compute = torch.compile(lambda *args: whole(module, loss, args), backend=backend)
        yield lambda: _iterate(lambda: compute(*sample))
    torch.compiler.reset()


@contextmanager
def _tagging(share: float) -> Iterator[None]:
    """Within, a share of what compiled graphs would save, by bytes, is tagged to leave."""
    import torch._inductor.config as inductor

    def tag(graph: Any) -> None:
        nodes = [node for node in graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
        crossing = [node for node in nodes if _crosses(node)]
        sizes = {node: node.meta["val"].numel() * node.meta["val"].itemsize for node in crossing}
        left = share * sum(sizes.values())
        for node in sorted(crossing, key=lambda each: -sizes[each]):
            if sizes[node] <= left:
                node.meta["should_offload"] = True
                left -= sizes[node]

    with inductor.patch(joint_custom_post_pass=tag):
        yield


def _crosses(node: Any) -> bool:
    """Whether a value of the forward is read by the backward."""
    backward = "is_backward"
    mine = node.op == "call_function" and node.meta.get("partitioner_tag") != backward
    return mine and any(user.meta.get("partitioner_tag") == backward for user in node.users)

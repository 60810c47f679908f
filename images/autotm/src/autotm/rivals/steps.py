"""The rivals: a training step each, in eager PyTorch or compiled, with one knob.

The knob of most eager ones is how many blocks of the module take part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from autotm.executor.lossy import Loss, whole
from autotm.executor.outside import fits_on_host
from autotm.rivals.base import Rival, Run, Wrap, blocks, iterate, unchanged, wrapped
from autotm.rivals.compiling import EIGHTHS, compiled_rivals
from autotm.rivals.offload import Counted, OffloadActivations, pinned_bytes
from autotm.rivals.selective import DEAR, observed, selected


def rivals(
    module: nn.Module, sample: Sequence[torch.Tensor], loss: Loss | None, backend: str = "inductor"
) -> list[Rival]:
    """All rivals for a module, each in each form. backend: torch.compile's, for those of it."""
    count = len(blocks(module))
    some = tuple(float(n) for n in sorted({round(count * share / 8) for share in range(9)}))
    eager = partial(_eager, module, sample, loss)
    torchtune, missing = _torchtune()
    return [
        Rival("plain", (0.0,), lambda knob: eager(0, None)),
        Rival("save_on_cpu", some, lambda knob: _saved(module, sample, loss, int(knob))),
        Rival("checkpoint", some, lambda knob: eager(int(knob), _again)),
        Rival("selective_checkpoint", some, lambda knob: eager(int(knob), _selective)),
        Rival(
            "selective_checkpoint_ilp", EIGHTHS,
            partial(selected, module, sample, loss, cache(partial(observed, module, sample, loss))),
            whole=False,
        ),
        Rival(
            "offload_activations", EIGHTHS, partial(_offloaded, module, sample, loss), whole=False,
        ),
        Rival(
            "torchtune_offload", some, lambda knob: eager(int(knob), _within(torchtune())),
            missing=missing,
        ),
        *compiled_rivals(module, sample, loss, backend),
    ]  # fmt: skip


def _torchtune() -> tuple[Callable[[], Any], str]:
    """torchtune's own class, or why there is none."""
    if not torch.cuda.is_available():
        return nullcontext, "torchtune's OffloadActivations needs a GPU"
    try:
        from torchtune.training import (  # type: ignore[import-not-found, unused-ignore]
            OffloadActivations as Theirs,
        )
    except (ImportError, AttributeError, RuntimeError) as error:  # it needs an old torchao
        return nullcontext, f"torchtune cannot be imported: {error}"
    return Theirs, ""


@contextmanager
def _eager(
    module: nn.Module, sample: Sequence[torch.Tensor], loss: Loss | None, count: int,
    wrap: Wrap | None,
) -> Iterator[Run]:  # fmt: skip
    with wrapped(blocks(module)[:count], wrap) if wrap is not None else nullcontext():
        yield lambda: iterate(lambda: whole(module, loss, sample))


@contextmanager
def _saved(
    module: nn.Module, sample: Sequence[torch.Tensor], loss: Loss | None, count: int
) -> Iterator[Run]:
    """The step of which blocks save on the host, after a look at how many bytes that takes.

    Raises torch.OutOfMemoryError where the host has no room for them.
    """
    sizes: list[int] = []
    hooks = torch.autograd.graph.saved_tensors_hooks
    look = _within(hooks(lambda tensor: sizes.append(tensor.nbytes), lambda nothing: nothing))
    letting_go = hooks(lambda tensor: None, lambda nothing: nothing)
    with unchanged(module, sample), letting_go, wrapped(blocks(module)[:count], look):
        whole(module, loss, sample)
    if not fits_on_host(sum(map(pinned_bytes, sizes))):
        raise torch.OutOfMemoryError("the host has no room for what is saved there")
    saving = _within(torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available()))
    with _eager(module, sample, loss, count, saving) as run:
        yield run


def _again(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: checkpoint(forward, *args, use_reentrant=False)


def _policy(_: Any, target: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    dear = target in DEAR
    return CheckpointPolicy.MUST_SAVE if dear else CheckpointPolicy.PREFER_RECOMPUTE


def _selective(forward: Callable[..., Any]) -> Callable[..., Any]:
    contexts = partial(create_selective_checkpoint_contexts, _policy)
    return lambda *args: checkpoint(forward, *args, use_reentrant=False, context_fn=contexts)


@contextmanager
def _offloaded(
    module: nn.Module, sample: Sequence[torch.Tensor], loss: Loss | None, share: float
) -> Iterator[Run]:
    """The step of which a share of the saved bytes leaves, after a look at how many there are.

    Raises torch.OutOfMemoryError where the host has no room for them.
    """
    keep = [*module.parameters(), *module.buffers()]
    every = Counted(keep)
    with unchanged(module, sample), every:
        whole(module, loss, sample)
    room = share * every.left
    if not fits_on_host(every.host_bytes(room)):
        raise torch.OutOfMemoryError("the host has no room for what leaves")
    hooks = OffloadActivations(keep, room)
    compute = _within(hooks)(lambda: whole(module, loss, sample))

    def run() -> torch.Tensor:
        hooks.begin()
        return iterate(compute)

    yield run


def _within(hooks: Any) -> Wrap:
    """Whatever is wrapped runs within the same context."""

    def wrap(forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with hooks:
                return forward(*args)

        return call

    return wrap

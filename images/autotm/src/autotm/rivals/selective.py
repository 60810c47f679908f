"""Selective checkpointing by an integer programme: what blocks keep, for a share of the bytes.

After what `torch.distributed._tools.sac_ilp` does for modules: operators are timed in a forward and
their results weighed; HiGHS then chooses which results are kept, over all blocks at once, so that
the least time is spent to make the others again. Every block is a checkpoint, as there. Results of
operators that draw random numbers are never kept: what follows would draw others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import (
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from autotm.executor.lossy import Loss, whole
from autotm.planner.model import Model
from autotm.rivals.base import Run, blocks, iterate, unchanged, wrapped

_aten = torch.ops.aten
# What is dear to compute beside its bytes: kept by the selective checkpoint that has no solver.
DEAR = {
    _aten.convolution.default, _aten.mm.default, _aten.addmm.default, _aten.bmm.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
}  # fmt: skip
TIMES, SECONDS, GAP = 3, 20.0, 1e-3


@dataclass
class Result:
    """What an operator of a block makes: bytes (0 where it cannot be kept), seconds to make it."""

    bytes: int
    seconds: list[float] = field(default_factory=list)


class _Watch(TorchDispatchMode):
    """Times every operator of a block, as the checkpoint will count them."""

    def __init__(self, results: list[Result]) -> None:
        super().__init__()
        self._results, self._next = results, 0
        self._makers: dict[int, int] = {}  # storage -> the operator that made it

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in SAC_IGNORED_OPS:
            return func(*args, **(kwargs or {}))
        cuda = torch.cuda.is_available()
        if cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        found = func(*args, **(kwargs or {}))
        if cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        if self._next == len(self._results):
            self._results.append(Result(_bytes(func, args, found)))
        self._results[self._next].seconds.append(seconds)
        for storage in _written(func, args):
            if storage in self._makers:  # what is kept must not be changed later
                self._results[self._makers[storage]].bytes = 0
        self._makers.update(dict.fromkeys(_storages(found), self._next))
        self._next += 1
        return found


def _bytes(func: Any, args: Any, found: Any) -> int:
    """Bytes of results that are new memory; 0 for views, and for what must not be kept."""
    if torch.Tag.nondeterministic_seeded in func.tags and func not in DEAR:
        return 0
    made, read = _storages(found), _storages(args)
    return 0 if made.keys() & read.keys() else sum(made.values())


def _written(func: Any, args: tuple[Any, ...]) -> set[int]:
    """Storages that an operator writes in place."""
    pairs = zip(func._schema.arguments, args, strict=False)
    changed = [value for each, value in pairs if each.alias_info and each.alias_info.is_write]
    return set(_storages(changed))


def _storages(value: Any) -> dict[int, int]:
    tensors = [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]
    return {each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in tensors}


def observed(
    module: nn.Module, sample: Sequence[torch.Tensor], loss: Loss | None
) -> list[list[Result]]:
    """For each block the results of its operators, in order."""
    found: dict[int, list[Result]] = {}

    def wrap(forward: Callable[..., Any]) -> Callable[..., Any]:
        mine = found.setdefault(len(found), [])

        def call(*args: Any) -> Any:
            with _Watch(mine):
                return forward(*args)

        return call

    # With gradients: without, some operators are others.
    with unchanged(module, sample), wrapped(blocks(module), wrap):
        for _ in range(TIMES):
            whole(module, loss, sample)
    return list(found.values())


def chosen(results: Sequence[Sequence[Result]], share: float) -> list[set[int]]:
    """For each block the operators whose results are kept, at most a share of all the bytes."""
    items = [
        (block, index, result.bytes, sorted(result.seconds)[len(result.seconds) // 2])
        for block, own in enumerate(results)
        for index, result in enumerate(own)
        if result.bytes
    ]
    model = Model()
    total = sum(size for _, _, size, _ in items) or 1
    scale = 1 / (sum(seconds for *_, seconds in items) or 1.0)
    kept = [model.binary(-seconds * scale) for *_, seconds in items]
    sizes = {each: item[2] / total for each, item in zip(kept, items, strict=True)}
    model.row(sizes, high=share)
    solution = model.solve(SECONDS, GAP)
    found: list[set[int]] = [set() for _ in results]
    for each, (block, index, _, _) in zip(kept, items, strict=True):
        if solution.on(each):
            found[block].add(index)
    return found


class _Policy:
    """Keeps the operators of some numbers, counted apart in the forward and when made again."""

    def __init__(self, kept: set[int]) -> None:
        self._kept = kept
        self._count = {False: 0, True: 0}

    def __call__(self, context: Any, target: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        number = self._count[context.is_recompute]
        self._count[context.is_recompute] += 1
        keep = number in self._kept
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


@contextmanager
def selected(
    module: nn.Module, sample: Sequence[torch.Tensor], loss: Loss | None,
    results: Callable[[], Sequence[Sequence[Result]]], share: float,
) -> Iterator[Run]:  # fmt: skip
    """The step in which the blocks keep a share of the bytes that their operators make.

    results: what `observed` gives.
    """
    keep = iter(chosen(results(), share))

    def wrap(forward: Callable[..., Any]) -> Callable[..., Any]:
        mine = next(keep)

        def contexts() -> Any:
            return create_selective_checkpoint_contexts(_Policy(mine))

        return partial(checkpoint, forward, use_reentrant=False, context_fn=contexts)

    with wrapped(blocks(module), wrap):
        yield lambda: iterate(lambda: whole(module, loss, sample))

"""Operators of PyTorch as they are, and the same without what is suspected to be for nothing.

`valueexpert.turns` runs them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

Run = Callable[[], Any]
Made = tuple[Run, Run | None]  # as it is, and without the redundancy
LARGE = 1 << 20


@dataclass(frozen=True)
class Operator:
    """What is looked at: `make(full, device)` gives both variants, of the same inputs."""

    suspects: frozenset[str]  # patterns, any of which says that something is for nothing
    make: Callable[[bool, str], Made]
    exact: bool = True  # both variants give the same bits
    needs: str = "torch"

    @property
    def here(self) -> bool:
        """Whether its package is installed."""
        return importlib.util.find_spec(self.needs) is not None


def _random(shape: tuple[int, ...], device: str) -> Any:
    """Numbers from 0 to 1: small ones come from the host, large ones are made where they are."""
    import torch

    if prod(shape) > LARGE:
        return torch.rand(shape, device=device)
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)).to(device)


def _clip_grad(full: bool, device: str) -> Made:
    """Gradients below the norm are multiplied by 1."""
    import torch
    from torch.nn.utils import clip_grad_norm_, get_total_norm

    parameters = [torch.nn.Parameter(torch.empty(0)) for _ in range(16)]
    for parameter in parameters:
        parameter.data = _random((1 << (24 if full else 10),), device)
        parameter.grad = parameter.data
    grads = [one.grad for one in parameters if one.grad is not None]
    most = 1e9

    def before() -> Any:
        clip_grad_norm_(parameters, most)
        return grads[0]

    def after() -> Any:
        norm = get_total_norm(grads)
        if norm > most:  # waits for the GPU
            torch.nn.utils.clip_grads_with_norm_(parameters, most, norm)
        return grads[0]

    return before, after


def _slice_backward(full: bool, device: str) -> Made:
    """The gradient of logits[:, :-1]: zeros of the whole, then all but the last row is copied."""
    import torch

    sizes = (8, 2048, 32768) if full else (2, 64, 64)
    grad = _random((sizes[0], sizes[1] - 1, sizes[2]), device)

    def before() -> Any:
        return torch.ops.aten.slice_backward(grad, sizes, 1, 0, -1, 1)

    def after() -> Any:
        found = torch.empty(sizes, device=device)
        found[:, :-1] = grad
        found[:, -1:].zero_()
        return found

    return before, after


def _constant_pad(full: bool, device: str) -> Made:
    """A border of zeros: all is filled, then the inside is copied."""
    import torch

    given = _random((64, 64, 256, 256) if full else (1, 4, 64, 64), device)
    batch, channels, height, width = given.shape

    def before() -> Any:
        return torch.nn.functional.pad(given, (1, 1, 1, 1))

    def after() -> Any:
        found = torch.empty((batch, channels, height + 2, width + 2), device=device)
        found[:, :, 1:-1, 1:-1] = given
        for edge in (found[:, :, 0], found[:, :, -1], found[..., 0], found[..., -1]):
            edge.zero_()
        return found

    return before, after


def _kv_cache(full: bool, device: str) -> Made:
    """A cache of zeros that a long prompt fills almost whole."""
    import torch

    batch, heads, length, width = (8, 32, 8192, 128) if full else (1, 2, 64, 16)
    prompt = _random((batch, heads, length - length // 32, width), device)

    def before() -> Any:
        cache = torch.zeros((batch, heads, length, width), device=device)
        cache[:, :, : prompt.shape[2]] = prompt
        return cache

    def after() -> Any:
        cache = torch.empty((batch, heads, length, width), device=device)
        cache[:, :, : prompt.shape[2]] = prompt
        cache[:, :, prompt.shape[2] :].zero_()
        return cache

    return before, after


def _moe_combine(full: bool, device: str) -> Made:
    """Rows of experts added to zeros, where every token has one expert."""
    import torch

    rows, width = (65536, 4096) if full else (64, 32)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(2)).to(device)
    given = _random((rows, width), device)

    def before() -> Any:
        return torch.zeros((rows, width), device=device).index_add_(0, order, given)

    def after() -> Any:
        return torch.empty((rows, width), device=device).index_copy_(0, order, given)

    return before, after


def _cross_entropy_backward(full: bool, device: str) -> Made:
    """One number a row is no zero in the gradient that the softmax' backward pass reads whole."""
    import torch

    rows, classes = (8192, 32768) if full else (16, 256)
    log = torch.log_softmax(_random((rows, classes), device if full else "cpu"), 1).to(device)
    target = (torch.arange(rows) % classes).to(device)
    weight = torch.tensor(float(rows)).to(device)
    one = torch.tensor(1.0).to(device)
    row = torch.arange(rows).to(device)
    minus = torch.full((rows,), -1.0).to(device)

    def before() -> Any:
        zeros = torch.ops.aten.nll_loss_backward(one, log, target, None, 2, -100, weight)
        return torch.ops.aten._log_softmax_backward_data(zeros, log, 1, torch.float32)

    def after() -> Any:
        return log.exp().index_put_((row, target), minus, accumulate=True)

    return before, after


def _zeros_accumulate(full: bool, device: str) -> Made:
    """The control: zeros, and then a sum into them."""
    import torch

    given = _random((1 << (28 if full else 12),), device)

    def before() -> Any:
        return torch.zeros_like(given).add_(given)

    return before, given.clone


def _replication_pad_backward(full: bool, device: str) -> Made:
    import torch

    given = _random((64, 64, 256, 256) if full else (1, 4, 32, 32), device)
    shape = (*given.shape[:2], given.shape[2] + 2, given.shape[3] + 2)
    grad = _random(shape, device)
    return lambda: torch.ops.aten.replication_pad2d_backward(grad, given, (1, 1, 1, 1)), None


def _max_pool_backward(full: bool, device: str) -> Made:
    import torch

    given = _random((64, 64, 256, 256) if full else (1, 4, 32, 32), device if full else "cpu")
    pooled, where = torch.nn.functional.max_pool2d(given, 2, return_indices=True)
    given, grad, where = given.to(device), pooled.to(device), where.to(device)
    backward = torch.ops.aten.max_pool2d_with_indices_backward
    window = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    return lambda: backward(grad, given, *window, where), None


def _adaptive_pool_backward(full: bool, device: str) -> Made:
    import torch

    last = torch.channels_last
    given = _random((64, 64, 256, 256) if full else (1, 8, 32, 32), device if full else "cpu")
    given = given.contiguous(memory_format=last).to(device)
    grad = _random((*given.shape[:2], 7, 7), "cpu").contiguous(memory_format=last).to(device)
    return lambda: torch.ops.aten._adaptive_avg_pool2d_backward(grad, given), None


def _embedding(full: bool, device: str) -> Made:
    import torch

    table = _random((30000, 1024) if full else (100, 32), device)
    words = (torch.arange(65536 if full else 64) % len(table)).to(device)
    return lambda: torch.nn.functional.embedding(words, table, padding_idx=0), None


def _embedding_backward(full: bool, device: str) -> Made:
    import torch

    rows, width = (65536, 1024) if full else (64, 32)
    grad = _random((rows, width), device)
    places = torch.arange(rows).to(device)
    backward = torch.ops.aten.embedding_dense_backward
    return lambda: backward(grad, places, rows, -1, False), None


def _adam_first_step(full: bool, device: str) -> Made:
    import torch

    parameter = torch.nn.Parameter(_random((1 << (26 if full else 12),), device))
    parameter.grad = _random(tuple(parameter.shape), device)

    def before() -> Any:
        torch.optim.Adam([parameter], fused=device != "cpu").step()
        return parameter.detach()

    return before, None


def _deepwave(full: bool, device: str) -> Made:
    """A wave that has not reached most of the field yet."""
    import deepwave
    import torch

    side, steps = (1000, 200) if full else (24, 8)
    speed = torch.full((side, side), 2000.0).to(device)
    shot = torch.ones(1, 1, steps).to(device)
    place = torch.full((1, 1, 2), side // 2).to(device)

    def before() -> Any:
        return deepwave.scalar(speed, 5.0, 0.001, source_amplitudes=shot, source_locations=place,
                               pml_width=4, pml_freq=25.0)[0]  # fmt: skip

    return before, None


_WRITTEN = frozenset({"redundant_write", "redundant_fill", "dead_write"})
_READ = _WRITTEN | {"single_zero", "single_value", "frequent_values"}
OPERATORS: Mapping[str, Operator] = {
    "clip_grad": Operator(_WRITTEN, _clip_grad),
    "slice_backward": Operator(_WRITTEN, _slice_backward),
    "constant_pad": Operator(_WRITTEN, _constant_pad),
    "kv_cache": Operator(_WRITTEN, _kv_cache),
    "moe_combine": Operator(_READ, _moe_combine),
    "cross_entropy_backward": Operator(_READ, _cross_entropy_backward, exact=False),
    "zeros_accumulate": Operator(_READ, _zeros_accumulate),
    "replication_pad_backward": Operator(_WRITTEN, _replication_pad_backward),
    "max_pool_backward": Operator(_WRITTEN, _max_pool_backward),
    "adaptive_pool_backward": Operator(_WRITTEN, _adaptive_pool_backward),
    "embedding": Operator(_WRITTEN, _embedding),
    "embedding_backward": Operator(_READ, _embedding_backward),
    "adam_first_step": Operator(_READ, _adam_first_step),
    "deepwave": Operator(_READ, _deepwave, needs="deepwave"),
}
CHANGED = ("clip_grad", "slice_backward", "constant_pad", "kv_cache", "moe_combine",
           "cross_entropy_backward", "zeros_accumulate")  # fmt: skip

"""From PyTorch's operators to kernels: what each operator launches on a GPU, and what they touch.

`Recorder` watches a run on the `meta` device, where tensors have shapes and no data. What is not
listed launches one kernel that touches all its operands. Copies between dense tensors of equal
strides and type are memory copies, no kernels. Where the number of kernels is a library's choice
(sorting, attention's backward pass), the smallest usual one is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pasta_workloads.oracle import convolution
from pasta_workloads.oracle.foreach import foreach
from pasta_workloads.oracle.kernels import SCRATCH, Gemm, Kernel, blocks_of, rounded

# No kernel: they make a view, or memory without contents.
SILENT = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias",
    "_unsafe_view", "_reshape_alias", "lift_fresh", "_local_scalar_dense", "resize_", "set_",
}  # fmt: skip
NAMES = {
    "_softmax": "softmax", "_log_softmax": "softmax", "_softmax_backward_data": "softmax_backward",
    "_log_softmax_backward_data": "softmax_backward", "max_pool2d_with_indices": "max_pool",
    "max_pool2d_with_indices_backward": "max_pool_backward", "_adaptive_avg_pool2d": "average_pool",
    "_adaptive_avg_pool2d_backward": "average_pool_backward", "native_dropout": "dropout",
    "zeros_like": "fill", "ones_like": "fill", "zero_": "fill", "fill_": "fill", "zeros": "fill",
    "mean": "reduce", "sum": "reduce", "std": "reduce", "cat": "cat", "stack": "cat",
    "embedding": "index_select", "nll_loss_forward": "nll_loss", "arange": "arange",
}  # fmt: skip
# Operators that copy their first operand first when it is not contiguous.
DENSE_FIRST = {"_softmax", "_log_softmax", "native_layer_norm"}


class _DeviceOperators(TorchFunctionMode):
    """Takes the operators that a GPU would take where the meta device takes others."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is functional.dropout:
            return _dropout(*args, **kwargs)
        if function is functional.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        return function(*args, **kwargs)


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    del inplace
    return torch.native_dropout(x, p, True)[0] if training and p else x


def _attention(query: Tensor, key: Tensor, value: Tensor, **how: Any) -> Tensor:
    """What a GPU takes: fp32 the memory-efficient kernel, half types flash attention's.

    Both keep the layout of the query.
    """
    causal = how.get("is_causal", False)
    if query.dtype != torch.float32:
        fused = torch.ops.aten._scaled_dot_product_flash_attention
        return fused(query, key, value, 0.0, causal)[0]
    keeps = any(part.requires_grad for part in (query, key, value)) and torch.is_grad_enabled()
    found: Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, None, keeps, is_causal=causal
    )[0]
    return found


class Recorder(TorchDispatchMode):
    """Collects `kernels` of what runs inside `with Recorder() as recorder:`."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Kernel] = []
        self._functions = _DeviceOperators()

    def __enter__(self) -> Recorder:
        self._functions.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *what: Any) -> None:
        super().__exit__(*what)
        self._functions.__exit__(*what)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        found = function(*args, **kwargs)
        name = function._schema.name.removeprefix("aten::")
        bound = sum(blocks_of([args, list(kwargs.values()), found]).values())
        # The storages of a fresh tensor may be freed after this: blocks are taken now.
        for kernel in lower(name, function.is_view, args, kwargs, found):
            self.kernels.append(replace(kernel, bound=bound))
        return found


def lower(name: str, view: bool, args: Any, kwargs: Any, found: Any) -> Iterator[Kernel]:
    """The kernels of one operator on operands `args`, with the result `found`."""
    if view or name in SILENT or not blocks_of([args, list(kwargs.values()), found]):
        return
    if name.startswith("_foreach_"):
        yield from _foreach(name, args, found)
    elif name in _SPECIAL:
        yield from _SPECIAL[name](name, args, kwargs, found)
    else:
        yield from _plain(name, args, kwargs, found)


def _plain(name: str, args: Any, kwargs: Any, found: Any) -> Iterator[Kernel]:
    first = args[0] if args else None
    if name in DENSE_FIRST and isinstance(first, Tensor) and not first.is_contiguous():
        copy = {SCRATCH: sum(blocks_of([first]).values())}
        yield Kernel(name="copy", operator=name, blocks=blocks_of([first]) | copy)
        args = args[1:]
        touched = copy | blocks_of([args, list(kwargs.values()), found])
    else:
        touched = blocks_of([args, list(kwargs.values()), found])
    yield Kernel(name=NAMES.get(name, "elementwise"), operator=name, blocks=touched)


def _foreach(name: str, args: Any, found: Any) -> Iterator[Kernel]:
    lists = [part for part in args if isinstance(part, list | tuple) and _on_device(part)]
    if found is not None and _on_device(found):
        lists.append(found)
    if lists:
        yield from foreach(name, lists)


def _on_device(part: Any) -> bool:
    return bool(part) and isinstance(part[0], Tensor) and part[0].device.type != "cpu"


def _copy(name: str, args: Any, kwargs: Any, found: Tensor) -> Iterator[Kernel]:
    """`clone`, `_to_copy`, `copy_`: a memory copy where both sides lie alike."""
    source = args[1] if name == "copy_" else args[0]
    alike = source.dtype == found.dtype and source.shape == found.shape
    dense = torch.ops.aten.is_non_overlapping_and_dense
    if alike and _strides(source) == _strides(found) and dense(source) and dense(found):
        return
    yield Kernel(name="copy", operator=name, blocks=blocks_of([source, found]))


def _strides(tensor: Tensor) -> list[int]:
    return [n for n, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]


def _masked_fill(name: str, args: Any, kwargs: Any, found: Tensor) -> Iterator[Kernel]:
    """Out of place: a memory copy of the operand, then the fill in the copy."""
    yield Kernel(name="elementwise", operator=name, blocks=blocks_of([args[1:], found]))


def _matrix(name: str, args: Any, kwargs: Any, found: Tensor) -> Iterator[Kernel]:
    """`mm`, `addmm` and `bmm`: one GEMM; with a bias vector its epilogue adds it (cublasLt)."""
    left, right = args[-2:] if name != "addmm" else args[1:3]
    batch = left.size(0) if left.dim() == 3 else 1
    gemm = Gemm(
        rows=left.size(-2), columns=right.size(-1), inner=left.size(-1), batch=batch,
        light=name == "addmm",
    )  # fmt: skip
    yield Kernel(
        name="gemm", operator=name, blocks=blocks_of([args, found]), gemm=gemm,
        output=sum(blocks_of([found]).values()),
    )  # fmt: skip


def _convolution(name: str, args: Any, kwargs: Any, found: Tensor) -> Iterator[Kernel]:
    image, weight, bias, stride, padding = args[:5]
    yield from convolution.forward(name, image, weight, bias, found, stride, padding)


def _convolution_backward(name: str, args: Any, kwargs: Any, found: Any) -> Iterator[Kernel]:
    gradient, image, weight, _, stride, padding = args[:6]
    wanted = [part if use else None for part, use in zip(found, args[-1], strict=True)]
    yield from convolution.backward(name, gradient, image, weight, wanted, stride, padding)


def _batch_norm(name: str, args: Any, kwargs: Any, found: Any) -> Iterator[Kernel]:
    """Training: statistics, their update, transform. Else: inverse deviation, transform."""
    image, weight, bias, mean, variance, training = args[:6]
    output, saved_mean, saved_deviation = found[:3]
    saved, running = blocks_of([saved_mean, saved_deviation]), blocks_of([mean, variance])
    if training:
        yield Kernel(name="batch_norm_statistics", operator=name, blocks=blocks_of([image]) | saved)
        yield Kernel(name="batch_norm_update", operator=name, blocks=running | saved)
    else:
        # The inverse deviation is a new block; the mean that is saved is the running one.
        saved = blocks_of([saved_deviation]) or {SCRATCH: sum(blocks_of([variance]).values())}
        yield Kernel(
            name="batch_norm_invert", operator=name, blocks=blocks_of([variance]) | saved
        )  # fmt: skip
        saved |= blocks_of([mean])
    touched = blocks_of([image, output, weight, bias]) | saved
    yield Kernel(name="batch_norm", operator=name, blocks=touched)


def _batch_norm_backward(name: str, args: Any, kwargs: Any, found: Any) -> Iterator[Kernel]:
    """Two sums a channel, then the gradient of the input."""
    gradient, image, weight = args[:3]
    sums = blocks_of([found[1:], args[3:]])
    yield Kernel(
        name="batch_norm_reduce", operator=name, blocks=blocks_of([gradient, image]) | sums
    )  # fmt: skip
    yield Kernel(
        name="batch_norm_backward", operator=name,
        blocks=blocks_of([gradient, image, weight, found[0]]) | sums,
    )  # fmt: skip


def _layer_norm_backward(name: str, args: Any, kwargs: Any, found: Any) -> Iterator[Kernel]:
    """The gradient of the input, and that of scale and shift."""
    gradient, x, _, mean, deviation, weight, _ = args[:7]
    shared = [gradient, x, mean, deviation]
    for touched in ([*shared, weight, found[0]], [*shared, found[1:]]):
        yield Kernel(name="layer_norm_backward", operator=name, blocks=blocks_of(touched))


def _zeros_first(name: str, args: Any, kwargs: Any, found: Tensor) -> Iterator[Kernel]:
    """The result is filled with zeros before the kernel adds to it."""
    yield Kernel(name="fill", operator=name, blocks=blocks_of([found]))
    yield Kernel(
        name=name.removeprefix("_"), operator=name, blocks=blocks_of([args, found])
    )  # fmt: skip


def _embedding(name: str, args: Any, kwargs: Any, found: Tensor) -> Iterator[Kernel]:
    """Indices that are expanded are copied first."""
    indices = args[1]
    touched = blocks_of([args[0], found])
    if indices.is_contiguous():
        touched |= blocks_of([indices])
    else:
        copy = {SCRATCH: rounded(indices.numel() * indices.element_size())}
        yield Kernel(name="copy", operator=name, blocks=blocks_of([indices]) | copy)
        touched |= copy
    yield Kernel(name="index_select", operator=name, blocks=touched)


def _attention_kernel(name: str, args: Any, kwargs: Any, found: Any) -> Iterator[Kernel]:
    """The fused kernel: operands, result, and the logarithms of its sums.

    Those the memory-efficient kernel writes where gradients follow, flash attention's always.
    """
    keeps = "flash" in name or args[4]
    results = blocks_of([found[0], found[1] if keeps else None])
    yield Kernel(
        name="attention", operator=name, blocks=blocks_of(args[:3]) | results,
        output=sum(results.values()),
    )  # fmt: skip


_SPECIAL: dict[str, Callable[[str, Any, Any, Any], Iterator[Kernel]]] = {
    "clone": _copy, "_to_copy": _copy, "copy_": _copy, "masked_fill": _masked_fill,
    "mm": _matrix, "addmm": _matrix, "bmm": _matrix, "convolution": _convolution,
    "convolution_backward": _convolution_backward, "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "native_layer_norm_backward": _layer_norm_backward,
    "nll_loss_backward": _zeros_first, "embedding_dense_backward": _zeros_first,
    "embedding": _embedding, "_scaled_dot_product_efficient_attention": _attention_kernel,
    "_scaled_dot_product_flash_attention": _attention_kernel,
}  # fmt: skip

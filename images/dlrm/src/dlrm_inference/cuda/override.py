"""Patched PyTorch without rebuilding it: `nn.EmbeddingBag` computed by a kernel of our choice.

    with embedding_bag_variant("best"):
        model(inputs)

replaces the operators `aten::_embedding_bag` and `aten::_embedding_bag_forward_only` for CUDA
through `torch.library`. Everything above them stays PyTorch's own, autograd included: the
backward pass reads `offset2bag` and `bag_size`, which are produced here as PyTorch produces them.
A call that the kernel does not support raises UnsupportedCall; it never falls back in silence.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from dlrm_inference.cuda.report import raise_if_out_of_range

# (weight, indices, offsets of bags + 1 entries, mode "sum" or "mean") -> (bags, dim)
Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, str], torch.Tensor]
# (table, ids (count,) int64 of its rows to pin, the most frequent first), on one device
HotRows = Sequence[tuple[torch.Tensor, torch.Tensor]]
Outputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

OPERATORS = ("_embedding_bag", "_embedding_bag_forward_only")
MODES = ("sum", "mean", "max")  # aten's numbers 0, 1, 2
NO_PADDING = -1


class UnsupportedCall(ValueError):
    """A call of embedding_bag that the chosen kernel cannot serve: one sentence with a fix."""


class Override:
    """The operators replaced for one dispatch key, until `remove`."""

    def __init__(
        self, name: str, forward: Forward, dtypes: tuple[torch.dtype, ...], key: str
    ) -> None:
        self.name = name
        self._library = torch.library.Library("aten", "IMPL")
        operator = make_operator(name, forward, dtypes)
        with warnings.catch_warnings():
            # PyTorch warns that an operator is overridden, which is what was asked for.
            warnings.filterwarnings("ignore", category=UserWarning)
            for target in OPERATORS:
                self._library.impl(target, operator, key)

    def remove(self) -> None:
        """Give the operators back to PyTorch."""
        self._library._destroy()


_installed: list[Override] = []  # dispatch is a fact of the process, so what overrides it is too


def install(
    name: str,
    *,
    hot_rows: HotRows = (),
    forward: Forward | None = None,
    key: str = "CUDA",
) -> None:
    """Make every embedding bag of this process use the variant `name`, until `uninstall`.

    `hot_rows` lists the rows to pin for each table, which the pinning variants (`l2p`, `rpf_l2p`)
    need. `forward` and `key` serve kernels outside the registry and other devices. A second
    install replaces the first. Raises KeyError for an unknown variant, UnsupportedCall for a
    pinning variant without rows.
    """
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    if forward is None:
        forward, dtypes = find_forward(name, hot_rows)
    while _installed:
        _installed.pop().remove()
    _installed.append(Override(name, forward, dtypes, key))


def uninstall() -> None:
    """Give the operators back to PyTorch; does nothing when nothing is installed."""
    while _installed:
        _installed.pop().remove()


def active_variant() -> str:
    """Return the name of the installed variant, "" for PyTorch's own kernel."""
    return _installed[-1].name if _installed else ""


@contextmanager
def embedding_bag_variant(
    name: str,
    *,
    hot_rows: HotRows = (),
    forward: Forward | None = None,
    key: str = "CUDA",
    check: bool = True,
) -> Iterator[None]:
    """Use the variant `name` inside the block. `stock` is PyTorch's own kernel: nothing changes.

    Arguments and errors as in `install`. With `check`, leaving the block waits for the device and
    raises IndexError, naming table and bag, when a kernel met an id outside its table; without,
    and for a CUDA graph captured here and replayed later, the next synchronisation does.

    Blocks do not nest: raises RuntimeError when a variant is installed already.
    """
    if _installed:
        raise RuntimeError(
            f"variant '{active_variant()}' is installed already; fix: uninstall() it first"
        )
    if name == "stock" and forward is None:
        yield
        return
    install(name, hot_rows=hot_rows, forward=forward, key=key)
    try:
        yield
        if check:
            raise_if_out_of_range()
    finally:
        uninstall()


def find_forward(name: str, hot_rows: HotRows = ()) -> tuple[Forward, tuple[torch.dtype, ...]]:
    """Return the variant's forward and the table types it takes, the rivals included."""
    from dlrm_inference.cuda.fbgemm import Fbgemm
    from dlrm_inference.cuda.stock21 import Stock21
    from dlrm_inference.cuda.variants import VARIANTS

    known: dict[str, Any] = {**VARIANTS, "stock21": Stock21(), "fbgemm": Fbgemm()}
    if name not in known:
        raise KeyError(f"unknown variant '{name}'; known: {', '.join(sorted([*known, 'stock']))}")
    variant = known[name]

    def forward(
        weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, mode: str
    ) -> torch.Tensor:
        result: torch.Tensor = variant.forward(weight, indices, offsets, mode=mode)
        return result

    dtypes = tuple(getattr(variant, "dtypes", (torch.float32,)))
    if getattr(variant, "pins", False):
        from dlrm_inference.cuda.pin import make_pin

        pins = {table.data_ptr(): make_pin(table, rows) for table, rows in hot_rows}
        return pin_first(name, forward, pins), dtypes
    return forward, dtypes


def pin_first(name: str, forward: Forward, pins: Mapping[int, Callable[[], None]]) -> Forward:
    """Return `forward` with a table's hot rows pinned in the L2 right before every gather.

    pins: what queues the pinning, by the table's address. Raises UnsupportedCall when there is
    none, and for a table that is not among them: a pinning variant that pins nothing in silence
    would measure another one.
    """
    if not pins:
        raise UnsupportedCall(f"{name} pins hot rows; fix: give hot_rows=[(table, row ids), ...]")

    def pinned(
        weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, mode: str
    ) -> torch.Tensor:
        if weight.data_ptr() not in pins:
            raise UnsupportedCall(
                f"{name} knows no hot rows of this table; fix: add it to hot_rows"
            )
        pins[weight.data_ptr()]()
        return forward(weight, indices, offsets, mode)

    return pinned


def make_operator(
    name: str, forward: Forward, dtypes: tuple[torch.dtype, ...]
) -> Callable[..., Outputs]:
    """Return a function with the signature of `aten::_embedding_bag`, defaults included: the
    dispatcher leaves out trailing arguments that equal the schema's defaults."""

    def operator(
        weight: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        scale_grad_by_freq: bool = False,  # this and `sparse` concern the backward pass alone
        mode: int = 0,
        sparse: bool = False,
        per_sample_weights: torch.Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int = NO_PADDING,
    ) -> Outputs:
        check_call(name, dtypes, weight, indices, offsets, mode, per_sample_weights, padding_idx)
        indices, offsets = promote(indices, offsets)
        bounds = close_offsets(offsets, indices.numel(), include_last_offset)
        result = forward(weight, indices, bounds, MODES[mode])
        none = indices.new_empty(0)
        if not torch.is_grad_enabled():
            return result, none, none, none  # nobody will ask for a backward pass
        return result, bag_of_each_index(bounds, indices.numel()), bounds.diff(), none

    return operator


def check_call(
    name: str,
    dtypes: tuple[torch.dtype, ...],
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    mode: int,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int,
) -> None:
    """Raise UnsupportedCall for what a variant's kernel cannot do, naming it and the way out."""
    if not 0 <= mode < 2:
        mode_name = MODES[mode] if 0 <= mode < len(MODES) else str(mode)
        raise UnsupportedCall(f"{name} has no mode '{mode_name}'; fix: use mode 'sum' or 'mean'")
    if per_sample_weights is not None:
        raise UnsupportedCall(f"{name} takes no per_sample_weights; fix: {_LEAVE}")
    if padding_idx != NO_PADDING:
        raise UnsupportedCall(f"{name} takes no padding_idx; fix: {_LEAVE}")
    if weight.dtype not in dtypes:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise UnsupportedCall(
            f"{name} takes tables of {known}, not {str(weight.dtype).removeprefix('torch.')}; "
            "fix: convert the table"
        )
    tensors = (("weight", weight, 2), ("indices", indices, 1), ("offsets", offsets, 1))
    for what, tensor, dims in tensors:
        if tensor.dim() != dims:
            raise UnsupportedCall(f"{what} must have {dims} dimensions, not {tensor.dim()}")
        if not tensor.is_contiguous():
            raise UnsupportedCall(f"{name} takes contiguous tensors; fix: {what}.contiguous()")
    for what, tensor in (("indices", indices), ("offsets", offsets)):
        if tensor.dtype not in (torch.int32, torch.int64):
            raise UnsupportedCall(f"{what} must be int32 or int64, not {tensor.dtype}")


_LEAVE = "run this module outside embedding_bag_variant, or use variant 'stock'"


def promote(indices: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both as int64 when they differ in type, as PyTorch does."""
    if indices.dtype == offsets.dtype:
        return indices, offsets
    return indices.long(), offsets.long()


def close_offsets(offsets: torch.Tensor, count: int, include_last_offset: bool) -> torch.Tensor:
    """Return offsets (bags + 1,) that end in `count`, the number of indices.

    With include_last_offset they do already, and no work is done on the device. Raises
    UnsupportedCall for an empty tensor, which then lacks its last offset.
    """
    if include_last_offset:
        if offsets.numel() == 0:
            raise UnsupportedCall("include_last_offset needs at least one offset")
        return offsets
    return torch.nn.functional.pad(offsets, (0, 1), value=count)


def bag_of_each_index(bounds: torch.Tensor, count: int) -> torch.Tensor:
    """Return the bag that every one of `count` indices belongs to, (count,), of bounds' type."""
    places = torch.arange(count, dtype=bounds.dtype, device=bounds.device)
    inner = bounds[1:-1]  # an index belongs to the bag after as many starts as it has passed
    found = torch.searchsorted(inner, places, right=True, out_int32=bounds.dtype == torch.int32)
    return found.to(bounds.dtype)

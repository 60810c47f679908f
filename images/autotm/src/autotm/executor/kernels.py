"""How an operator writes where the plan says: by its own out variant, or by a copy.

Functional operators allocate what they give back. Where PyTorch has a real out variant (a kernel of
its own, not one that copies inside), it writes the arena at once. Otherwise the result lies for a
moment outside the arena and is copied in; those bytes are counted (`Kernel.outside`) and taken
from the budget. Values are the same bits either way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from autotm.executor.calls import Call, View, mapped
from autotm.executor.joining import NORM, Joined, normed
from autotm.executor.overwriting import Over, over
from autotm.executor.variants import KNOWN, Into, named, out_variant, row_by_row

_aten = torch.ops.aten
# Its offset counts from the first byte of its operand's storage, and it copies all of that: so the
# operand must not lie in the arena. (The gradient of flatten, of channels last, has it.)
ABSOLUTE = _aten.as_strided_scatter.default


Partly = Callable[[Sequence[Any], Sequence[Any], dict[str, Any]], list[Any]]


def _batch_norm(outs: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The result and its statistics in place."""
    result, saved, scale, _, _ = outs
    _aten._native_batch_norm_legit.out(*args, out=result, save_mean=saved, save_invstd=scale)
    return [result, saved, scale, *args[3:5]]


def _joined(call: Call, device: str) -> Partly | None:
    """Both in one; see there. The statistics of the batch are given back as well."""
    # What lies between the two is laid out as the input is.
    rest = tuple(call.target.rest(call.args, call.args[0]))
    into = _into(Call(call.target.then, rest, {}, call.outputs[:1], True, False), device)
    if into is None:
        return None

    def partly(outs: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        between, *statistics = normed(args, *args[3:5])
        into(outs[:1], tuple(call.target.rest(args, between)), kwargs)
        return [outs[0], *statistics, *args[3:5]]

    return partly


def updating(call: Call) -> dict[int, int]:
    """Of running statistics: places of the new ones among the results, of the old ones among the
    arguments. `partly` writes the new ones over the old ones."""
    return {3: 3, 4: 4} if call.target == NORM or isinstance(call.target, Joined) else {}


# A call's name -> whether it gives the same bits when it writes where it should: a convolution by
# cuDNN, or in parts of the batch; a result that does not lie row by row.
_SAME: dict[str, bool] = {}
_TRIED = (_aten.convolution.default, _aten.convolution_backward.default)
PART = 1 << 28  # bytes of a convolution's gradient of which no part need be smaller
# A convolution's name -> bytes of its gradient that may lie outside the arena at a time. It is made
# as a whole where none are said: in parts many take several times as long.
_PARTS: dict[str, int] = {}


def _convolution(call: Call) -> Into | None:
    """A forward convolution by cuDNN into its place; tried once against the operator's own bits.

    PyTorch has an out variant of cuDNN's convolution, and none of `convolution`, which may choose
    another library. AUTOTM_CONVOLUTION=copied in the environment leaves it to the latter.
    """
    if os.environ.get("AUTOTM_CONVOLUTION") == "copied" or len(call.args) != 9 or call.kwargs:
        return None
    x, _, _, stride, padding, dilation, transposed, _, groups = call.args
    if transposed or len(x.size) != 4:
        return None
    dnn, name = torch.backends.cudnn, _trial(call)

    def direct(out: torch.Tensor, args: Sequence[Any]) -> None:
        exact = dnn.deterministic or torch.are_deterministic_algorithms_enabled()
        _aten.cudnn_convolution.out(
            args[0].contiguous(), args[1], padding, stride, dilation, groups, dnn.benchmark, exact,
            dnn.allow_tf32, out=out,
        )  # fmt: skip
        if args[2] is not None:
            out.add_(args[2].view(1, -1, 1, 1))

    def into(outs: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _SAME.get(name):
            direct(outs[0], args)
            return
        want = call.target(*args)
        if name not in _SAME:
            try:
                direct(outs[0].view_as(outs[0]), args)
                _SAME[name] = torch.equal(outs[0], want)
            except RuntimeError:
                _SAME[name] = False
        outs[0].copy_(want)

    return into


def _trial(call: Call, device: str = "cuda") -> str:
    """A name for what the bits of a call may depend on, beside its operands'."""
    dnn = torch.backends.cudnn
    shapes = mapped(
        (call.args, call.kwargs, call.outputs), lambda view: (view.dtype, view.size, view.stride)
    )
    flags = dnn.benchmark, dnn.deterministic, dnn.allow_tf32
    return repr((device, str(call.target), shapes, flags))


def _convolution_backward(call: Call) -> Partly | None:
    """A convolution's gradients, that of a large input by parts of the batch into its place, where
    little memory is left to it.

    PyTorch has no out variant of it: the whole gradient would lie outside the arena for a moment,
    beside the arena's own. Tried once against the operator's own bits, as above.
    """
    view = call.outputs[0]
    size = _size(view) if view is not None else 0
    if os.environ.get("AUTOTM_CONVOLUTION") == "copied" or size <= PART or call.kwargs:
        return None
    name = _trial(call)

    def parts(out: torch.Tensor, args: Sequence[Any]) -> list[Any]:
        grad, x, *rest, mask = args
        count = -(-size // _PARTS[name])
        for some, these, there in zip(
            grad.chunk(count), x.chunk(count), out.chunk(count), strict=True
        ):
            there.copy_(call.target(some, these, *rest, [True, False, False])[0])
        return [out, *call.target(grad, x, *rest, [False, *mask[1:]])[1:]]

    def partly(outs: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        if name in _PARTS and _SAME.get(name):
            return parts(outs[0], args)
        want = list(call.target(*args))
        if name in _PARTS and name not in _SAME:
            try:
                pairs = zip(parts(outs[0], args), want, strict=True)
                _SAME[name] = all(a is b is None or torch.equal(a, b) for a, b in pairs)
            except torch.OutOfMemoryError:  # beside the whole, which a plan for less has not
                pass
            except RuntimeError:
                _SAME[name] = False
        outs[0].copy_(want[0])
        return want

    return partly


@dataclass(frozen=True)
class Kernel:
    """One call on a device. `run(outs, args, kwargs)` writes `outs`; see there.

    direct: it writes where it should at once. outside: bytes of results that first lie elsewhere;
    what the kernel itself needs beside them (workspace) only a measurement tells. partly: it writes
    what lies in the arena at once, and gives the rest back. tried: a convolution's name, of which
    a run finds out whether it may.
    """

    call: Call
    into: Into | None
    outside: int
    partly: Partly | None = None
    tried: str = ""

    @property
    def direct(self) -> bool:
        return self.into is not None or self.partly is not None

    @property
    def by_parts(self) -> bool:
        """Whether it may make a large gradient by parts, and copies those."""
        return self.partly is not None and bool(self.tried)

    @property
    def how(self) -> str:
        """How it writes. Of what is tried: what came out, and the size of a part."""
        if not self.direct:
            return f"copied {self.outside}"
        if not self.tried:
            return "direct"
        return f"direct {_SAME.get(self.tried)} {_PARTS.get(self.tried)}"

    def part(self, limit: int) -> None:
        """Make a convolution's gradient by parts of at most `limit` bytes, untried."""
        if self.by_parts:
            _PARTS[self.tried], _SAME[self.tried] = max(limit, PART), True

    def forget(self) -> None:
        """Try anew whether its bits are the operator's own: they may be others than they were."""
        _SAME.pop(self.tried, None)

    def run(
        self, outs: Sequence[torch.Tensor | None], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> list[Any] | None:
        """Run it. outs: where each result goes; None for one that is given back or not wanted.

        Gives all results back, or None where every one was written in place.
        """
        if self.into is not None:
            self.into(outs, args, kwargs)  # type: ignore[arg-type]  # none is None
            return None
        if self.partly is not None:
            return self.partly(outs, args, kwargs)
        if self.call.target == ABSOLUTE:
            args = [args[0].clone(), *args[1:]]
        found = self.call.target(*args, **kwargs)
        results = list(found) if isinstance(found, (tuple, list)) else [found]
        for out, result in zip(outs, results, strict=True):
            if out is not None:
                out.copy_(result)
        return results


@contextmanager
def apart() -> Iterator[None]:
    """How operators write is afterwards as it was, whatever is found out within."""
    same, parts = dict(_SAME), dict(_PARTS)
    try:
        yield
    finally:
        _SAME.clear()
        _SAME.update(same)
        _PARTS.clear()
        _PARTS.update(parts)


def _size(view: View) -> int:
    return prod(view.size) * view.dtype.itemsize


def kernel(call: Call, inside: Callable[[View], bool], device: str) -> Kernel:
    """How `call` runs. inside: whether a result lies in the arena, else it is given back."""
    views = [view for view in call.outputs if view is not None]
    unsure = isinstance(call.target, Over) or not row_by_row(call)
    on_trial = device == "cuda" if call.target in _TRIED else unsure
    tried = _trial(call, device) if on_trial else ""
    apart = len({view.tensor for view in views}) == len(call.outputs)  # none unread, none shared
    if views and apart and all(map(inside, views)):
        into = _into(call, device)
        if into is not None:
            return Kernel(call, into, 0, tried=tried)
    partly: Partly | None = None
    count = outside = 0
    if call.target == NORM and row_by_row(call):
        count, partly = 3, _batch_norm
    if isinstance(call.target, Joined) and row_by_row(call):
        count, partly, outside = 1, _joined(call, device), _size(call.args[0])
    if call.target == _aten.convolution_backward.default and device == "cuda":
        count, partly, outside = 1, _convolution_backward(call), PART
    lie = [view is not None and inside(view) for view in call.outputs]
    if partly is not None and not call.kwargs and all(lie[:count]) and not any(lie[count:]):
        return Kernel(call, None, outside, partly, tried)
    outside = sum(_size(view) for view in views if inside(view))
    return Kernel(call, None, outside)


def _tried(call: Call, into: Into, device: str) -> Into:
    """`into` where it gives the operator's own bits, which is tried once; else a copy of these.

    Some out variants lay a result out anew: that of log_sigmoid, and the gradient of
    replication_pad2d, of channels last.
    """
    name = _trial(call, device)

    def tried(outs: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _SAME.get(name):
            into(outs, args, kwargs)
            return
        mine = [out.view_as(out) for out in outs]  # whose strides it may change
        try:
            found = call.target(*args, **kwargs)
        except torch.OutOfMemoryError:  # beside ours, which a plan for less has not
            if name in _SAME:
                raise
            into(mine, args, kwargs)
            if any(each.stride() != out.stride() for each, out in zip(mine, outs, strict=True)):
                raise
            return
        want = found if isinstance(found, (tuple, list)) else [found]
        if name not in _SAME:
            into(mine, args, kwargs)
            _SAME[name] = all(map(torch.equal, outs, want))
        for out, result in zip(outs, want, strict=True):
            out.copy_(result)

    return tried


def _into(call: Call, device: str) -> Into | None:
    if isinstance(call.target, Over):
        written = over(call, device)
        return written and _tried(call, written, device)
    if call.target in KNOWN:
        return KNOWN[call.target]
    if call.target == _aten.convolution.default and device == "cuda":
        return _convolution(call)
    found = out_variant(call.target, device)
    if found is None or call.seeded:
        return None
    target, names = found

    def write(outs: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        target(*args, **kwargs, **dict(zip(names, outs, strict=True)))

    into = named(target, names[0]) if len(names) == 1 else write
    return into if row_by_row(call) else _tried(call, into, device)

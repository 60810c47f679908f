"""What lies outside an arena: a module's tensors, results that are given back; the plain run."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from autotm.executor.calls import Call, Capture, View, mapped, views_of
from autotm.graph import ENDS


def look(tensor: torch.Tensor, view: View) -> torch.Tensor:
    """A tensor outside the arena, seen as the graph sees it. `tensor` begins where it begins."""
    if tensor.dtype != view.dtype:
        begin = tensor.storage_offset() * tensor.itemsize // view.dtype.itemsize + view.offset
        bytes_ = tensor.untyped_storage()
        return tensor.new_empty(0, dtype=view.dtype).set_(bytes_, begin, view.size, view.stride)
    if tensor.shape == view.size and tensor.stride() == view.stride and view.offset == 0:
        return tensor
    return torch.as_strided(tensor, view.size, view.stride, tensor.storage_offset() + view.offset)


class Seen:
    """A view of a tensor outside an arena, run after run.

    How that lies is the same in each (`guard.py`): where it is as the graph sees it, that is found
    out once.
    """

    __slots__ = ("_as_it_is", "_tensor", "_view")

    def __init__(self, view: View) -> None:
        self._view, self._tensor, self._as_it_is = view, view.tensor, False

    def look(self, outside: dict[int, torch.Tensor]) -> torch.Tensor:
        tensor = outside[self._tensor]
        if self._as_it_is:
            return tensor
        found = look(tensor, self._view)
        self._as_it_is = found is tensor
        return found


Staying = tuple[tuple[int, View], ...]


def staying(call: Call, wanted: Container[int]) -> Staying:
    """Which results of a call are of the tensors `wanted`, with their places among them."""
    every = enumerate(call.outputs)
    return tuple((n, view) for n, view in every if view is not None and view.tensor in wanted)


def laid(which: Staying, results: Sequence[Any], sizes: Sequence[int]) -> dict[int, torch.Tensor]:
    """Results by tensor, laid out as the graph expects; copied only where they are not."""
    found: dict[int, torch.Tensor] = {}
    for place, view in which:
        result = results[place]
        if result.stride() == view.stride and result.storage_offset() == view.offset:
            found.setdefault(view.tensor, _whole(result) if view.offset else result)
            continue
        count = sizes[view.tensor] // view.dtype.itemsize
        base = found.get(view.tensor)
        if base is None:
            base = found[view.tensor] = result.new_empty(count)
        torch.as_strided(base, view.size, view.stride, view.offset).copy_(result)
    return found


class Giving:
    """Results of a call that stay outside an arena, run after run.

    A call lays them out alike each time: where that is as the graph expects, it is found out once.
    """

    __slots__ = ("_as_they_are", "_sizes", "_which")

    def __init__(self, which: Staying, sizes: Sequence[int]) -> None:
        self._which, self._sizes, self._as_they_are = which, sizes, False

    def lay(self, outside: dict[int, torch.Tensor], results: Sequence[Any]) -> None:
        if self._as_they_are:
            for place, view in self._which:
                outside[view.tensor] = results[place]
            return
        found = laid(self._which, results, self._sizes)
        outside.update(found)
        self._as_they_are = all(found[view.tensor] is results[n] for n, view in self._which)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All elements of its storage."""
    count = tensor.untyped_storage().nbytes() // tensor.itemsize
    return torch.as_strided(tensor, (count,), (1,), 0)


def plain(
    capture: Capture, outside: dict[int, torch.Tensor], room: int | None = None
) -> dict[int, torch.Tensor]:
    """Every call once, in order, nothing planned: what a session's results must equal.

    Each tensor is let go after its last use; what stays outside an arena is given back by id. Where
    the device is full, or tensors take more than `room` bytes, all but the operands of the next
    call wait on the host. Raises torch.OutOfMemoryError, also where the host has no room for them.
    """
    found, sizes = dict(outside), [each.bytes for each in capture.graph.tensors]
    ends = {each.id for each in capture.graph.tensors if each.kind in ENDS}
    waiting: dict[int, _Waiting] = {}

    def leave(stay: set[int]) -> None:
        going = found.keys() - ends - stay
        if not fits_on_host(sum(sizes[each] for each in going)):
            raise torch.OutOfMemoryError("the host has no room for what waits there")
        for tensor in going:
            waiting[tensor] = _Waiting.of(found.pop(tensor))

    def run(call: Call) -> Any:
        for view in views_of((call.args, call.kwargs)):
            if view.tensor in waiting:
                found[view.tensor] = waiting.pop(view.tensor).back(capture.device)
        args = mapped(call.args, lambda view: look(found[view.tensor], view))
        kwargs = mapped(call.kwargs, lambda view: look(found[view.tensor], view))
        return call.target(*args, **kwargs)

    with torch.no_grad(), torch.autocast(capture.device.type, enabled=False):
        for op, call in zip(capture.graph.ops, capture.calls, strict=True):
            if room is not None and sum(sizes[each] for each in found.keys() - ends) > room:
                leave(set(op.inputs))
            try:
                results = run(call)
            except torch.OutOfMemoryError:
                leave(set(op.inputs))
                torch.cuda.empty_cache()
                results = run(call)
            many = results if isinstance(results, (tuple, list)) else [results]
            found.update(laid(staying(call, range(len(sizes))), many, sizes))
            del results, many
            for tensor in set(op.operands) - ends:
                if capture.graph.life(tensor)[1] == op.index:
                    found.pop(tensor, None)
    return found


def fits_on_host(size: int) -> bool:
    """Whether the host has room for `size` bytes, at least once PyTorch keeps no pinned memory for
    later. To pin that anew takes a second for some GB. Without a look, who takes more is killed.
    """
    if size > _host_room() and torch.cuda.is_available():
        torch._C._host_emptyCache()
    return size <= _host_room()


def _host_room() -> int:
    """Bytes of host memory to be had: of the machine, and within a container's limit."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) * 1024
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no limit
        return free
    return min(free, limit - used + int(stat["inactive_file"]))


@dataclass(frozen=True)
class _Waiting:
    """A tensor's whole storage on the host, and how the tensor looks at it."""

    whole: torch.Tensor
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Waiting:
        return cls(_whole(tensor).to("cpu", copy=True), tuple(tensor.shape), tensor.stride(),
                   int(tensor.storage_offset()))  # fmt: skip

    def back(self, device: torch.device) -> torch.Tensor:
        whole = self.whole.to(device, copy=True)
        return torch.as_strided(whole, self.size, self.stride, self.offset)


class Held(NamedTuple):
    """A module's parameters and buffers under each of their names; the mode of each part."""

    parameters: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    training: list[bool]


def outside_of(
    capture: Capture, held: Held, inputs: Sequence[torch.Tensor]
) -> dict[int, torch.Tensor]:
    """Parameters, buffers, inputs and constants of a graph, from a module; no tangent."""
    found = dict(capture.constants)
    for tensor, (role, name) in capture.roles.items():
        if role == "parameter":
            found[tensor] = held.parameters[name]
        elif role == "buffer":
            found[tensor] = held.buffers[name]
        elif role == "input":
            found[tensor] = inputs[name]
    return found


def held_by(module: torch.nn.Module) -> Held:
    """What a module has now, in one walk: at each iteration the GPU waits for it."""
    found = Held({}, {}, [])
    todo = [("", module)]
    while todo:
        prefix, each = todo.pop()
        found.training.append(each.training)
        for own, named in ((each._parameters, found.parameters), (each._buffers, found.buffers)):
            for name, value in own.items():
                if value is not None:
                    named[prefix + name] = value
        todo += [
            (f"{prefix}{n}.", child) for n, child in each._modules.items() if child is not None
        ]
    return found

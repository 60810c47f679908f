"""Runs a program: the same steps each iteration, on the same bytes.

Operands in the arena are made once, as views of its bytes. What lies outside the arena (parameters,
buffers, inputs, gradients, the loss) is looked up at each run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from autotm.executor.calls import Call, Capture, View, mapped, views_of
from autotm.executor.kernels import Kernel, kernel
from autotm.executor.lanes import Lanes, Mark
from autotm.executor.program import Program, Step
from autotm.graph import ENDS


@dataclass(frozen=True)
class _Prepared:
    """A step with its operands made, but for those outside the arena."""

    step: Step
    kernel: Kernel
    args: Callable[[dict[int, torch.Tensor]], tuple[Any, ...]]
    kwargs: Callable[[dict[int, torch.Tensor]], dict[str, Any]]
    outs: tuple[torch.Tensor | None, ...]


@dataclass
class _Run:
    """An iteration under way."""

    outside: dict[int, torch.Tensor]
    marks: dict[int, Mark] = field(default_factory=dict)
    draws: dict[int, torch.Tensor] = field(default_factory=dict)  # op -> state before it


class Session:
    """A program on lanes. `forward`, then `backward`, again and again."""

    def __init__(self, capture: Capture, program: Program, lanes: Lanes) -> None:
        if lanes.arena.numel() < program.arena_bytes or lanes.host.numel() < program.host_bytes:
            raise ValueError("the lanes' memory is smaller than the program's")
        self._capture = capture
        self._program = program
        self._lanes = lanes
        self._after = program.copies_after()
        self._sizes = [each.bytes for each in capture.graph.tensors]
        self._ends = {each.id for each in capture.graph.tensors if each.kind in ENDS}
        again = {step.op for step in program.steps if step.again}
        self._draws = {op for op in again if capture.calls[op].seeded}
        self._late = _late_buffers(capture, program)
        kernels = [kernel(call, self._inside, capture.device.type) for call in capture.calls]
        self._steps = [self._prepare(step, kernels[step.op]) for step in program.steps]
        self._run: _Run | None = None

    @property
    def program(self) -> Program:
        return self._program

    def forward(self, outside: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Run to the loss. outside: a tensor for each parameter, buffer, input and constant.

        Gives the tensors outside the arena back, with the outputs added.
        """
        self._run = _Run(dict(outside))
        self._go(self._run, 0, self._program.split)
        given = dict(self._run.outside)
        for tensor in self._late:
            self._run.outside[tensor] = outside[tensor].clone()
        return given

    def backward(self, outside: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Run the rest, with these tensors added or replaced. Raises RuntimeError out of turn."""
        if self._run is None:
            raise RuntimeError("backward without a forward before it")
        run, self._run = self._run, None
        run.outside.update(outside)
        self._go(run, self._program.split, len(self._steps))
        for mark in run.marks.values():  # copies out that nothing waited for
            self._lanes.wait(mark)
        return run.outside

    def close(self) -> None:
        """Give the arenas back."""
        self._run = None
        self._steps = []
        self._lanes.close()

    def _inside(self, view: View) -> bool:
        return view.tensor not in self._ends

    def _go(self, run: _Run, first: int, last: int) -> None:
        # What a person's autocast casts is in the graph already.
        with torch.no_grad(), torch.autocast(self._capture.device.type, enabled=False):
            for number in range(first, last):
                prepared = self._steps[number]
                for copy in prepared.step.waits:
                    self._lanes.wait(run.marks[copy])
                begin = self._lanes.stamp() if self._lanes.trace is not None else None
                self._compute(run, prepared)
                if self._lanes.trace is not None:
                    end = self._lanes.stamp()
                    self._lanes.trace.append(("compute", str(number), begin, end))
                if number in self._after:
                    self._start(run, number)

    def _start(self, run: _Run, number: int) -> None:
        here = self._lanes.mark()
        for copy in self._after[number]:
            device = self._lanes.arena[copy.address : copy.address + copy.bytes]
            host = self._lanes.host[copy.host : copy.host + copy.bytes]
            lane, target, source = ("out", host, device) if copy.out else ("in", device, host)
            after = [here, *(run.marks[each] for each in copy.waits)]
            run.marks[copy.index] = self._lanes.copy(lane, str(copy.tensor), target, source, after)

    def _compute(self, run: _Run, prepared: _Prepared) -> None:
        step = prepared.step
        if step.op in self._draws:
            generator = _generator(self._capture.device)
            now = generator.get_state()
            if step.again:
                generator.set_state(run.draws[step.op])
            else:
                run.draws[step.op] = now
        results = prepared.kernel.run(
            prepared.outs, prepared.args(run.outside), prepared.kwargs(run.outside)
        )
        if step.again:
            if step.op in self._draws:
                generator.set_state(now)
            return  # what lies outside the arena is still there from the first time
        if results is not None:
            run.outside.update(laid(prepared.kernel.call, results, self._sizes, self._ends))

    def _prepare(self, step: Step, kernel: Kernel) -> _Prepared:
        call = kernel.call
        outs = tuple(
            None if view is None or not self._inside(view) else self._at(view, step.writes)
            for view in call.outputs
        )
        return _Prepared(
            step,
            kernel,
            self._filled(call.args, step),
            self._filled(call.kwargs, step),
            outs,
        )

    def _filled(self, value: Any, step: Step) -> Callable[[dict[int, torch.Tensor]], Any]:
        """Operands in the arena now, the others at each run."""
        fixed = mapped(value, lambda v: self._at(v, step.reads) if self._inside(v) else v)
        if not views_of(fixed):
            return lambda outside: fixed
        return lambda outside: mapped(fixed, lambda view: look(outside[view.tensor], view))

    def _at(self, view: View, addresses: dict[int, int]) -> torch.Tensor:
        size = self._sizes[view.tensor]
        begin = addresses.get(view.tensor, 0)  # without bytes it is nowhere
        storage = self._lanes.arena[begin : begin + size]
        itemsize = view.dtype.itemsize
        typed = storage[: size - size % itemsize].view(view.dtype)
        offset = typed.storage_offset() + view.offset
        return torch.as_strided(typed, view.size, view.stride, offset)


def _late_buffers(capture: Capture, program: Program) -> set[int]:
    """Buffers that change after the forward, and whose old values a recomputed step reads."""
    changing = {
        tensor
        for tensor, (role, name) in capture.roles.items()
        if role == "buffer" and name in capture.updates
    }
    late = (capture.graph.ops[step.op].inputs for step in program.steps[program.split :])
    return changing & {tensor for inputs in late for tensor in inputs}


def look(tensor: torch.Tensor, view: View) -> torch.Tensor:
    """A tensor outside the arena, seen as the graph sees it. `tensor` begins where it begins."""
    if tensor.shape == view.size and tensor.stride() == view.stride and view.offset == 0:
        return tensor
    return torch.as_strided(tensor, view.size, view.stride, tensor.storage_offset() + view.offset)


def _generator(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        index = device.index if device.index is not None else torch.cuda.current_device()
        return torch.cuda.default_generators[index]
    return torch.default_generator


def laid(
    call: Call, results: Sequence[Any], sizes: Sequence[int], wanted: set[int] | None = None
) -> dict[int, torch.Tensor]:
    """Results by tensor, laid out as the graph expects; copied only where they are not."""
    found: dict[int, torch.Tensor] = {}
    for view, result in zip(call.outputs, results, strict=True):
        if view is None or (wanted is not None and view.tensor not in wanted):
            continue
        if result.stride() == view.stride and result.storage_offset() == view.offset:
            whole = result.untyped_storage().nbytes() // result.itemsize
            base = result if not view.offset else torch.as_strided(result, (whole,), (1,), 0)
            found.setdefault(view.tensor, base)
            continue
        count = sizes[view.tensor] // view.dtype.itemsize
        base = found.get(view.tensor)
        if base is None:
            base = found[view.tensor] = result.new_empty(count)
        torch.as_strided(base, view.size, view.stride, view.offset).copy_(result)
    return found


def plain(
    capture: Capture, outside: dict[int, torch.Tensor], room: int | None = None
) -> dict[int, torch.Tensor]:
    """Every call once, in order, nothing planned: what a session's results must equal.

    Each tensor is let go after its last use; what stays outside an arena is given back by id. Where
    the device is full, or tensors take more than `room` bytes, all but the operands of the next
    call wait on the host.
    """
    found, sizes = dict(outside), [each.bytes for each in capture.graph.tensors]
    ends = {each.id for each in capture.graph.tensors if each.kind in ENDS}
    waiting: dict[int, _Waiting] = {}

    def leave(stay: set[int]) -> None:
        for tensor in found.keys() - ends - stay:
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
            found.update(laid(call, many, sizes))
            del results, many
            for tensor in set(op.operands) - ends:
                if capture.graph.life(tensor)[1] == op.index:
                    found.pop(tensor, None)
    return found


@dataclass(frozen=True)
class _Waiting:
    """A tensor's whole storage on the host, and how the tensor looks at it."""

    whole: torch.Tensor
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Waiting:
        count = tensor.untyped_storage().nbytes() // tensor.itemsize
        whole = torch.as_strided(tensor, (count,), (1,), 0)
        return cls(whole.to("cpu", copy=True), tuple(tensor.shape), tensor.stride(),
                   int(tensor.storage_offset()))  # fmt: skip

    def back(self, device: torch.device) -> torch.Tensor:
        whole = self.whole.to(device, copy=True)
        return torch.as_strided(whole, self.size, self.stride, self.offset)


def outside_of(
    capture: Capture, module: torch.nn.Module, inputs: Sequence[torch.Tensor]
) -> dict[int, torch.Tensor]:
    """Parameters, buffers, inputs and constants of a graph, from a module; no tangent."""
    found = dict(capture.constants)
    for tensor, (role, name) in capture.roles.items():
        if role == "parameter":
            found[tensor] = module.get_parameter(name).detach()
        elif role == "buffer":
            found[tensor] = module.get_buffer(name)
        elif role == "input":
            found[tensor] = inputs[name]
    return found

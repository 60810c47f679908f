"""Runs a program: the same steps each iteration, on the same bytes.

Operands in the arena are made once, as views of its bytes. What lies outside the arena (parameters,
buffers, inputs, gradients, the loss) is looked up at each run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from autotm.executor.calls import Call, Capture, View, mapped, views_of
from autotm.executor.kernels import Kernel, kernel, updating
from autotm.executor.lanes import Lanes, Mark
from autotm.executor.memory import Region
from autotm.executor.outside import Giving, Seen, look, staying
from autotm.executor.program import Copy, Program, Step
from autotm.executor.trying import generator_of
from autotm.graph import OUTSIDE

_ANYWHERE = nullcontext()


@dataclass(frozen=True)
class _Transfer:
    """A copy with its memory: in which lane, what it waits for."""

    index: int
    lane: str
    label: str
    target: torch.Tensor
    source: torch.Tensor
    waits: tuple[int, ...]


@dataclass(frozen=True)
class _Prepared:
    """A step with its operands made, but for those outside the arena.

    gives: results that stay outside. last: what was handed to it. drawn: it draws random numbers
    and runs again, now or later. region: what it allocates lies there. leaving: results that must
    not stay there. over: regions of which nothing is left after it.
    """

    step: Step
    kernel: Kernel
    args: Callable[[dict[int, torch.Tensor]], Sequence[Any]]
    kwargs: Callable[[dict[int, torch.Tensor]], dict[str, Any]]
    outs: tuple[torch.Tensor | None, ...]
    gives: Giving | None
    last: tuple[int, ...]
    drawn: bool
    copies: tuple[_Transfer, ...]
    region: Region | None
    leaving: tuple[int, ...]
    over: tuple[Region, ...]


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
        tensors = capture.graph.tensors
        self._sizes = [each.bytes for each in tensors]
        self._outside = {each.id for each in tensors if each.kind in OUTSIDE}
        again = {step.op for step in program.steps if step.again}
        self._draws = {op for op in again if capture.calls[op].seeded}
        self._late = _late_buffers(capture, program)
        self._spare: dict[Any, torch.Tensor] = {}  # for running statistics that nobody reads
        self._handing: dict[int, Region] = {}  # by the op that reads what was handed on from it
        self.updated: set[int] = set()  # results that lie in the module's own buffers
        kernels = [kernel(call, self._inside, capture.device.type) for call in capture.calls]
        copies = program.copies_after()
        self._steps = [
            self._prepare(step, kernels[step.op], copies.get(number, ()))
            for number, step in enumerate(program.steps)
        ]
        self._run: _Run | None = None
        self.closed = False
        self._process = os.getpid()  # a fork has neither the lanes' threads nor a GPU

    @property
    def program(self) -> Program:
        return self._program

    def forward(self, outside: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Run to the loss. outside: a tensor for each parameter, buffer, input and constant.

        Gives the tensors outside the arena back, with the outputs added. Buffers whose new values
        are in `updated` have them then. Raises RuntimeError.
        """
        if self.closed:
            raise RuntimeError("this step is closed, and its memory given back: fit it again")
        if os.getpid() != self._process:
            raise RuntimeError("this step is of the process that was forked: fit one in this one")
        self._run = _Run(dict(outside))
        self._whole(self._run, 0, self._program.split)
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
        self._whole(run, self._program.split, len(self._steps))
        for mark in run.marks.values():  # copies out that nothing waited for
            self._lanes.wait(mark)
        return run.outside

    def close(self) -> None:
        """Give the arenas back."""
        self._run, self.closed = None, True
        self._steps, self._spare = [], {}
        self._lanes.close()

    def _inside(self, view: View) -> bool:
        return view.tensor not in self._outside

    def _whole(self, run: _Run, first: int, last: int) -> None:
        """Run steps; where that is interrupted, no copy of them is left for what comes next."""
        try:
            self._go(run, first, last)
        except BaseException:
            self._lanes.idle()
            run.outside.clear()  # some of it lies in the arena
            raise

    def _go(self, run: _Run, first: int, last: int) -> None:
        lanes, marks, outside, trace = self._lanes, run.marks, run.outside, self._lanes.trace
        lanes.begin()
        # What a person's autocast casts is in the graph already.
        as_it_is = torch.autocast(self._capture.device.type, enabled=False)
        with torch.no_grad(), as_it_is, torch.cuda.device_of(lanes.arena):
            for number in range(first, last):
                prepared = self._steps[number]
                for copy in prepared.step.waits:
                    lanes.wait(marks[copy])
                begin = lanes.stamp() if trace is not None else None
                if prepared.drawn:
                    self._draw(run, prepared)
                else:
                    self._compute(outside, prepared)
                if trace is not None:
                    trace.append(("compute", str(number), begin, lanes.stamp()))
                if prepared.copies:
                    here = lanes.mark()
                    for each in prepared.copies:
                        after = [here, *(marks[copy] for copy in each.waits)]
                        marks[each.index] = lanes.copy(
                            each.lane, each.label, each.target, each.source, after
                        )

    def _compute(self, outside: dict[int, torch.Tensor], prepared: _Prepared) -> None:
        """Run a step and keep what stays outside the arena; after the first time it is there.

        Nothing else that the step gave outlives it: the next one's workspace has that memory.
        """
        args, kwargs = prepared.args(outside), prepared.kwargs(outside)
        with prepared.region or _ANYWHERE:
            results = prepared.kernel.run(prepared.outs, args, kwargs)
        if prepared.gives is not None and results is not None:
            prepared.gives.lay(outside, results)
        for tensor in prepared.leaving:
            outside[tensor] = outside[tensor].clone()
        for tensor in prepared.last:
            del outside[tensor]
        del args, kwargs, results
        for region in prepared.over:
            region.over()

    def _draw(self, run: _Run, prepared: _Prepared) -> None:
        """Run a step that draws random numbers: made again, it draws the same."""
        generator = generator_of(self._capture.device)
        now = generator.get_state()
        if prepared.step.again:
            generator.set_state(run.draws[prepared.step.op])
        else:
            run.draws[prepared.step.op] = now
        self._compute(run.outside, prepared)
        if prepared.step.again:
            generator.set_state(now)

    def _prepare(self, step: Step, kernel: Kernel, copies: Sequence[Copy]) -> _Prepared:
        call = kernel.call
        outs = tuple(
            None if view is None or not self._inside(view) else self._at(view, step.writes)
            for view in call.outputs
        )
        args, kwargs = self._fixed(call.args, step), self._fixed(call.kwargs, step)
        fill = self._filled(args)
        if kernel.partly is not None and updating(call):
            fill = self._updated(step, call, args)
        tensors, reads = self._capture.graph.tensors, self._capture.graph.ops[step.op].inputs
        given = staying(call, self._outside)
        return _Prepared(
            step,
            kernel,
            fill,
            self._filled(kwargs) if kwargs else _nothing,
            outs,
            Giving(given, self._sizes) if given and not step.again else None,
            tuple(each for each in reads if tensors[each].kind == "handed"),
            step.op in self._draws,
            tuple(self._transfer(copy) for copy in copies),
            *self._region(step, [view.tensor for _, view in given]),
        )

    def _region(
        self, step: Step, given: Sequence[int]
    ) -> tuple[Region | None, tuple[int, ...], tuple[Region, ...]]:
        """Where a step runs; what it gives that must not stay there; regions that are empty after
        it, as what is handed on is read by the next one."""
        over = [self._handing.pop(step.op)] if step.op in self._handing else []
        room, tensors = self._capture.rooms.get(step.op), self._capture.graph.tensors
        region = room and self._lanes.region(step.writes[room], self._sizes[room])
        if not region:
            return None, (), tuple(over)
        leaving = {each for each in given if tensors[each].kind != "handed"}
        if leaving.issuperset(given):
            over.append(region)
        else:
            self._handing[step.op + 1] = region
        return region, () if step.again else tuple(leaving), tuple(over)

    def _updated(
        self, step: Step, call: Call, args: tuple[Any, ...]
    ) -> Callable[[dict[int, torch.Tensor]], Any]:
        """Arguments at a run, with what the kernel writes running statistics over.

        The module's own buffers, as in eager PyTorch, where nobody else reads these; else copies.
        A step that is made again writes over what nobody reads.
        """
        found, capture, copied = list(args), self._capture, []
        for result, place in updating(call).items():
            view, new, uses = call.args[place], call.outputs[result], capture.graph.uses
            _, name = capture.roles.get(view.tensor, ("", None))
            if step.again:
                size = place, view.dtype, view.size
                if size not in self._spare:
                    spare = torch.zeros(view.size, dtype=view.dtype, device=capture.device)
                    self._spare[size] = spare
                found[place] = self._spare[size]
            elif (
                new is not None
                and capture.updates.get(name) == new
                and (uses[view.tensor], uses[new.tensor]) == ((step.op,), ())
            ):
                self.updated.add(new.tensor)
            else:
                copied.append(place)
        fill = self._filled(tuple(found))

        def filled(outside: dict[int, torch.Tensor]) -> list[Any]:
            return [a.clone() if n in copied else a for n, a in enumerate(fill(outside))]

        return filled if copied else fill

    def _transfer(self, copy: Copy) -> _Transfer:
        device = self._lanes.arena[copy.address : copy.address + copy.bytes]
        host = self._lanes.host[copy.host : copy.host + copy.bytes]
        lane, target, source = ("out", host, device) if copy.out else ("in", device, host)
        return _Transfer(copy.index, lane, str(copy.tensor), target, source, copy.waits)

    def _fixed(self, value: Any, step: Step) -> Any:
        """Arguments with the operands in the arena made; the others are still views."""
        return mapped(value, lambda v: self._at(v, step.reads) if self._inside(v) else v)

    def _filled(self, fixed: Any) -> Callable[[dict[int, torch.Tensor]], Any]:
        """Arguments at a run, with what lies outside the arena looked up; little work for each."""
        if not views_of(fixed):
            return lambda outside: fixed
        holes = [(place, Seen(each)) for place, each in enumerate(fixed) if isinstance(each, View)]
        if not isinstance(fixed, tuple) or len(holes) != len(views_of(fixed)):  # some in a list
            return lambda outside: mapped(fixed, lambda view: look(outside[view.tensor], view))

        def fill(outside: dict[int, torch.Tensor]) -> list[Any]:
            found = list(fixed)
            for place, seen in holes:
                found[place] = seen.look(outside)
            return found

        return fill

    def _at(self, view: View, addresses: dict[int, int]) -> torch.Tensor:
        size = self._sizes[view.tensor]
        begin = addresses.get(view.tensor, 0)  # without bytes it is nowhere
        storage = self._lanes.arena[begin : begin + size]
        itemsize = view.dtype.itemsize
        typed = storage[: size - size % itemsize].view(view.dtype)
        offset = typed.storage_offset() + view.offset
        return torch.as_strided(typed, view.size, view.stride, offset)


def _nothing(outside: dict[int, torch.Tensor]) -> dict[str, Any]:
    return {}


def _late_buffers(capture: Capture, program: Program) -> set[int]:
    """Buffers that change after the forward, and whose old values a recomputed step reads."""
    late: set[int] = set()
    for step in program.steps[program.split :]:
        call = capture.calls[step.op]
        over = updating(call).values()
        read = [each for place, each in enumerate(call.args) if place not in over]
        late.update(view.tensor for view in views_of((read, call.kwargs)))
    return capture.changing & late

"""Iterations of a fitted step: forward and backward in turn, and what they cost and give."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from autotm.executor.calls import Capture, View
from autotm.executor.lanes import Lanes
from autotm.executor.memory import peak_of
from autotm.executor.outside import Held, held_by, look, outside_of, plain
from autotm.executor.session import Session
from autotm.executor.timeline import Span, measured
from autotm.executor.trying import unchanged_random
from autotm.graph import STAYS, Graph, Plan
from autotm.report import Measurement

AGAIN = 3  # plain runs that tell whether its own bits are the same each time
CLOSE = 1e-2  # of the largest gradient, where they are not


class Iteration:
    """A session with a module's tensors: one forward, its backward, again."""

    def __init__(self, found: Capture, session: Session, lanes: Lanes) -> None:
        self.capture, self.session, self.lanes = found, session, lanes
        ends = Counter(each.tensor for each in (found.loss, *found.gradients.values()))
        tensors = found.graph.tensors
        self._shared = {t for t, count in ends.items() if count > 1 or tensors[t].kind in STAYS}
        program = session.program
        late = {tensor for step in program.steps[program.split :]
                for tensor in found.graph.ops[step.op].inputs}  # fmt: skip
        self._guarded = [
            t
            for t, (role, _) in found.roles.items()
            if role in ("parameter", "input", "constant")
            or (role == "buffer" and t in late and t not in found.changing)
        ]
        # Buffers of one type, with their new values: they are copied by one kernel, or a few.
        by_type: dict[torch.dtype, list[tuple[str, View]]] = {}
        for name, view in found.updates.items():
            if view.tensor not in session.updated:
                by_type.setdefault(view.dtype, []).append((name, view))
        self._updates = list(by_type.values())
        self._free = threading.Lock()
        self._turn = 0
        self._waiting: int | None = None
        self._tangent = next(
            (tensor for tensor, (role, _) in found.roles.items() if role == "tangent"), None
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread at a time: there is one arena. Raises RuntimeError."""
        if not self._free.acquire(blocking=False):
            raise RuntimeError("this step runs in another thread; fit one for each thread")
        try:
            yield
        finally:
            self._free.release()

    def forward(
        self, held: Held, inputs: Sequence[torch.Tensor]
    ) -> tuple[int, torch.Tensor, list[torch.Tensor]]:
        """A turn's number, the loss, and what must not change until its backward.

        Buffers that the module changes have their new values.
        """
        with self._alone():
            self._turn += 1
            self._waiting = None
            outside = outside_of(self.capture, held, inputs)
            given = self.session.forward(outside)
            self._waiting = self._turn
            for alike in self._updates:
                changed = [held.buffers[name] for name, _ in alike]
                values = [look(given[view.tensor], view) for _, view in alike]
                torch._foreach_copy_(changed, values)
            read = [outside[tensor] for tensor in self._guarded]
            return self._turn, self._own(given, self.capture.loss), read

    def backward(self, turn: int, tangent: torch.Tensor) -> dict[str, torch.Tensor]:
        """The gradients by name. Raises RuntimeError where another forward came between."""
        with self._alone():
            if turn != self._waiting:
                raise RuntimeError(
                    "the activations of this loss are gone: call backward once, and before the "
                    "next forward (for a loss alone, wrap the call in torch.no_grad())"
                )
            self._waiting = None
            given = self.session.backward({} if self._tangent is None else {self._tangent: tangent})
            return {name: self._own(given, view) for name, view in self.capture.gradients.items()}

    def _own(self, given: dict[int, torch.Tensor], view: View) -> torch.Tensor:
        """A result that shares its memory with nothing else that is given back."""
        found = look(given[view.tensor], view)
        return found.clone() if view.tensor in self._shared else found

    def once(self, module: nn.Module, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Gradients by name, and the loss as ``; no buffer of the module changes."""
        held, updated = held_by(module), self.session.updated
        mine = [held.buffers[n] for n, v in self.capture.updates.items() if v.tensor in updated]
        before = torch._foreach_add(mine, 0) if mine else []  # copies, by few kernels
        given = self.session.forward(outside_of(self.capture, held, inputs))
        if mine:
            torch._foreach_copy_(mine, before)
        found = {"": self._own(given, self.capture.loss)}
        self._waiting = self._turn
        found.update(self.backward(self._turn, torch.ones_like(found[""])))
        return found

    def traced(self, module: nn.Module, graph: Graph, plan: Plan) -> list[Span]:
        """Who did what when in an iteration of the sample, after a first one."""
        with unchanged_random(self.capture.device):
            self.once(module, self.capture.inputs)
            self.lanes.trace = []
            try:
                self.once(module, self.capture.inputs)
                return measured(graph, plan, self.lanes)
            finally:
                self.lanes.trace = None

    def plainly(self, module: nn.Module, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """The same without a plan: everything is kept."""
        outside = outside_of(self.capture, held_by(module), inputs)
        if self._tangent is not None:
            loss = self.capture.loss
            outside[self._tangent] = torch.ones(
                loss.size, dtype=loss.dtype, device=self.capture.device
            )
        given = plain(self.capture, outside, _room(self.capture.device))
        return {
            name: self._own(given, view)
            for name, view in {"": self.capture.loss, **self.capture.gradients}.items()
        }


def _room(device: torch.device) -> int | None:
    """Bytes for the tensors of a plain run: half of what is free.

    The rest is for workspace: without it cuDNN takes another algorithm, and gives other bits.
    """
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(device)[0]) // 2


def measure(
    iteration: Iteration, module: nn.Module, inputs: Sequence[torch.Tensor], repeats: int,
    close: bool = False,
) -> Measurement:  # fmt: skip
    """Whole iterations, timed after a first one; peaks; gradients against the plain run.

    Neither the module nor the state of random numbers is changed. close: the session ends before
    the plain run, which has the arenas' room then.
    """
    device = iteration.capture.device
    arena = iteration.lanes.arena.numel()
    cuda = device.type == "cuda"
    mine = _on_host(iteration, iteration.once, module, inputs)

    def run() -> None:
        _same_state(device, lambda: iteration.once(module, inputs))

    times, allocated = [], None
    if cuda and repeats:
        before = torch.cuda.memory_allocated(device) - arena
        allocated = peak_of(run, device) - before
    for _ in range(repeats):
        iteration.lanes.idle()
        begin = time.perf_counter()
        run()
        iteration.lanes.idle()
        times.append(time.perf_counter() - begin)
    free, total = torch.cuda.mem_get_info(device) if cuda else (0, 0)
    driver = total - free if cuda else None
    if close:
        iteration.session.close()
        torch.cuda.empty_cache()
    differ, unsteady = _differ(iteration, module, inputs, mine)
    return Measurement(tuple(times), arena, allocated, driver, differ, unsteady)


def _on_host(
    iteration: Iteration, once: Callable[..., dict[str, torch.Tensor]], module: nn.Module,
    inputs: Sequence[torch.Tensor],
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Loss and gradients of an iteration, where they take no memory of the device."""
    found = _same_state(iteration.capture.device, lambda: once(module, inputs))
    return {name: each.cpu() for name, each in found.items()}


def _differ(
    iteration: Iteration, module: nn.Module, inputs: Sequence[torch.Tensor],
    mine: dict[str, torch.Tensor],
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:  # fmt: skip
    """What is not the plain run's, bit for bit; and of it, what the plain run does not repeat."""
    device = iteration.capture.device
    try:
        theirs = _on_host(iteration, iteration.plainly, module, inputs)
        differ = [name for name in mine if not _same(mine[name], theirs[name])]
        steady = {name for name in differ if _close(mine[name], theirs[name])}
        unsteady: set[str] = set()
        for _ in range(AGAIN):
            if not steady:
                break
            again = _same_state(device, lambda: iteration.plainly(module, inputs))
            found = {name for name in steady if not _same(again[name].cpu(), theirs[name])}
            del again  # before the next run takes its memory
            steady, unsteady = steady - found, unsteady | found
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None, ()
    return tuple(each or "loss" for each in differ), tuple(sorted(n or "loss" for n in unsteady))


def _same(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Equal in every element; where one is not a number the other is none either."""
    if torch.equal(mine, theirs):
        return True
    nothing = mine.isnan()
    return bool(nothing.any() and ((mine == theirs) | (nothing & theirs.isnan())).all())


def _close(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    wide = torch.promote_types(theirs.dtype, torch.float32)
    scale = theirs.to(wide).abs().max()
    return bool((mine.to(wide) - theirs.to(wide)).abs().max() <= CLOSE * scale)


def _same_state(device: torch.device, run: Callable[[], Any]) -> Any:
    with unchanged_random(device):
        return run()

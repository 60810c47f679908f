"""`autotm.fit`: a module that trains within a budget, used as any other.

step = autotm.fit(model, (x, y), loss=F.cross_entropy, budget="12GiB")
loss = step(x, y)
loss.backward()
optimizer.step()
print(step.report())
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autotm.budget import Planner, bytes_of, least, meets, planned, remaining
from autotm.check import check
from autotm.executor.arena import arena_graph
from autotm.executor.calls import BLOCK, Capture
from autotm.executor.capture import capture
from autotm.executor.errors import BudgetError, CaptureError
from autotm.executor.guard import Guard, casting, likeness, unlike
from autotm.executor.handing import handing, room
from autotm.executor.iteration import Iteration, measure
from autotm.executor.lanes import lanes_on
from autotm.executor.lossy import Loss, whole
from autotm.executor.memory import forget_workspaces
from autotm.executor.outside import Held
from autotm.executor.profiling import Cache, Link, in_backward, link, paced, profile
from autotm.executor.program import compile_plan
from autotm.executor.session import Session
from autotm.executor.settling import settled
from autotm.executor.timeline import Lost, Span, chrome, lost, predicted
from autotm.executor.trying import unchanged_random
from autotm.executor.workspace import Width, placed, widths
from autotm.graph import Graph, Machine, Plan
from autotm.planner.apart import apart, plan_apart
from autotm.planner.choice import planned_seconds
from autotm.report import Measurement, page

ALIKE = 1.005  # times the least seconds are as good, and less workspace is better
CHOOSING = 600.0  # s, at most


def fit(
    module: nn.Module,
    sample: torch.Tensor | Sequence[torch.Tensor],
    loss: Loss | None = None,
    *,
    budget: str | float,
    cache: str | Path | None = None,
    planner: Planner | None = None,
) -> Fitted:
    """A module whose training step (forward and backward) takes at most `budget` bytes.

    The step computes `loss(module(*sample[:-1]), sample[-1])`, or `module(*sample)` where no loss
    is given; its shapes are the sample's. The budget pays for parameters, buffers, inputs,
    gradients, activations and the operators' workspace; not for the optimizer's state and the
    driver's own memory. budget: "12GiB", "10.2GB" or a number of bytes. cache: a file of operators'
    times, made if it is not there. planner: in place of autotm's. Raises CaptureError, BudgetError,
    PinnedError, ValueError.
    """
    cap = bytes_of(budget)
    found = timed(module, sample, loss, cache)
    found = found.narrowed(found.best_width(cap))
    machine = found.machine(cap)
    return found.fitted(planned(found.graph, machine, planner or plan_apart, cap), cap)


@dataclass(frozen=True)
class Timed:
    """A module's captured and timed iteration, of which plans for any budget are made.

    widths: ways to limit workspace, from the widest on (on a CPU there is one). width: the number
    of the one that it has. libraries: bytes that these keep. rates: of the link.
    """

    module: nn.Module
    loss: Loss | None
    capture: Capture
    widths: Sequence[Width]
    cache: Cache
    libraries: int
    rates: Link
    width: int = 0

    @cached_property
    def placed(self) -> Capture:
        """With the workspace that lies in the arena."""
        return placed(self.capture, self.widths[self.width].times)

    @cached_property
    def graph(self) -> Graph:
        """As planners see it."""
        return arena_graph(self.placed.graph, paced(self.widths[self.width].times))

    @cached_property
    def outside(self) -> int:
        """Bytes of the operators' workspace outside the arena."""
        return self.libraries + room(self.placed, self.widths[self.width].times)

    def best_width(self, budget: float) -> int:
        """The number of what may be fastest (`planner/choice.py`), or else needs the least."""
        each = [replace(self, width=number) for number in range(len(self.widths))]
        if len(each) == 1:
            return 0
        times = [one.graph.seconds for one in each]
        if budget < math.inf:
            problems = [one._problem(int(budget)) for one in each]
            times = apart(CHOOSING, planned_seconds, problems)
        if min(times) == math.inf:
            return min(each, key=lambda one: least(one.capture, one.graph, one.outside)).width
        close = [one for one, time in zip(each, times, strict=True) if time <= ALIKE * min(times)]
        return min(close, key=lambda one: (one.graph.peak_bytes + one.outside, one.width)).width

    def _problem(self, budget: int) -> tuple[Graph, Machine] | None:
        """What a planner is asked; None where a budget leaves nothing."""
        with suppress(BudgetError):
            return self.graph, self.machine(budget)
        return None

    def narrowed(self, width: int) -> Timed:
        """With that one of `widths`, as all has that runs in this thread from now on, for good."""
        with unchanged_random(self.capture.device):
            self.widths[width].apply(self.capture, self.cache)
        return replace(self, width=width)

    def machine(self, budget: int) -> Machine:
        """What a budget leaves to the arena. Raises BudgetError."""
        return remaining(self.capture, self.graph, budget, self.outside, self.rates)

    def fitted(self, plan: Plan, budget: int) -> Fitted:
        """The module as the plan runs it. Raises BudgetError, PlanError, PinnedError."""
        machine = self.machine(budget)
        check(self.graph, machine, plan)
        found, program = self.placed, compile_plan(self.placed, self.graph, plan)
        lanes = lanes_on(found.device, program.arena_bytes, program.host_bytes)
        iteration = Iteration(found, Session(found, program, lanes), lanes)
        fit = Fit(self.graph, machine, plan, budget, self.outside)
        return Fitted(self.module, self.loss, fit, iteration, self.widths[self.width].limited)


def timed(
    module: nn.Module, sample: torch.Tensor | Sequence[torch.Tensor], loss: Loss | None = None,
    cache: str | Path | None = None, budget: int | None = None,
) -> Timed:  # fmt: skip
    """Capture an iteration and time its operators; see `fit`. Raises CaptureError, PinnedError.

    budget: bytes; nothing is timed where they cannot be met, whatever the workspace takes. Raises
    BudgetError there.
    """
    if isinstance(module, Fitted):
        raise CaptureError("the module is a fitted step: fit the module in it (step.module)")
    inputs = (sample,) if isinstance(sample, torch.Tensor) else tuple(sample)
    found = capture(module, inputs, loss)
    forget_workspaces(found.device)
    before = _allocated(found.device)
    with unchanged_random(found.device):
        found = handing(settled(found))
    if budget is not None:
        meets(found, arena_graph(found.graph), budget, 0)
    known = Cache(Path(cache) if cache is not None else None)
    with unchanged_random(found.device):
        times = in_backward(found.device, lambda: profile(found, known))
        # What libraries keep from their first call on is workspace too. By now every kind of call
        # ran in this thread, the forward's, and in autograd's.
        kept = max(0, _allocated(found.device) - before)
        kept += BLOCK if found.device.type == "cuda" else 0  # what is before the arena
        every = widths(found, times, known)
    return Timed(module, loss, found, every, known, kept, link(found.device))


@dataclass(frozen=True)
class Fit:
    """What was decided: the graph as the planner saw it, the machine, the plan, bytes."""

    graph: Graph
    machine: Machine
    plan: Plan
    budget: int
    outside: int


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


class _Step(torch.autograd.Function):
    """Both halves of a planned iteration, as autograd sees them."""

    @staticmethod
    def forward(
        ctx: Any, fitted: Fitted, held: Held, inputs: Any, *parameters: torch.Tensor
    ) -> torch.Tensor:
        ctx.fitted = fitted
        ctx.turn, loss, read = fitted.iteration.forward(held, inputs)
        ctx.read = [(each, each._version) for each in read]
        return loss

    @staticmethod
    @torch.compiler.disable  # on a CPU it would be compiled with what called for it
    def backward(ctx: Any, *tangents: torch.Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a fitted step has first gradients alone: for a gradient of these leave "
                "create_graph=True to the plain module (step.module)"
            )
        if any(each._version != version for each, version in ctx.read):
            raise RuntimeError(
                "a parameter or an input was changed in place between forward and backward; step "
                "the optimizer after backward"
            )
        found = ctx.fitted.iteration.backward(ctx.turn, tangents[0])
        return None, None, None, *(found[name] for name in ctx.fitted.trained)


class Fitted(nn.Module):
    """A module with its loss, fitted into a budget. Called with what the sample was made of.

    In evaluation mode or without gradients it runs the plain module. One backward belongs to each
    forward. `fit` has the plan.
    """

    def __init__(
        self, module: nn.Module, loss: Loss | None, fit: Fit, iteration: Iteration,
        here: bool = False,
    ) -> None:  # fmt: skip
        """here: it keeps its budget in this thread alone (`workspace.py`)."""
        super().__init__()
        self._thread = threading.get_ident() if here else None
        self.module = module
        self._loss = (loss,)  # not a child
        self.fit = fit
        self.iteration = iteration
        self.trained = tuple(iteration.capture.gradients)
        self.measurement: Measurement | None = None
        self._like = [likeness(each) for each in iteration.capture.inputs]
        self._cast = casting(iteration.capture.device)
        self._guard = Guard(module, loss)

    @torch.compiler.disable(reason="a step runs as it is; leave out fullgraph=True")
    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The loss. Raises ValueError where shapes, types or the module are not the sample's."""
        if not (self.training and torch.is_grad_enabled()):
            return whole(self.module, self._loss[0], inputs)
        if any(isinstance(each, torch.Tensor) and each.requires_grad for each in inputs):
            raise ValueError(
                "an input requires a gradient, and only parameters get one; pass x.detach()"
            )
        if self._thread not in (None, threading.get_ident()):
            raise ValueError(
                "this step was fitted in another thread, and in this one cuDNN may take more "
                "memory than its budget; fit it here"
            )
        if other := unlike(self._like, [likeness(each) for each in inputs]):
            raise ValueError(other)
        held = self._guard.held(self.module)
        if held is None:
            raise ValueError(
                "the module has changed since it was fitted, or its loss (a training mode, a "
                "shape, a type, what is trained); fit it again"
            )
        if casting(self.iteration.capture.device) != self._cast:
            raise ValueError("autocast is not what it was when the step was fitted; fit it again")
        parameters = [held.parameters[name] for name in self.trained]
        loss: torch.Tensor = _Step.apply(self, held, inputs, *parameters)
        return loss

    def measure(self, repeats: int = 5, close: bool = False) -> Measurement:
        """Times and peaks of the sample's iteration, and whether its gradients are the plain
        run's. Changes neither the module nor its gradients. close: closes before the plain run, so
        that this one has the memory of the arenas.
        """
        found = self.iteration
        self.measurement = measure(found, self.module, found.capture.inputs, repeats, close)
        return self.measurement

    def report(self) -> str:
        """A page: what moves, what is made again, time and peak as predicted and measured."""
        fit = self.fit
        return page(self.iteration.capture, fit.graph, fit.machine, fit.plan, fit.budget,
                    fit.outside, self.measurement)  # fmt: skip

    def timelines(self) -> dict[str, list[Span]]:
        """An iteration of the sample as `measured`, after a first one, and as `predicted`."""
        fit, found = self.fit, self.iteration
        spans = found.traced(self.module, fit.graph, fit.plan)
        return {"measured": spans, "predicted": predicted(fit.graph, fit.machine, fit.plan)}

    def timeline(self, path: str | Path) -> None:
        """Write both for ui.perfetto.dev."""
        Path(path).write_text(chrome(self.timelines()))

    def lost(self) -> Lost:
        """By what an iteration of the sample takes longer than its plan says."""
        return lost(self.timelines(), self.iteration.session.program.waits)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a fitted step has arenas and streams, and cannot be copied or saved; keep "
            "step.module.state_dict(), and fit again"
        )

    def close(self) -> None:
        """Give the arenas back; only plain runs are possible afterwards."""
        self.iteration.session.close()

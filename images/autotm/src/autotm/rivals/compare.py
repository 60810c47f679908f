"""One network, some caps: every rival at its best knob, ours at the same measured peak, in turns.

Peaks are measured, never predicted: of an iteration after a first one, with everything that is
allocated for it and what was there before. A cap is a share of what the plain step needs.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from autotm.check import check
from autotm.executor.capture import Loss
from autotm.executor.errors import AutotmError
from autotm.fitting import Planner, fit
from autotm.rivals.search import Point, at_cap, dominating, search
from autotm.rivals.steps import Rival, Run, rivals

OURS = "Ours"


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """The most bytes allocated on a device while `run()` runs, with what was there before.

    A CPU has no such counter: there it is what PyTorch's profiler saw, from 0 on.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        run()
    kineto = seen.profiler
    assert kineto is not None
    events = [each for each in kineto.kineto_results.events() if each.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


def seconds_of(run: Run, device: torch.device, repeats: int) -> list[float]:
    """Seconds of iterations, each from an idle device to an idle one."""
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - begin)
    return found


@dataclass
class Cell:
    """A network at a cap. points: everything that was measured; turns: seconds by name, in turns.

    expected: what our plan says an iteration takes, its bound, and what it took to solve and to fit
    (capture, times of the operators and plan), in s. note: why ours is not there.
    """

    cap: int
    points: list[Point] = field(default_factory=list)
    turns: dict[str, list[float]] = field(default_factory=dict)
    expected: dict[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def best(self) -> Point | None:
        """The fastest rival within the cap."""
        return at_cap((each for each in self.points if each.rival != OURS), self.cap)

    @property
    def ours(self) -> Point | None:
        return next((each for each in self.points if each.rival == OURS), None)

    @property
    def dominated_by(self) -> list[Point]:
        """Rivals that are both faster and smaller than ours."""
        others = [each for each in self.points if each.rival != OURS]
        return dominating(self.ours, others) if self.ours is not None else []


class Comparison:
    """A module with its rivals. Measures each point once, whatever the caps."""

    def __init__(
        self, module: nn.Module, sample: Sequence[torch.Tensor], loss: Loss | None, *,
        backend: str = "inductor", repeats: int = 5, planner: Planner | None = None,
        only: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.module, self.sample, self.loss = module, tuple(sample), loss
        self.repeats, self.planner = repeats, planner
        self.device = self.sample[0].device
        found = rivals(module, sample, loss, backend)
        self.rivals = {each.name: each for each in found if not only or each.name in only}
        self._known: dict[tuple[str, float], tuple[int, float] | None] = {}

    def plain(self) -> Point:
        """The plain step; its peak is the need. Raises RuntimeError where it does not fit."""
        found = self._measure(self.rivals["plain"], 0.0)
        if found is None:
            raise RuntimeError("the plain step does not fit, so nothing is known to be a share of")
        return Point("plain", 0.0, *found)

    def cell(self, cap: int) -> Cell:
        """All rivals searched at a cap, ours at the best one's peak, then both in turns."""
        found = Cell(cap)
        for rival in self.rivals.values():
            if not rival.missing:
                found.points += search(
                    rival.name, rival.knobs, lambda knob, r=rival: self._measure(r, knob),  # type: ignore[misc]
                    cap, whole=rival.whole,
                )  # fmt: skip
        best = found.best
        self._ours(found, best.peak if best is not None else cap)
        return found

    def _measure(self, rival: Rival, knob: float) -> tuple[int, float] | None:
        name = rival.name, knob
        if name not in self._known:
            self._known[name] = self._run(rival, knob)
        return self._known[name]

    def _run(self, rival: Rival, knob: float) -> tuple[int, float] | None:
        self._tidy()
        try:
            with rival.step(knob) as run:
                run()
                self.module.zero_grad()
                peak = peak_bytes(run, self.device)
                times = seconds_of(self._clean(run), self.device, self.repeats)
        except torch.OutOfMemoryError:
            return None
        finally:
            self._tidy()
        return peak, statistics.median(times)

    def _clean(self, run: Run) -> Run:
        def clean() -> torch.Tensor:
            self.module.zero_grad()
            return run()

        return clean

    def _tidy(self) -> None:
        self.module.zero_grad()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _ours(self, cell: Cell, cap: int) -> None:
        best = cell.best
        with ExitStack() as stack:
            began = time.perf_counter()
            try:
                step = fit(self.module, self.sample, self.loss, budget=cap, planner=self.planner)
            except AutotmError as error:
                cell.note = str(error)
                return
            stack.callback(step.close)
            plan = step.fit.plan
            cell.expected = {
                "predicted_time": check(step.fit.graph, step.fit.machine, plan).seconds,
                "bound": plan.bound,
                "solve_time": plan.solve_seconds,
                "fit_time": time.perf_counter() - began,
            }
            if step.measure(1).differ != ():
                cell.note = "void: the gradients are not, or not shown to be, the plain run's"
                return

            def run() -> torch.Tensor:
                found: torch.Tensor = step(*self.sample)
                found.backward()  # type: ignore[no-untyped-call]
                return found.detach()

            run()
            self.module.zero_grad()
            # The arenas were there before; a CPU's profiler did not see them made.
            arena = plan.peak_bytes if self.device.type != "cuda" else 0
            peak = peak_bytes(run, self.device) + arena
            clean = self._clean(run)
            cell.turns[OURS] = seconds_of(clean, self.device, self.repeats)
            if best is not None:
                with self.rivals[best.rival].step(best.knob) as other:
                    other()
                    theirs = self._clean(other)
                    cell.turns[best.rival] = seconds_of(theirs, self.device, 2 * self.repeats)
                cell.turns[OURS] += seconds_of(clean, self.device, self.repeats)
            knob = cap / 1e9
            seconds = statistics.median(cell.turns[OURS])
            cell.points.append(Point(OURS, knob, peak, seconds))

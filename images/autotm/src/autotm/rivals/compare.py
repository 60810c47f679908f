"""One network: a rival at its best knob for a cap, ours at the same measured peak, in turns.

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
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from autotm.check import check
from autotm.executor.capture import Loss
from autotm.executor.errors import AutotmError, BudgetError
from autotm.executor.profiling import forget_workspaces
from autotm.fitting import Planner, fit
from autotm.graph import Graph, Machine, Plan
from autotm.planner.model import NoPlan
from autotm.planner.ours import plan
from autotm.rivals.base import Rival, Run, iterate
from autotm.rivals.search import TRIES, Point, at_cap, dominating, search, thinned
from autotm.rivals.steps import rivals

OURS = "Ours"
FAILURES = 2  # knobs of a form that cannot be compiled, before it is left out


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


def held_bytes(module: nn.Module, sample: Sequence[torch.Tensor]) -> int:
    """What was there before an iteration and a CPU's peak does not know of: 0 on a GPU."""
    if sample[0].device.type == "cuda":
        return 0
    return sum(each.nbytes for each in (*module.parameters(), *module.buffers(), *sample))


def seconds_of(run: Run, device: torch.device) -> float:
    """Seconds of an iteration, from an idle device to an idle one."""
    begin = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def once_planned(seconds: float, gap: float) -> Planner:
    """Our planner, which is not asked for the least budget where it finds no plan for this one."""

    def planner(graph: Graph, machine: Machine) -> Plan:
        try:
            return plan(graph, machine, seconds=seconds, gap=gap)
        except NoPlan as error:
            raise BudgetError(f"no plan was found for this budget: {error}", 0) from error

    return planner


@dataclass
class Cell:
    """A rival at a cap. points: everything that was measured; turns: seconds by name, in turns.

    expected: what our plan says an iteration takes, its bound, and what it took to solve and to fit
    (capture, times of the operators and plan), in s. unsteady: gradients that the plain run does
    not repeat, and ours are but close to. note: why ours is not there.
    """

    cap: int
    points: list[Point] = field(default_factory=list)
    turns: dict[str, list[float]] = field(default_factory=dict)
    expected: dict[str, float] = field(default_factory=dict)
    unsteady: int = 0
    note: str = ""

    @property
    def best(self) -> Point | None:
        """The rival's fastest point within the cap."""
        return at_cap((each for each in self.points if each.rival != OURS), self.cap)

    @property
    def ours(self) -> Point | None:
        return next((each for each in self.points if each.rival == OURS), None)

    @property
    def closest(self) -> list[Point]:
        """Of each form the rival's largest peak within the cap: how well it was tuned."""
        found: dict[str, Point] = {}
        for point in self.points:
            old = found.get(point.form)
            if (
                point.rival != OURS
                and point.peak <= self.cap
                and (old is None or point.peak > old.peak)
            ):
                found[point.form] = point
        return list(found.values())

    @property
    def dominated_by(self) -> list[Point]:
        """The rival's points that are both faster and smaller than ours."""
        others = [each for each in self.points if each.rival != OURS]
        return dominating(self.ours, others) if self.ours is not None else []


class Comparison:
    """A module with its rivals. Measures each point once, whatever the caps.

    failed: by name, form and knob, why PyTorch cannot compile it. most: knobs that are tried for
    each rival and form at a cap, half of them as a first grid; 0: the whole grid, and 12 beside it.
    """

    def __init__(
        self, module: nn.Module, sample: Sequence[torch.Tensor], loss: Loss | None, *,
        backend: str = "inductor", repeats: int = 5, planner: Planner | None = None,
        only: Sequence[str] = (), most: int = 0, cache: Path | None = None,
    ) -> None:  # fmt: skip
        self.module, self.sample, self.loss = module, tuple(sample), loss
        self.repeats, self.planner = repeats, planner
        self.most, self.cache = most, cache
        self.device = self.sample[0].device
        self.held = held_bytes(module, self.sample)
        found = rivals(module, sample, loss, backend)
        self.rivals = {(each.name, each.form): each for each in found
                       if not only or each.name in only}  # fmt: skip
        self.failed: dict[tuple[str, str, float], str] = {}
        self._known: dict[tuple[str, str, float], tuple[int, float] | None] = {}

    def plain(self) -> Point:
        """The plain step; its peak is the need. Raises RuntimeError where it does not fit."""
        found = self.measured(self.rivals["plain", ""], 0.0)
        if found is None:
            raise RuntimeError("the plain step does not fit, so nothing is known to be a share of")
        return Point("plain", 0.0, *found)

    def forms(self, name: str) -> list[Rival]:
        """The forms of a rival that can run here."""
        return [each for each in self.rivals.values() if each.name == name and not each.missing]

    def searched(
        self, rival: Rival, cap: int, enough: Callable[[Point], bool] = lambda point: False
    ) -> list[Point]:
        """A form's points on the way to a peak just below the cap, or to one that is `enough`."""
        first = thinned(rival.knobs, max(2, self.most // 2)) if self.most else rival.knobs
        return search(
            rival.name, first, lambda knob: self.measured(rival, knob), cap,
            whole=rival.whole, form=rival.form, enough=enough,
            tries=max(0, self.most - len(first)) if self.most else TRIES,
        )  # fmt: skip

    def cell(self, cap: int, name: str) -> Cell:
        """A rival searched at a cap in all its forms, ours at its best peak, then both in turns.

        Where it does not reach the cap, ours has the cap itself and runs alone; beside the plain
        step, which has no knob, it has the cap as well, and both run in turns.
        """
        found = Cell(cap)
        for form in self.forms(name):
            found.points += self.searched(form, cap)
        best = found.best
        beside = self.plain() if name == "plain" else best
        try:
            self._ours(found, best.peak if best is not None else cap, beside)
        except torch.OutOfMemoryError:
            found.note = "the device ran out of memory"
            self._tidy()
        return found

    def points(self) -> list[Point]:
        """All that was measured of rivals."""
        return [
            Point(name, knob, *found, form)
            for (name, form, knob), found in self._known.items()
            if found is not None
        ]

    def measured(self, rival: Rival, knob: float) -> tuple[int, float] | None:
        """Peak and median seconds; None where it does not fit, or cannot be compiled."""
        name = rival.name, rival.form, knob
        if name not in self._known:
            self._known[name] = self._run(rival, knob)
        return self._known[name]

    def _run(self, rival: Rival, knob: float) -> tuple[int, float] | None:
        if sum(each[:2] == (rival.name, rival.form) for each in self.failed) >= FAILURES:
            return None
        self._tidy()
        try:
            with rival.step(knob) as run:
                run()
                self.module.zero_grad()
                peak = peak_bytes(run, self.device) + self.held
                clean = self._clean(run)
                times = [seconds_of(clean, self.device) for _ in range(self.repeats)]
        except torch.OutOfMemoryError:
            return None
        except Exception as error:
            if not rival.compiled:
                raise
            cause = getattr(error, "inner_exception", None) or error
            first = next(iter(str(cause).strip().splitlines()), "")
            self.failed[rival.name, rival.form, knob] = f"{type(cause).__name__}: {first}"
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
        forget_workspaces(self.device)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _ours(self, cell: Cell, cap: int, beside: Point | None) -> None:
        self._tidy()
        with ExitStack() as stack:
            began = time.perf_counter()
            try:
                step = fit(self.module, self.sample, self.loss, budget=cap, cache=self.cache,
                           planner=self.planner)  # fmt: skip
            except AutotmError as error:
                cell.note = str(error)
                return
            stack.callback(step.close)
            ours = step.fit.plan
            cell.expected = {
                "predicted_time": check(step.fit.graph, step.fit.machine, ours).seconds,
                "bound": ours.bound,
                "solve_time": ours.solve_seconds,
                "fit_time": time.perf_counter() - began,
            }
            found = step.measure(1)
            cell.note, cell.unsteady = found.void, len(found.unsteady)
            if cell.note:
                return

            def run() -> torch.Tensor:
                return iterate(lambda: step(*self.sample))

            run()
            self.module.zero_grad()
            # The arenas were there before; a CPU's profiler did not see them made.
            arena = ours.peak_bytes if self.device.type != "cuda" else 0
            peak = peak_bytes(run, self.device) + self.held + arena
            cell.turns = self._turns(beside, run)
            seconds = statistics.median(cell.turns[OURS])
            cell.points.append(Point(OURS, cap / 1e9, peak, seconds))

    def _turns(self, beside: Point | None, run: Run) -> dict[str, list[float]]:
        """Seconds of ours (A) and of a rival (B) in this process, in turns: A B B A.

        Where the rival does not fit beside our arena, it keeps those that it took alone.
        """
        runs = {OURS: self._clean(run)}
        found: dict[str, list[float]] = {OURS: []}
        with ExitStack() as stack:
            order = [OURS]
            if beside is not None:
                name = beside.rival
                step = self.rivals[name, beside.form].step(beside.knob)
                try:
                    other = stack.enter_context(step)  # some run a forward to begin with
                    other()
                    runs[name], found[name] = self._clean(other), []
                    order = [OURS, name, name, OURS]
                except torch.OutOfMemoryError:
                    found[name] = [beside.seconds]
                    self._tidy()
            for _ in range(self.repeats):
                for name in order:
                    found[name].append(seconds_of(runs[name], self.device))
        return found

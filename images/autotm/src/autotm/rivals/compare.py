"""One network: a rival at its best knob for a cap, ours at the same measured peak, in turns.

A cap is a share of what the plain step needs, by its measured peak.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import cached_property

import torch
from torch import nn

from autotm.check import check
from autotm.executor.errors import AutotmError, BudgetError
from autotm.executor.lossy import Loss
from autotm.fitting import Planner, Timed, timed
from autotm.graph import Plan
from autotm.planner.apart import once_planned, solvers
from autotm.rivals.base import Rival, Run, iterate
from autotm.rivals.cell import OURS, Cell
from autotm.rivals.measuring import held_bytes, no_memory, peak_bytes, seconds_of, tidy, why
from autotm.rivals.search import TRIES, Point, search, thinned
from autotm.rivals.steps import rivals

FAILURES = 2  # knobs of a form that fail, before it is left out
SPARE = 0.002  # of ours' budget: an allocator's blocks may be larger than what was asked for


class Comparison:
    """A module with its rivals. Measures each point once, whatever the caps.

    failed: by name, form and knob, why it could not be run. most: knobs that are tried for each
    rival and form at a cap, half of them as a first grid; 0: the whole grid, and 12 beside it.
    repeats: rounds of turns. spent: s by what they went to: `operators` (timing them), `limits`
    (choosing those on workspace), `points` (of rivals), `plans` (finding them), `gradients`
    (ours against the plain run's), `turns`, `trace` (what is lost).
    """

    def __init__(
        self, module: nn.Module, sample: Sequence[torch.Tensor], loss: Loss | None, *,
        backend: str = "inductor", repeats: int = 3, planner: Planner | None = None,
        only: Sequence[str] = (), most: int = 0,
    ) -> None:  # fmt: skip
        self.module, self.sample, self.loss = module, tuple(sample), loss
        self.repeats, self.most = repeats, most
        self.planner = planner or once_planned(60.0, 0.01)
        self.device = self.sample[0].device
        self.held = held_bytes(module, self.sample)
        found = rivals(module, sample, loss, backend)
        self.rivals = {(each.name, each.form): each for each in found
                       if not only or each.name in only}  # fmt: skip
        self.failed: dict[tuple[str, str, float], str] = {}
        self.spent: defaultdict[str, float] = defaultdict(float)
        self._known: dict[tuple[str, str, float], tuple[int, float] | None] = {}

    @contextmanager
    def _spending(self, on: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spent[on] += time.perf_counter() - began

    def unlimited(self) -> Point | None:
        """The plain step with the workspace that PyTorch takes where there is room, if it fits.

        To be asked for first: all that is measured has less from then on. None on a CPU.
        """
        if self.device.type != "cuda":
            return None
        found = self._run(self.rivals["plain", ""], 0.0)
        return None if found is None else Point("plain", 0.0, *found)

    def plain(self) -> Point:
        """The plain step; its peak is the need. Raises AutotmError where it does not fit."""
        found = self.measured(self.rivals["plain", ""], 0.0)
        if found is None:
            raise AutotmError("the plain step does not fit, so nothing is known to be a share of")
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

    def cells(self, caps: Sequence[int], *names: str) -> Iterator[Cell]:
        """Each rival at each cap, those first at which operators have the most workspace.

        Limits on it suit what ours has at a cap. Where the rival stays so far below the cap that
        others suit ours, it keeps the times that it took with its own.
        """
        suits = list(zip(caps, self._widths(caps), strict=True))
        waiting = [(width, Cell(cap, name)) for name in names for cap, width in suits]
        while waiting:
            width = min(each for each, _ in waiting)
            self._narrow(width)
            now = [cell for each, cell in waiting if each == width]
            waiting = [each for each in waiting if each[0] > width]
            new = [cell for cell in now if not cell.alone]
            for cell in new:
                self._tune(cell)
            far = [cell for cell in new if cell.far]
            narrower = self._widths([cell.budget for cell in far])
            for cell, other in zip(far, narrower, strict=True):
                if other > width:
                    cell.alone = True
                    now.remove(cell)
                    waiting.append((other, cell))
            yield from self._cells(now)

    def within(self, cap: float) -> None:
        """Give operators the workspace that suits a cap, for all that is measured from now on."""
        self._narrow(*self._widths([cap]))

    def _cells(self, cells: Sequence[Cell]) -> Iterator[Cell]:
        """Ours at the best peak of each cell's rival, then both in turns.

        Beside the plain step, which has no knob, ours has the cap itself. All plans are made at
        once, after the searches and before any turn, so that nothing is timed meanwhile. What goes
        wrong at a cap is its cell's note.
        """
        for cell, plan in zip(cells, self._plans(cells), strict=True):
            if plan is not None:
                beside = self.plain() if cell.rival == "plain" else cell.best
                try:
                    self._ours(cell, plan, beside)
                except Exception as error:  # noqa: BLE001 - other caps, and what is known, count
                    cell.note = why(error)
                    if isinstance(error, BudgetError):
                        cell.unplanned = True
                        cell.empty = cell.best is None and error.least > 0
            yield cell

    def points(self) -> list[Point]:
        """All that was measured of rivals."""
        return [
            Point(name, knob, *found, form)
            for (name, form, knob), found in self._known.items()
            if found is not None
        ]

    def measured(self, rival: Rival, knob: float) -> tuple[int, float] | None:
        """Peak and seconds; None where it does not fit, or fails otherwise."""
        name = rival.name, rival.form, knob
        if name not in self._known:
            self._known[name] = self._run(rival, knob)
        return self._known[name]

    @cached_property
    def _timed(self) -> Timed | Exception:
        """The iteration that ours plans, or why there is none: rivals' points count all the same.

        It is timed before any of them, so that all have the same workspace.
        """
        self._tidy()
        with self._spending("operators"):
            try:
                return timed(self.module, self.sample, self.loss)
            except Exception as error:  # noqa: BLE001
                return error

    def _widths(self, caps: Sequence[float]) -> list[int]:
        """Those that suit caps; never less than before, as there is no way back."""
        iteration = self._timed
        if isinstance(iteration, Exception):
            return [0 for _ in caps]
        with self._spending("limits"), solvers() as pool:
            return [max(iteration.width, each) for each in pool.map(iteration.best_width, caps)]

    def _narrow(self, width: int) -> None:
        if isinstance(self._timed, Timed):
            if width > self._timed.width:
                self._known.clear()
            self._timed = self._timed.narrowed(width)

    def _tune(self, cell: Cell) -> None:
        """Search the rival; a note where it misses the cap, or failed."""
        for form in self.forms(cell.rival):
            cell.points += self.searched(form, cell.cap)
        if cell.rival == "plain" or cell.best is not None:
            return
        failed = [text for key, text in self.failed.items() if key[0] == cell.rival]
        cell.empty, cell.note = not failed, f"{cell.rival} does not reach this cap"
        if failed:
            cell.note = f"whether {cell.rival} reaches this cap is not known: {failed[0]}"

    def _plans(self, cells: Sequence[Cell]) -> list[Future[Plan] | None]:
        """A plan, or what was in its way, for each cell that has no note."""
        iteration = self._timed
        if isinstance(iteration, Exception):
            for cell in cells:
                cell.note = cell.note or why(iteration)
            return [None for _ in cells]

        def planned(cell: Cell) -> Plan:
            machine = iteration.machine(int((1 - SPARE) * cell.budget))
            found = self.planner(iteration.graph, machine)
            times = iteration.widths[iteration.width].times
            cell.workspace = max(each.outside for each in times)
            cell.expected = {
                "predicted_time": check(iteration.graph, machine, found).seconds,
                "bound": found.bound,
                "solve_time": found.solve_seconds,
                "fit_time": self.spent["operators"] + found.solve_seconds,
            }
            return found

        with self._spending("plans"), solvers() as pool:  # which ends when all have been found
            return [None if cell.note else pool.submit(planned, cell) for cell in cells]

    def _run(self, rival: Rival, knob: float) -> tuple[int, float] | None:
        if sum(each[:2] == (rival.name, rival.form) for each in self.failed) >= FAILURES:
            return None
        self._tidy()
        try:
            with self._spending("points"), rival.step(knob) as run:
                run()
                self.module.zero_grad()
                peak = peak_bytes(run, self.device) + self.held
                clean = self._clean(run)
                seconds_of(clean, self.device)  # in which PyTorch pins memory, which it then keeps
                seconds = seconds_of(clean, self.device)
        except Exception as error:
            if no_memory(error):
                return None
            if rival.name == "plain":
                raise
            self.failed[rival.name, rival.form, knob] = why(error)
            return None
        finally:
            self._tidy()
        return peak, seconds

    def _clean(self, run: Run) -> Run:
        def clean() -> torch.Tensor:
            self.module.zero_grad()
            return run()

        return clean

    def _tidy(self) -> None:
        self.module.zero_grad()
        tidy(self.device)

    def _ours(self, cell: Cell, plan: Future[Plan], beside: Point | None) -> None:
        ours = plan.result()
        self._tidy()
        with ExitStack() as stack:
            began = time.perf_counter()
            assert isinstance(self._timed, Timed)
            step = self._timed.fitted(ours, int((1 - SPARE) * cell.budget))
            stack.callback(step.close)
            cell.expected["fit_time"] += time.perf_counter() - began
            with self._spending("gradients"):
                found = step.measure(0)
            cell.note, cell.unsteady = found.void, len(found.unsteady)
            if cell.note:
                return

            def run() -> torch.Tensor:
                return iterate(lambda: step(*self.sample))

            run()
            self.module.zero_grad()
            # The arenas were there before; a CPU's profiler did not see them made.
            cuda = self.device.type == "cuda"
            peak = peak_bytes(run, self.device) + self.held + (0 if cuda else ours.peak_bytes)
            if cuda and peak > cell.budget:  # a CPU's workspace is not known when it is planned
                cell.note = f"void: it takes {peak / 1e9:.4f} GB, over {cell.budget / 1e9:.4f} GB"
                return
            cell.turns = self._turns(beside, self._clean(run), cell.alone)
            seconds = statistics.median(cell.turns[OURS])
            cell.points.append(Point(OURS, cell.budget / 1e9, peak, seconds))
            if cell.smaller is not None:
                cell.against = self._turns(cell.smaller, self._clean(run), cell.alone)
            self.module.zero_grad()
            with self._spending("trace"):
                cell.lost = step.lost()

    def _turns(self, beside: Point | None, ours: Run, alone: bool) -> dict[str, list[float]]:
        """Seconds of ours (A) and of a rival (B) in this process, in turns: A B B A.

        Where the rival does not fit beside our arena, or ran with other limits on workspace, it
        keeps those that it took alone. A first round is not counted: what was made just now is slow
        at first.
        """
        runs, order = {OURS: ours}, [OURS]
        found: dict[str, list[float]] = {OURS: []}
        with self._spending("turns"), ExitStack() as stack:
            if beside is not None:
                name, other = beside.rival, None if alone else self._beside(beside, stack)
                found[name] = []
                if other is None:
                    found[name] = [beside.seconds]
                    self._tidy()
                else:
                    runs[name], order = self._clean(other), [OURS, name, name, OURS]
            for run in runs.values():
                seconds_of(run, self.device)
            for _ in range(self.repeats):
                for name in order:
                    found[name].append(seconds_of(runs[name], self.device))
        return found

    def _beside(self, point: Point, stack: ExitStack) -> Run | None:
        """A rival's step after a first iteration, or None where it has no room."""
        try:  # some run a forward to begin with
            run = stack.enter_context(self.rivals[point.rival, point.form].step(point.knob))
            run()
        except RuntimeError as error:
            if no_memory(error):
                return None
            raise
        return run

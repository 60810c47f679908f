"""The largest batch within a budget, by bisection; every success is a whole step, run and checked.

Its time per sample may be some times that of the plain step at the largest batch that this one
reaches within the same budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from autotm.executor.lossy import Loss
from autotm.fitting import Fitted, timed
from autotm.networks.modules import module
from autotm.planner.apart import Aimed, once_planned
from autotm.planner.model import Aim
from autotm.rivals.base import iterate
from autotm.rivals.cell import OURS
from autotm.rivals.compare import SPARE, Comparison
from autotm.rivals.measuring import held_bytes, peak_bytes, seconds_of, tidy, why
from autotm.rivals.search import Point, at_cap

PLANNER = once_planned(60.0, 0.01)
ERROR = 0.05  # of a plan's seconds, within which they are measured


@dataclass(frozen=True)
class Trial:
    """A batch that was tried: peak in bytes and seconds per sample, where it ran; why it failed.

    unsteady: gradients that the plain run does not repeat, and that are but close to its own.
    """

    batch: int
    peak: int = 0
    seconds: float = 0.0
    why: str = ""
    unsteady: int = 0


def largest(
    attempt: Callable[[int], Trial], first: int, resolution: float, cap: int = 0
) -> tuple[Trial | None, list[Trial]]:
    """The last success, and all that was tried. resolution: of the batch, where the search ends.

    From `first` on it doubles (or halves) up to a success beside a failure, then bisects. cap: for
    what has no knob, so that peaks lie on a line over the batch: then it goes where that reaches
    `cap` bytes.
    """
    tried: list[Trial] = []
    best: Trial | None = None
    low, high, batch = 0, 0, first
    while batch >= 1 and batch != low:
        tried.append(attempt(batch))
        if tried[-1].why:
            high = batch
        else:
            low, best = batch, tried[-1]
        if high and high - low <= max(1.0, resolution * low):
            break
        batch = (low + high) // 2 if high else 2 * low
        if cap and (guess := _reaching(cap, tried)) and (guess < high or not high):
            batch = guess if guess > low else min(low + max(1, int(resolution * low)), batch)
    return best, tried


def _reaching(cap: int, tried: Sequence[Trial]) -> int:
    """The batch at which a line through the last two peaks, or one and 0, reaches the cap; or 0."""
    peaks = [(0, 0), *((trial.batch, trial.peak) for trial in tried if trial.peak)][-2:]
    (low, least), (high, most) = peaks[0], peaks[-1]
    return int(low + (cap - least) * (high - low) / (most - least)) if most > least else 0


@dataclass(frozen=True)
class Task:
    """A network to be trained within `cap` bytes. limit: seconds per sample at most, or none.

    knobs: tried of each form of a rival; 0: its grid, and 12 more.
    """

    network: str
    device: str
    precision: str
    cap: int
    loss: Loss
    limit: float = float("inf")
    knobs: int = 0
    planner: Aimed = PLANNER

    def ours(self, batch: int) -> Trial:
        """A planned step, with the plain run's gradients. Raises AutotmError, OutOfMemoryError.

        The first plan within the time will do, and where it is proven that every plan misses the
        time by more than it may err, nothing is run. Where a step takes longer than its plan says,
        and too long, the best plan is tried as well.
        """
        net, sample = self._made(batch)
        budget, most = int((1 - SPARE) * self.cap), self.limit * batch
        found = timed(net, sample, self.loss, budget=budget)
        found = found.narrowed(found.best_width(budget))
        machine = found.machine(budget)
        for enough in (most, 0.0):
            plan = self.planner(found.graph, machine, Aim(enough, most * (1 + ERROR)))
            trial = self._stepped(found.fitted(plan, budget), sample, batch)
            if trial.seconds <= self.limit or plan.seconds > most:
                break
        return trial

    def _stepped(self, step: Fitted, sample: Sequence[torch.Tensor], batch: int) -> Trial:
        """A step, run and closed.

        Gradients are compared where all else succeeds, and when our arenas are gone: the plain run
        has their room.
        """
        net, where = step.module, sample[0].device
        try:

            def run() -> torch.Tensor:
                net.zero_grad()
                return iterate(lambda: step(*sample))

            run()
            net.zero_grad()
            peak = peak_bytes(run, where) + held_bytes(net, sample)
            peak += step.fit.plan.peak_bytes if where.type != "cuda" else 0  # made before
            trial = self._judged(batch, peak, seconds_of(run, where) / batch)
            if trial.why:
                return trial
            net.zero_grad()
            found = step.measure(0, close=True)
        finally:
            step.close()
        if found.void:
            return Trial(batch, why=found.void)
        return replace(trial, unsteady=len(found.unsteady))

    def rival(self, name: str, batch: int) -> Trial:
        """A rival in each form, its knob searched at the cap until a point succeeds.

        The trial of its fastest point within the cap, or else of its smallest.
        """
        net, sample = self._made(batch)
        found = Comparison(net, sample, self.loss, only=[name], most=self.knobs)
        found.within(self.cap)

        def judged(point: Point) -> Trial:
            return self._judged(batch, point.peak, point.seconds / batch)

        points: list[Point] = []
        for form in found.forms(name):
            points += found.searched(form, self.cap, lambda point: not judged(point).why)
            best = at_cap(points, self.cap)
            if best is not None and not judged(best).why:
                return judged(best)
        if not points:
            missing = [each.missing for each in found.rivals.values() if each.missing]
            failed = [*found.failed.values(), *missing, "it does not fit"]
            return Trial(batch, why=failed[0])
        best = at_cap(points, self.cap) or min(points, key=lambda point: point.peak)
        return judged(best)

    def attempt(self, name: str) -> Callable[[int], Trial]:
        """A trial of ours, or of a rival; what goes wrong is why it failed."""

        def trial(batch: int) -> Trial:
            tidy(torch.device(self.device))
            try:
                return self.ours(batch) if name == OURS else self.rival(name, batch)
            except Exception as error:  # noqa: BLE001 - a kernel may have a largest batch, too
                return Trial(batch, why=why(error))

        return trial

    def _made(self, batch: int) -> tuple[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]]:
        torch.manual_seed(0)
        return module(f"{self.network}_{batch}", self.device, self.precision)

    def _judged(self, batch: int, peak: int, seconds: float) -> Trial:
        reason = ""
        if peak > self.cap:
            reason = f"it takes {peak / 1e9:.3f} GB"
        elif seconds > self.limit:
            reason = f"a sample takes {seconds / self.limit:.3f} times what it may"
        return Trial(batch, peak, seconds, reason)

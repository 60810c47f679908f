"""Which points of a plan to run within a time, so that they decide the most claims. Pure.

A claim is decided by a set of points that must all be there (ae.claims.deciding). Chosen is what
gives the most claims a second, set by set, until none fits any more: greedy, so another choice may
decide a claim more; the same input always gives the same choice. After every point it is chosen
anew, with the time that is left and at the pace of what has ended here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ae.errors import UsageError
from ae.model import Point
from ae.units import counted, folded, format_seconds, parse_seconds

_SHOWN = 5  # steps of what is left out, one by one


def parse_budget(word: str) -> float:
    """Read `--budget` as seconds. Raises UsageError."""
    try:
        seconds = parse_seconds(word)
    except ValueError as error:
        raise UsageError(f"--budget: {error}", fix="--budget 20m") from error
    if seconds <= 0:
        raise UsageError(f"--budget {word}: no time at all", fix="--budget 20m, for example")
    return seconds


@dataclass(frozen=True)
class Step:
    """Points that are added together, and the claims that are decided once they have run."""

    points: tuple[str, ...]
    claims: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Choice:
    """What fits, in the order in which it runs, and what is left out, in that of its worth."""

    decided: tuple[str, ...]  # by points that have run
    steps: tuple[Step, ...]
    left: tuple[Step, ...]

    @property
    def points(self) -> list[str]:
        return [name for step in self.steps for name in step.points]

    @property
    def seconds(self) -> float:
        return math.fsum(step.seconds for step in self.steps)

    @property
    def claims(self) -> list[str]:
        """Those that are decided in the end."""
        return [*self.decided, *(name for step in self.steps for name in step.claims)]


def choose(
    needs: Mapping[str, frozenset[str]],
    seconds: Mapping[str, float],
    limit_s: float,
    done: Collection[str] = (),
) -> Choice:
    """The points to run within `limit_s`.

    `needs` says which points each claim needs, `seconds` how long each point takes, in the order of
    the plan; `done` are those that have run already.
    """
    have = set(done)
    decided = tuple(claim for claim, need in needs.items() if need <= have)
    steps = _steps(needs, seconds, limit_s, have)
    left = _steps(needs, seconds, math.inf, have)
    return Choice(decided, tuple(steps), tuple(left))


def _steps(
    needs: Mapping[str, frozenset[str]],
    seconds: Mapping[str, float],
    limit_s: float,
    have: set[str],
) -> list[Step]:
    """The sets of points that fit, by the most claims a second; `have` grows by them."""
    steps: list[Step] = []
    while True:
        open_ = {claim: need - have for claim, need in needs.items() if not need <= have}
        best: tuple[float, Step] | None = None
        for missing in dict.fromkeys(open_.values()):
            cost = math.fsum(map(seconds.__getitem__, missing))
            if cost > limit_s:
                continue
            claims = tuple(claim for claim, need in open_.items() if need <= missing)
            worth = len(claims) / max(cost, 0.001)
            if best is None or worth > best[0]:
                points = tuple(name for name in seconds if name in missing)
                best = worth, Step(points, claims, cost)
        if best is None:
            return steps
        steps.append(best[1])
        have.update(best[1].points)
        limit_s -= best[1].seconds


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A time, and the points that it is to be spent on.

    `points` know how long they take (`expected_s`) on the reference GPU: `measured` are those that
    have run there; of the others the recipe says it.
    """

    limit_s: float
    points: Sequence[Point]
    needs: Mapping[str, frozenset[str]]  # claim -> ids of points
    measured: frozenset[str] = frozenset()
    notes: Sequence[str] = ()

    def seconds(self, took: Mapping[str, float]) -> dict[str, float]:
        """How long each point takes here, `took` being seconds of those that have run.

        The time it is expected to take, times how much longer those of its experiment took; before
        one has run, those that had run on the reference GPU; before any, as it stands.
        """
        ran = [point for point in self.points if point.id in took]
        every = _pace([point for point in ran if point.id in self.measured], took)
        names = {point.experiment for point in ran}
        own = {n: _pace([point for point in ran if point.experiment == n], took) for n in names}
        return {
            point.id: point.expected_s * own.get(point.experiment, every) for point in self.points
        }

    def choice(
        self, left_s: float, took: Mapping[str, float], lost: Collection[str] = ()
    ) -> Choice:
        """What to run in the time that is left; nothing is decided by points that are lost."""
        needs = {claim: need for claim, need in self.needs.items() if need.isdisjoint(lost)}
        return choose(needs, self.seconds(took), left_s, took)

    def order(
        self,
        took: Callable[[], Mapping[str, float]],
        now: Callable[[], float],
        watch: Callable[[Choice], None],
    ) -> Iterator[Point]:
        """The points to run, chosen one after another while they run.

        `took` gives the seconds of all that are done, `watch` is shown every choice, the last one
        with nothing to run.
        """
        began, left_s, lost = now(), self.limit_s, set[str]()
        points = {point.id: point for point in self.points}
        while True:
            choice = self.choice(left_s, took(), lost)
            watch(choice)
            if not choice.steps:
                return
            name = choice.steps[0].points[0]
            yield points[name]
            left_s = self.limit_s - (now() - began)
            if name not in took():
                lost.add(name)

    def require(self, took: Mapping[str, float]) -> Choice:
        """The first choice. Raises UsageError where nothing can be decided in the time."""
        choice = self.choice(self.limit_s, took)
        if not choice.steps and choice.left:
            least = min(choice.left, key=lambda step: step.seconds)
            raise UsageError(
                f"no claim can be decided within {format_seconds(self.limit_s)}",
                fix=f"--budget {math.ceil(least.seconds / 60)}m is enough for "
                + counted(len(least.claims), "claim"),
            )
        if not self.needs:
            raise UsageError(
                "no claim needs what this run would measure", fix="run it without --budget"
            )
        return choice

    def text(self, choice: Choice, width: int = 100) -> str:
        """What is chosen, what is left out, and what that would take."""
        count = f"{len(choice.points)} of {len(self.points)} points"
        took = format_seconds(choice.seconds)
        lines = [
            f"budget {format_seconds(self.limit_s)}: {count}, about {took}, to decide "
            f"{len(choice.claims)} of {len(self.needs)} claims"
        ]
        lines += [*self.notes, *self.left_out(choice)]
        return "\n".join(folded(line, width, 4 if line.startswith(" ") else 2) for line in lines)

    def left_out(self, choice: Choice) -> list[str]:
        """What is not run, a line each."""
        experiments = {point.id: point.experiment for point in self.points}
        lines = []
        for step in choice.left[:_SHOWN]:
            each = Counter(experiments[name] for name in step.points)
            points = ", ".join(f"{name} ({counted(n, 'point')})" for name, n in each.items())
            what = f"{counted(len(step.claims), 'claim')} for {format_seconds(step.seconds)}"
            lines.append(f"  {what} more: {points}")
        if rest := choice.left[_SHOWN:]:
            seconds = math.fsum(step.seconds for step in rest)
            claims = sum(len(step.claims) for step in rest)
            lines.append(f"  {counted(claims, 'claim')} for another {format_seconds(seconds)}")
        return ["left out, and not run:", *lines] if lines else []


def _pace(points: Sequence[Point], took: Mapping[str, float]) -> float:
    expected = math.fsum(point.expected_s for point in points)
    return math.fsum(took[point.id] for point in points) / expected if expected else 1.0

"""What a rival and ours did at a cap, and who was the faster one with less."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from autotm.executor.timeline import Lost
from autotm.rivals.search import CLOSE, Point, at_cap

OURS = "Ours"


@dataclass
class Cell:
    """A rival at a cap. points: everything that was measured; turns: seconds by name, in turns.

    against: the same of ours and the rival's fastest smaller point. expected: what our plan says an
    iteration takes, its bound, and what it took to solve and to fit (capture, times of the
    operators and plan), in s. unsteady: gradients that the plain run does not repeat, and ours are
    but close to. workspace: bytes of the operator that has the most. note: why ours is not there.
    unplanned: there is no plan for its budget. empty: there is nothing to compare, as the rival
    does not reach the cap; beside the plain step, as an operator by itself is over it. lost: by
    what an iteration of ours takes longer than its plan says. alone: the rival ran with other
    limits on workspace, which suit the cap.
    """

    cap: int
    rival: str
    points: list[Point] = field(default_factory=list)
    turns: dict[str, list[float]] = field(default_factory=dict)
    against: dict[str, list[float]] = field(default_factory=dict)
    expected: dict[str, float] = field(default_factory=dict)
    unsteady: int = 0
    workspace: int = 0
    note: str = ""
    unplanned: bool = False
    empty: bool = False
    lost: Lost | None = None
    alone: bool = False

    @property
    def budget(self) -> int:
        """What ours has: the peak of the rival's fastest point; the cap beside the plain step."""
        return self.best.peak if self.best is not None else self.cap

    @property
    def far(self) -> bool:
        """Whether that is far below the cap."""
        return self.budget < (1 - CLOSE) * self.cap

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
            within = point.rival != OURS and point.peak <= self.cap
            if within and (old is None or point.peak > old.peak):
                found[point.form] = point
        return list(found.values())

    @property
    def smaller(self) -> Point | None:
        """The rival's fastest point with a smaller peak than ours."""
        if self.ours is None:
            return None
        return at_cap((each for each in self.points if each.rival != OURS), self.ours.peak - 1)

    @property
    def dominated(self) -> bool:
        """Whether the rival's fastest smaller point is also faster than ours, in turns with it.

        Where ours has no plan: whether the rival trains within the cap.
        """
        if self.unplanned:
            return self.best is not None
        middle = {name: statistics.median(times) for name, times in self.against.items()}
        return any(seconds < middle[OURS] for seconds in middle.values())

"""Our programme's variables: what a solution decides, and the values that decisions give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotm.planner.model import Solution
from autotm.planner.points import Line
from autotm.planner.realise import Decisions, Held


@dataclass
class Variables:
    """By tensor and point: it stays, is there, is copied back or out; by op and point, run again.

    until, since: of copies of whole tensors, by op: it is out by its end; it starts not before it.
    """

    stay: dict[tuple[int, int], int] = field(default_factory=dict)
    there: dict[tuple[int, int], int] = field(default_factory=dict)
    load: dict[tuple[int, int], int] = field(default_factory=dict)
    leave: dict[tuple[int, int], int] = field(default_factory=dict)
    again: dict[tuple[int, int], int] = field(default_factory=dict)  # (op, before op)
    until: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)  # as stay; op
    since: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)  # as load; op

    def values(self, chosen: Decisions) -> dict[int, float]:
        """Values that say what stays, leaves, comes back and is made again, as it was chosen."""
        found = dict.fromkeys(self.again.values(), 0.0)
        for point, ops in chosen.again.items():
            found |= {self.again[op, point]: 1.0 for op in ops}
        for tensor, held in chosen.held.items():
            for j, stays in enumerate(held.stays):
                there = held.arrives[j] is not None or (j > 0 and held.stays[j - 1])
                for named, value in (
                    (self.there, there), (self.stay, stays), (self.leave, held.leaves == j),
                    (self.load, held.arrives[j] == "host"),
                ):  # fmt: skip
                    if (tensor, j) in named:
                        found[named[tensor, j]] = float(value)
        return found

    def read(
        self, lines: Mapping[int, Line], solution: Solution, starts: Mapping[int, int]
    ) -> tuple[dict[int, Held], dict[int, list[int]]]:
        """What a solution decides for each tensor, and before which ops others run again.

        starts: of copies that have an order, the variables of their times.
        """
        held: dict[int, Held] = {}
        chosen = {key for key, variable in self.again.items() if solution.on(variable)}
        for tensor, line in lines.items():
            held[tensor] = self._held(tensor, line, solution, chosen)
            for copies in (self.load, self.leave):
                for j in range(len(line.points)):
                    start = starts.get(copies.get((tensor, j), -1))
                    if start is not None and solution.on(copies[tensor, j]):
                        held[tensor].at[j] = solution.values[start]
        again: dict[int, list[int]] = {}
        for op, point in sorted(chosen):
            again.setdefault(point, []).append(op)
        return held, again

    def _held(
        self, tensor: int, line: Line, solution: Solution, chosen: set[tuple[int, int]]
    ) -> Held:
        count = len(line.points)
        stays = [j + 1 < count and solution.on(self.stay[tensor, j]) for j in range(count)]
        arrives: list[str | None] = ["op"] + [None] * (count - 1)
        for j in range(1, count):
            if not solution.on(self.there[tensor, j]) or stays[j - 1]:
                continue
            made = line.again[j] and (line.points[0], line.points[j]) in chosen
            arrives[j] = "op" if made else "host"
        loads = [j for j in range(count) if arrives[j] == "host"]
        held = Held(line.points, line.need, arrives, stays)
        if loads:
            leaves = next(j for j in range(loads[0]) if not stays[j] and _in(arrives, stays, j))
            held.leaves = leaves
            held.until = _first(self.until.get((tensor, leaves), {}), solution)
        for j in loads:
            begun = _first(self.since.get((tensor, j), {}), solution)
            if begun is not None:
                held.since[j] = begun
        return held


def _first(binaries: dict[int, int], solution: Solution) -> int | None:
    """The first op whose binary is 1."""
    return next((op for op, variable in binaries.items() if solution.on(variable)), None)


def _in(arrives: list[str | None], stays: list[bool], j: int) -> bool:
    """Whether the tensor is in the arena at point `j`."""
    return arrives[j] is not None or (j > 0 and stays[j - 1])

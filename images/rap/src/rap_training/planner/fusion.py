"""Horizontal fusion as an integer programme (docs/papers/rap.md, 3.4).

A kernel is all operators of one kind at one level. Levels are chosen to maximise the sum over
kernels of squared operator counts, inputs before what reads them. Unlike the artifact: identical
trees are merged (exact, see `forest`), the quadratic objective is linear over unary counts, levels
have windows, a local search gives the start, and the bound is also proved by `relaxation`.
"""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rap_training.planner.forest import (
    Forest,
    FusionError,
    FusionNode,
    Levels,
    improve,
    merge,
    polish,
)
from rap_training.planner.relaxation import branch_and_bound, relax, tighten_by_triples
from rap_training.planner.solvers import (
    LicenceError,
    Model,
    Solution,
    SolverError,
    check_licence,
    gurobi,
    highs,
)

__all__ = [
    "ARTIFACT_LEVELS", "SOLVERS", "Fusion", "FusionError", "FusionNode", "Group", "LicenceError",
    "SolverError", "fuse", "programme",
]  # fmt: skip

SOLVERS = ("highs", "gurobi", "asap")
ARTIFACT_LEVELS = 8
"""Levels of the artifact, whatever the graph."""

_ROUNDS = 1000  # throws without gain that end the local search
_SOLVER_SHARE = 0.05  # of the time left, where the relaxation can use the rest


@dataclass(frozen=True)
class Group:
    """A fused kernel: operators `members` of one kind; groups of lower levels come first."""

    kind: str
    level: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class Fusion:
    """A fusion, its sum of squared counts, a proved upper bound, and how it came about.

    `gap` is (upper_bound - objective) / objective; `optimal` says it is within the asked gap.
    """

    groups: tuple[Group, ...]
    objective: float
    upper_bound: float
    gap: float
    seconds: float
    solver: str
    optimal: bool
    note: str


def fuse(
    nodes: Sequence[FusionNode],
    *,
    time_limit_s: float = 30.0,
    gap: float = 0.003,
    solver: str = "highs",
    licence: Path | None = None,
    levels: int | None = None,
    fall_back: bool = False,
    seed: int = 0,
) -> Fusion:
    """Fuse `nodes` into kernels, within `gap` of the optimum or until the time is over.

    `solver` is highs, gurobi (with `licence`, or else the size-limited one that gurobipy brings) or
    asap, which places every operator as soon as possible and searches nothing. `levels` defaults to
    the longest path; more levels allow larger kernels, at times also more of them. Out of
    time, the best plan found is returned, never worse than as soon as possible, and `note` says so.
    `fall_back`: where Gurobi cannot be used, use HiGHS and say so instead of raising.

    Raises FusionError for a graph that is none, LicenceError for a licence that is none or does not
    suffice, SolverError where gurobipy is missing.
    """
    if solver not in SOLVERS:
        raise FusionError(f"unknown solver {solver!r}; fix: one of {', '.join(SOLVERS)}")
    began = time.monotonic()
    deadline = began + time_limit_s
    forest = merge(nodes, levels)
    best: Levels = forest.earliest
    value, upper = forest.objective(best), float(forest.bound())
    notes: list[str] = []
    if solver == "asap":
        notes.append("as soon as possible, no search")
    else:
        if solver == "gurobi" and licence is not None and not fall_back:
            check_licence(licence)
        until = began + 0.1 * time_limit_s
        best, value = improve(forest, best, rounds=_ROUNDS, seed=seed, deadline=until)
        search = _Search(forest, best, value, upper, gap, deadline, seed)
        try:
            search.run(solver, licence)
        except SolverError as error:
            if not fall_back or solver == "highs":
                raise
            notes.append(f"HiGHS instead of Gurobi: {error}")
            solver = "highs"
            search.run(solver, None)
        best, value, upper = search.best, search.value, search.upper
        if search.relaxed:
            notes.append(
                f"{solver} did not finish in {search.share:.1f} s; the bound is of tables of trees"
            )
        if not search.done:
            notes.append(
                f"out of time after {time_limit_s:g} s: the best plan found is used; the "
                f"optimum is at most {100 * _gap(value, upper):.1f} % above it"
            )
    found = _gap(value, upper)
    return Fusion(
        groups=_groups(forest, best, nodes),
        objective=float(value),
        upper_bound=float(upper),
        gap=found,
        seconds=time.monotonic() - began,
        solver=solver,
        optimal=found <= gap,
        note="; ".join(notes),
    )


def programme(
    forest: Forest, upper: float, start: Levels
) -> tuple[Model, dict[tuple[int, int], int]]:
    """The linear programme over unary counts, and its variables by (item, level).

    Such a variable is 1 where the item stands at that level or before; there is none outside the
    item's window. One more binary for every kernel and every count it can have has the count's
    square as its objective. `upper`, a proved bound of the objective, cuts off what is above.
    """
    model = Model()
    by: dict[tuple[int, int], int] = {}
    for index, item in enumerate(forest.items):
        for level in range(forest.earliest[index], forest.latest[index]):
            by[index, level] = model.variable(0, 1, start=start[index] <= level)
            if (index, level - 1) in by:
                model.row(-np.inf, 0.0, [(by[index, level - 1], 1.0), (by[index, level], -1.0)])
            if item.parent is not None and (item.parent, level - 1) in by:
                both = [(by[index, level], 1.0), (by[item.parent, level - 1], -1.0)]
                model.row(-np.inf, 0.0, both)
    now = forest.counts(start)
    objective: list[tuple[int, float]] = []
    for (kind, level), most in forest.most.items():
        fixed, least = 0, 0
        terms: dict[int, float] = defaultdict(float)
        weights: list[int] = []
        for index, item in enumerate(forest.items):
            first, last = forest.earliest[index], forest.latest[index]
            if item.kind != kind or not first <= level <= last:
                continue
            if level == last:
                fixed += item.weight
            else:
                terms[by[index, level]] += item.weight
            if level > first:
                terms[by[index, level - 1]] -= item.weight
            if first == last:
                least += item.weight
            else:
                weights.append(item.weight)
        counts = sorted(least + more for more in _sums(weights) if least + more <= most)
        unary = [
            (model.variable(0, 1, start=count == now[kind, level], cost=count * count), count)
            for count in counts
        ]
        model.row(1.0, 1.0, [(variable, 1.0) for variable, _ in unary])
        negated = [(variable, -weight) for variable, weight in terms.items()]
        model.row(fixed, fixed, [*unary, *negated])
        objective += [(variable, count * count) for variable, count in unary if count]
    model.row(-np.inf, upper, objective)
    return model, by


def solve(
    forest: Forest,
    start: Levels,
    upper: float,
    *,
    solver: str,
    licence: Path | None,
    time_limit_s: float,
    gap: float,
) -> tuple[Levels, Solution]:
    """Solve the programme by highs or gurobi from `start`; returns the levels found."""
    model, by = programme(forest, upper, start)
    if solver == "gurobi":
        found = gurobi(model, time_limit_s=time_limit_s, gap=gap, licence=licence)
    else:
        found = highs(model, time_limit_s=time_limit_s, gap=gap)
    levels = tuple(
        forest.latest[index]
        - sum(
            round(found.values[by[index, level]])
            for level in range(forest.earliest[index], forest.latest[index])
        )
        for index in range(len(forest.items))
    )
    return levels, found


class _Search:
    """What is known of a forest's optimum, made better by a solver and then by the relaxation."""

    def __init__(
        self,
        forest: Forest,
        best: Levels,
        value: int,
        upper: float,
        gap: float,
        deadline: float,
        seed: int,
    ) -> None:
        self.forest, self.best, self.value = forest, best, value
        self.gap, self.deadline, self.seed = gap, deadline, seed
        self.nodes = sum(item.weight for item in forest.items)
        self.relaxed = False  # whether the solver left the bound to the relaxation
        self.share = 0.0  # seconds that the solver was given
        self.upper = math.inf
        self._lower(upper)

    @property
    def done(self) -> bool:
        """Whether the gap is small enough."""
        return _gap(self.value, self.upper) <= self.gap

    def run(self, solver: str, licence: Path | None) -> None:
        if not self.forest.items:
            return
        relaxation = None if self.done else relax(self.forest)
        if relaxation is not None:
            until = min(self.deadline, time.monotonic() + 0.1 * self._left())
            self._lower(relaxation.tighten(200, enough=self.value, deadline=until))
        self.share = self._left() * (1.0 if relaxation is None else _SOLVER_SHARE)
        levels, found = solve(
            self.forest, self.best, self.upper, solver=solver, licence=licence,
            time_limit_s=self.share, gap=self.gap,
        )  # fmt: skip
        self._take(levels)
        self._lower(found.bound)
        if relaxation is not None and not self.done:
            dice = random.Random(self.seed)

            def stop_at(suggested: dict[int, int]) -> float:
                levels = [suggested.get(i, level) for i, level in enumerate(self.best)]
                self._take(polish(self.forest, levels, dice))
                return self.value * (1 + self.gap)

            for method in (tighten_by_triples, branch_and_bound):
                self._lower(method(relaxation, stop_at=stop_at, deadline=self.deadline))
            self.relaxed = True

    def _take(self, levels: Levels) -> None:
        value = self.forest.objective(levels)
        if value > self.value:
            self.best, self.value = levels, value

    def _lower(self, bound: float) -> None:
        if not math.isfinite(bound):  # out of time before the first bound
            return
        # A square is as odd as its root, so the objective is as odd as the number of operators.
        whole = math.floor(bound + 1e-6)
        whole -= (whole - self.nodes) % 2
        self.upper = max(min(self.upper, whole), self.value)

    def _left(self) -> float:
        return max(self.deadline - time.monotonic(), 0.05)


def _gap(value: float, upper: float) -> float:
    return (upper - value) / value if value else 0.0


def _sums(weights: Sequence[int]) -> set[int]:
    found = {0}
    for weight in weights:
        found |= {total + weight for total in found}
    return found


def _groups(forest: Forest, levels: Levels, nodes: Sequence[FusionNode]) -> tuple[Group, ...]:
    place = {node.name: index for index, node in enumerate(nodes)}
    members: dict[tuple[str, int], list[str]] = defaultdict(list)
    for item, level in zip(forest.items, levels, strict=True):
        members[item.kind, level] += item.members
    found = [
        Group(kind, level, tuple(sorted(names, key=place.__getitem__)))
        for (kind, level), names in members.items()
    ]
    return tuple(sorted(found, key=lambda group: (group.level, place[group.members[0]])))

"""Upper bounds of the fusion objective: pairs of trees, message passing, branch and bound.

The sum of squared counts splits into one term per tree and one per pair of trees, each a table
over the trees' schedules. The sum of the tables' maxima bounds the objective from above; moving
value between tables (max-sum diffusion, as in MPLP) lowers it. On mixed-order graphs this bound is
far below that of the linear programme with unary counts.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rap_training.planner.forest import Forest

Table = NDArray[np.float64]

_ENTRIES = 4_000_000  # of all pair tables together: 32 MB, and a node of the search copies them
_SCHEDULES = 512  # of one tree


@dataclass
class Relaxation:
    """Tables `unary[i]` (schedules of tree i,) and `pair[i, j]` (schedules of i, of j), j < i.

    Their sum at any choice of schedules is the objective, less `constant`. `schedules[i]` holds the
    levels of the items `trees[i]`, one row per schedule.
    """

    constant: float
    trees: list[tuple[int, ...]]
    schedules: list[NDArray[np.int64]]
    unary: list[Table]
    pair: dict[tuple[int, int], Table]

    def bound(self) -> float:
        """The bound: the constant and every table's maximum."""
        return float(
            self.constant
            + sum(table.max() for table in self.unary)
            + sum(table.max() for table in self.pair.values())
        )

    def sweep(self, *, backwards: bool) -> None:
        """Move value from pairs to trees, one pair after the other. Never raises the bound."""
        pairs = list(self.pair.items())
        for (i, j), joint in reversed(pairs) if backwards else pairs:
            self.unary[i], self.unary[j] = _settle(joint, self.unary[i], self.unary[j])

    def tighten(self, sweeps: int, *, enough: float, deadline: float) -> float:
        """Sweep until the bound is below `enough`, stands still, or `sweeps` or time are over."""
        bound = self.bound()
        for count in range(sweeps):
            self.sweep(backwards=bool(count % 2))
            before, bound = bound, self.bound()
            if bound < enough or before - bound < 1e-3 or time.monotonic() > deadline:
                break
        return bound

    def decode(self) -> dict[int, int]:
        """The level of every item of the trees, each tree at its best schedule."""
        return {
            index: int(level)
            for tree, schedules, score in zip(
                self.trees, self.schedules, self._scores(), strict=True
            )
            for index, level in zip(tree, schedules[int(score.argmax())], strict=True)
        }

    def split(self) -> Iterator[Relaxation]:
        """Two relaxations that share out the schedules of the least decided tree, or none."""
        score = self._scores()
        soft = [np.exp((table - table.max()) / 2) for table in score]
        tree = max(range(len(soft)), key=lambda index: float(soft[index].sum()))
        if len(soft[tree]) < 2:
            return
        order = np.argsort(-score[tree], kind="stable")
        mass = np.cumsum(soft[tree][order]) / soft[tree].sum()
        cut = min(len(order) - 1, int(np.searchsorted(mass, 0.5)) + 1)
        for part in (order[:cut], order[cut:]):
            yield self._restrict(tree, part)

    def _scores(self) -> list[Table]:
        score = [table.copy() for table in self.unary]
        for (i, j), table in self.pair.items():
            score[i] += table.max(axis=1)
            score[j] += table.max(axis=0)
        return score

    def _restrict(self, tree: int, part: NDArray[np.intp]) -> Relaxation:
        unary = [table.copy() for table in self.unary]
        unary[tree] = unary[tree][part]
        schedules = list(self.schedules)
        schedules[tree] = schedules[tree][part]
        pair = {}
        for (i, j), table in self.pair.items():
            pair[i, j] = table[part] if i == tree else table[:, part] if j == tree else table.copy()
        return Relaxation(self.constant, self.trees, schedules, unary, pair)


def _settle(joint: Table, first: Table, second: Table) -> tuple[Table, Table]:
    """Add the trees' tables to their pair's, in place, and return what moves back to the trees."""
    joint += first[:, None]
    joint += second
    half = joint.max(axis=1) / 2
    joint -= half[:, None]
    to_second = joint.max(axis=0)
    joint -= to_second
    rest = joint.max(axis=1)
    joint -= rest[:, None]
    return half + rest, to_second


def relax(forest: Forest) -> Relaxation | None:
    """The tables of `forest`, or None where a tree has too many schedules or the tables no room."""
    kernels = {kernel: at for at, kernel in enumerate(forest.most)}
    fixed = np.zeros(len(kernels))
    trees, schedules, matrices = [], [], []
    for tree in forest.trees:
        rows = list(itertools.islice(_schedules(forest, tree), _SCHEDULES + 1))
        if len(rows) > _SCHEDULES:
            return None
        matrix = np.zeros((len(rows), len(kernels)))
        for row, levels in enumerate(rows):
            for index, level in zip(tree, levels, strict=True):
                matrix[row, kernels[forest.items[index].kind, level]] += forest.items[index].weight
        if len(rows) == 1:
            fixed += matrix[0]
        else:
            trees.append(tree)
            schedules.append(np.array(rows))
            matrices.append(matrix)
    sizes = [len(matrix) for matrix in matrices]
    if (sum(sizes) ** 2 - sum(size * size for size in sizes)) // 2 > _ENTRIES:
        return None
    unary = [(matrix**2).sum(axis=1) + 2 * matrix @ fixed for matrix in matrices]
    pair = {(i, j): 2 * matrices[i] @ matrices[j].T for i in range(len(matrices)) for j in range(i)}
    return Relaxation(float(fixed @ fixed), trees, schedules, unary, pair)


def branch_and_bound(
    root: Relaxation, *, stop_at: Callable[[dict[int, int]], float], deadline: float
) -> float:
    """Lower the bound of `root` until nothing above the plans found is left, or the time is over.

    `deadline` is time.monotonic's. `stop_at` is given the plan that a node suggests (levels of
    items) and returns the bound at which to stop, from the best plan known. Returns the proved
    bound.
    """
    count = 0
    enough = stop_at(root.decode())
    waiting = [(-root.bound(), count, root)]
    while waiting and -waiting[0][0] > enough:
        if time.monotonic() > deadline:
            return -waiting[0][0]
        above, _, node = heapq.heappop(waiting)
        for child in node.split():  # none: a single choice, which stop_at has seen
            bound = child.tighten(8, enough=enough, deadline=deadline)
            if bound > enough:
                enough = max(enough, stop_at(child.decode()))
                count += 1
                heapq.heappush(waiting, (max(-bound, above), count, child))
    return enough


def _schedules(forest: Forest, tree: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every feasible choice of levels of a tree's items."""
    position = {index: place for place, index in enumerate(tree)}
    levels: list[int] = [0] * len(tree)

    def fill(place: int) -> Iterator[tuple[int, ...]]:
        if place == len(tree):
            yield tuple(levels)
            return
        index = tree[place]
        parent = forest.items[index].parent
        first = forest.earliest[index] if parent is None else levels[position[parent]] + 1
        for level in range(first, forest.latest[index] + 1):
            levels[place] = level
            yield from fill(place + 1)

    return fill(0)

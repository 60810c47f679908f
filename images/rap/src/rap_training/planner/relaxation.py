"""Upper bounds of the fusion objective: pairs and triples of trees, then branch and bound.

The sum of squared counts splits into one term per tree and one per pair of trees, each a table
over the trees' schedules. The sum of the tables' maxima bounds the objective from above; moving
value between tables (max-sum diffusion, as in MPLP) lowers it, and further through tables over
three trees. On mixed-order graphs these bounds are far below that of the linear programme with
unary counts.
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

_ENTRIES = 8_000_000  # of all pair tables together: 64 MB, and a node of the search copies them
_OPEN_ENTRIES = 64_000_000  # of the pair tables of all open nodes of a search: 512 MB
_TRIPLE_ENTRIES = 200_000_000  # of all triples together: about 2 s a sweep
_STILL = 0.01  # a sweep of the triples that lowers the bound by less is the last
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

    def spread(self) -> None:
        """Give the trees' tables to their pairs, in equal shares. Never raises the bound."""
        share = max(len(self.unary) - 1, 1)
        for i, j in self.pair:
            self.pair[i, j] += (self.unary[i] / share)[:, None]
            self.pair[i, j] += self.unary[j] / share
        if self.pair:
            self.unary = [np.zeros_like(table) for table in self.unary]

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


def _settle_triple(
    pair: dict[tuple[int, int], Table],
    triple: tuple[int, int, int],
    kept: tuple[Table, Table, Table] | None,
) -> tuple[Table, Table, Table]:
    """Add a triple's three pairs to what it kept, set the pairs to their new shares of the joint
    maximum, and return what the triple keeps."""
    i, j, k = triple
    given = (pair[j, i], pair[k, i], pair[k, j])
    if kept is not None:
        given = (given[0] + kept[0], given[1] + kept[1], given[2] + kept[2])
    joint = given[2][:, :, None] + given[1][:, None, :]
    joint += given[0]
    first = joint.max(axis=0) / 3
    joint -= first
    second = _largest(joint, 1) / 2
    joint -= second[:, None, :]
    third = _largest(joint, 2)
    joint -= third[:, :, None]
    rest = _largest(joint, 1)
    joint -= rest[:, None, :]
    second += rest
    first += joint.max(axis=0)
    pair[j, i], pair[k, i], pair[k, j] = first, second, third
    return given[0] - first, given[1] - second, given[2] - third


def _largest(joint: Table, axis: int) -> Table:
    # numpy's maximum over the first axis is several times as fast as over others, copy included.
    return np.asarray(np.ascontiguousarray(np.moveaxis(joint, axis, 0)).max(axis=0))


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


def tighten_by_triples(
    tables: Relaxation, *, stop_at: Callable[[dict[int, int]], float], deadline: float
) -> float:
    """Lower the bound of `tables` through every three trees, until it is enough or stands still.

    `stop_at` and `deadline` as for branch_and_bound. What a triple keeps after its turn is at most
    0 everywhere, so the bound is still the sum of the tables' maxima, and stays one when schedules
    are struck. But then single tables no longer sum to the objective. Returns the bound; does
    nothing where the triples are too large.
    """
    sizes = [len(table) for table in tables.unary]
    triples = list(itertools.combinations(range(len(sizes)), 3))
    bound = tables.bound()
    if not triples or sum(sizes[i] * sizes[j] * sizes[k] for i, j, k in triples) > _TRIPLE_ENTRIES:
        return bound
    kept: dict[tuple[int, int, int], tuple[Table, Table, Table]] = {}
    enough = stop_at(tables.decode())
    while bound > enough:
        tables.spread()
        for triple in triples:
            if time.monotonic() > deadline:
                return min(bound, tables.bound())
            kept[triple] = _settle_triple(tables.pair, triple, kept.get(triple))
        triples.reverse()
        before, bound = bound, tables.tighten(3, enough=enough, deadline=deadline)
        enough = stop_at(tables.decode())
        if before - bound < _STILL:
            break
    return bound


def branch_and_bound(
    root: Relaxation, *, stop_at: Callable[[dict[int, int]], float], deadline: float
) -> float:
    """Lower the bound of `root` until nothing is left above the plans found, or time or room ends.

    `deadline` is time.monotonic's. `stop_at` is given the plan that a node suggests (levels of
    items) and returns the bound at which to stop, from the best plan known. Returns the proved
    bound.
    """
    count = 0
    enough = stop_at(root.decode())
    waiting = [(-root.bound(), count, root)]
    room = _OPEN_ENTRIES // max(sum(table.size for table in root.pair.values()), 1)
    while waiting and -waiting[0][0] > enough:
        if time.monotonic() > deadline or len(waiting) > room:
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

"""The operators of a plan as a weighted forest: what fusion (docs/papers/rap.md, 3.4) decides over.

Identical subtrees below the same parent are one item with a weight. That loses nothing: with the
rest fixed, the sum of squared counts is convex in where the copies stand, so some optimum puts
all copies at the same levels.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property


class FusionError(ValueError):
    """Operators that cannot be fused as asked, in one sentence with a fix."""


@dataclass(frozen=True)
class FusionNode:
    """An operator for fusion. Only equal kinds (operator plus batch class) may share a kernel.

    `input` is the name of another node, or None where the operator reads a raw column.
    """

    name: str
    kind: str
    input: str | None


@dataclass(frozen=True)
class Item:
    """Copies of one operator at one place of identical trees; parents precede their children."""

    kind: str
    parent: int | None
    members: tuple[str, ...]

    @property
    def weight(self) -> int:
        """How many operators stand behind the item."""
        return len(self.members)


Levels = tuple[int, ...]


@dataclass(frozen=True)
class Forest:
    """Merged operators and the number of levels they may be spread over."""

    items: tuple[Item, ...]
    levels: int

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Indices of every item's children."""
        found: list[list[int]] = [[] for _ in self.items]
        for index, item in enumerate(self.items):
            if item.parent is not None:
                found[item.parent].append(index)
        return tuple(map(tuple, found))

    @cached_property
    def earliest(self) -> Levels:
        """The first level of every item: as soon as possible."""
        first: list[int] = []
        for item in self.items:
            first.append(0 if item.parent is None else first[item.parent] + 1)
        return tuple(first)

    @cached_property
    def latest(self) -> Levels:
        """The last level of every item: as late as possible."""
        last = [self.levels - 1] * len(self.items)
        for index in range(len(self.items) - 1, -1, -1):
            for child in self.children[index]:
                last[index] = min(last[index], last[child] - 1)
        return tuple(last)

    @cached_property
    def trees(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the items of every tree, parents first."""
        found: dict[int, list[int]] = {}
        root: list[int] = []
        for index, item in enumerate(self.items):
            root.append(index if item.parent is None else root[item.parent])
            found.setdefault(root[index], []).append(index)
        return tuple(map(tuple, found.values()))

    @cached_property
    def free(self) -> tuple[tuple[int, ...], ...]:
        """The trees that have a choice of levels."""
        return tuple(
            tree for tree in self.trees
            if any(self.earliest[index] < self.latest[index] for index in tree)
        )  # fmt: skip

    def counts(self, levels: Sequence[int]) -> Counter[tuple[str, int]]:
        """How many operators every kernel (kind, level) fuses."""
        found: Counter[tuple[str, int]] = Counter()
        for item, level in zip(self.items, levels, strict=True):
            found[item.kind, level] += item.weight
        return found

    def objective(self, levels: Sequence[int]) -> int:
        """Sum of the squared counts, to be maximised."""
        return sum(count * count for count in self.counts(levels).values())

    @cached_property
    def most(self) -> Mapping[tuple[str, int], int]:
        """The most operators of a kind that can stand at a level: no two of one path can."""
        found: dict[tuple[str, int], int] = defaultdict(int)
        for tree in self.trees:
            windows: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
            for index in tree:
                for level in range(self.earliest[index], self.latest[index] + 1):
                    windows[self.items[index].kind, level][index] = self.items[index].weight
            for key, weights in windows.items():
                found[key] += self._antichain(tree, weights)
        return found

    def bound(self) -> int:
        """An upper bound of the objective from per-kind totals and `most` alone."""
        total: Counter[str] = Counter()
        for item in self.items:
            total[item.kind] += item.weight
        value = 0
        for kind, count in total.items():
            left = count
            for most in sorted((n for (k, _), n in self.most.items() if k == kind), reverse=True):
                taken = min(most, left)
                value += taken * taken
                left -= taken
        return value

    def _antichain(self, tree: Iterable[int], weights: Mapping[int, int]) -> int:
        below: dict[int, int] = {}
        for index in reversed(tuple(tree)):
            kids = sum(below[child] for child in self.children[index])
            below[index] = max(weights.get(index, 0), kids)
        return below[next(iter(tree))]


def merge(nodes: Sequence[FusionNode], levels: int | None = None) -> Forest:
    """Merge identical subtrees of `nodes`; `levels` defaults to the longest path.

    Raises FusionError for a name given twice, an unknown input, a cycle, or too few levels.
    """
    order = _order(nodes)
    below: dict[str | None, list[str]] = defaultdict(list)
    by_name = {node.name: node for node in nodes}
    for node in nodes:
        below[node.input].append(node.name)
    known: dict[tuple[str, tuple[tuple[int, int], ...]], int] = {}
    shape: dict[str, int] = {}
    height: dict[str, int] = {}
    for name in reversed(order):
        kids = tuple(sorted(Counter(shape[child] for child in below[name]).items()))
        shape[name] = known.setdefault((by_name[name].kind, kids), len(known))
        height[name] = 1 + max((height[child] for child in below[name]), default=0)
    longest = max(height.values(), default=0)
    if levels is not None and levels < longest:
        raise FusionError(
            f"{levels} levels are fewer than the longest path of {longest} operators; "
            f"fix: at least {longest}"
        )
    items: list[Item] = []
    waiting: list[tuple[int | None, list[str]]] = [(None, below[None])]
    while waiting:
        parent, siblings = waiting.pop()
        bundles: dict[int, list[str]] = {}
        for name in siblings:
            bundles.setdefault(shape[name], []).append(name)
        for bundle in bundles.values():
            items.append(Item(by_name[bundle[0]].kind, parent, tuple(bundle)))
            waiting.append((len(items) - 1, [kid for name in bundle for kid in below[name]]))
    return Forest(tuple(items), longest if levels is None else levels)


def improve(
    forest: Forest, start: Levels, *, rounds: int, seed: int, deadline: float
) -> tuple[Levels, int]:
    """Iterated local search from `start`: place one tree anew at a time, at its best levels.

    A tree's best levels, the others fixed, come from a dynamic programme over its items. When no
    tree can gain, some trees, few or many, are thrown to random levels; worse results are dropped.
    Ends after `rounds` throws without gain, at `deadline` (time.monotonic) or at the bound. Returns
    the levels, never worse than `start`, and their objective.
    """
    dice = random.Random(seed)
    bound = forest.bound()
    free = forest.free
    best = _climb(forest, list(start), free, dice)
    value = forest.objective(best)
    idle = 0
    while free and idle < rounds and value < bound and time.monotonic() < deadline:
        trial = list(best)
        thrown = dice.randint(1, 4) if dice.random() < 0.5 else dice.randint(1, len(free))
        for tree in dice.sample(free, min(len(free), thrown)):
            _place(forest, tree, trial, lambda _index, _level: dice.random())
        trial = _climb(forest, trial, free, dice)
        found = forest.objective(trial)
        idle = 0 if found > value else idle + 1
        if found >= value:
            best, value = trial, found
    return tuple(best), value


def polish(forest: Forest, levels: Sequence[int], dice: random.Random) -> Levels:
    """Return `levels` after placing trees anew, one at a time, until no tree can gain."""
    return tuple(_climb(forest, list(levels), forest.free, dice))


def _climb(
    forest: Forest, levels: list[int], trees: Sequence[tuple[int, ...]], dice: random.Random
) -> list[int]:
    counts = forest.counts(levels)

    def move(tree: tuple[int, ...], sign: int) -> int:
        change = 0
        for index in tree:
            key, by = (forest.items[index].kind, levels[index]), forest.items[index].weight * sign
            change += by * (2 * counts[key] + by)
            counts[key] += by
        return change

    def gain(index: int, level: int) -> float:
        item = forest.items[index]
        return item.weight * (2 * counts[item.kind, level] + item.weight)

    moved = True
    while moved:
        moved = False
        for tree in dice.sample(trees, len(trees)):
            before = [levels[index] for index in tree]
            change = move(tree, -1)
            _place(forest, tree, levels, gain)
            change += move(tree, 1)
            if change > 0:
                moved = True
            elif change < 0:  # siblings of one kind meet at one level: not additive
                move(tree, -1)
                for index, level in zip(tree, before, strict=True):
                    levels[index] = level
                move(tree, 1)
    return levels


def _place(
    forest: Forest, tree: tuple[int, ...], levels: list[int], gain: Callable[[int, int], float]
) -> None:
    """Set the levels of a tree's items to those with the largest sum of gains."""
    choice: dict[int, dict[int, tuple[float, int]]] = {}
    for index in reversed(tree):
        suffix: dict[int, tuple[float, int]] = {}
        top: tuple[float, int] | None = None
        for level in range(forest.latest[index], forest.earliest[index] - 1, -1):
            here = gain(index, level)
            for child in forest.children[index]:
                here += choice[child][level + 1][0]
            if top is None or here >= top[0]:
                top = (here, level)
            suffix[level] = top
        choice[index] = suffix
    for index in tree:
        parent = forest.items[index].parent
        first = forest.earliest[index] if parent is None else levels[parent] + 1
        levels[index] = choice[index][first][1]


def _order(nodes: Sequence[FusionNode]) -> list[str]:
    by_name = {node.name: node for node in nodes}
    if len(by_name) != len(nodes):
        twice = next(n for n, k in Counter(node.name for node in nodes).items() if k > 1)
        raise FusionError(f"the operator {twice} is given twice; fix: give every one its own name")
    done: dict[str, None] = {}
    for node in nodes:
        path: dict[str, None] = {}
        at: str | None = node.name
        while at is not None and at not in done:
            if at in path:
                raise FusionError(f"operators form a cycle: {' -> '.join([*path, at])}")
            if at not in by_name:
                raise FusionError(
                    f"the operator {next(reversed(path))} reads {at}, which is not there; "
                    "fix: input None for a raw column"
                )
            path[at] = None
            at = by_name[at].input
        done.update(dict.fromkeys(reversed(path)))
    return list(done)

"""Predicted stand-alone latency of fused kernels: gradient-boosted trees (docs/papers/rap.md, 3.2).

As in the artifact there is one model per family and the target is a kernel of `fused` operators.
Ours sees rows, widths and operators at once (the artifact scales one row count's prediction), and
its trees correct a line, so that what is outside the measured range follows that line.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sklearn.ensemble import GradientBoostingRegressor

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "1d": ("fill_null", "cast", "sigrid_hash", "logit", "boxcox", "clamp", "map_id"),
    "bucketize": ("bucketize",),
    "first_x": ("first_x",),
    "ngram": ("ngram",),
    "one_hot": ("one_hot",),
}
FAMILY: Mapping[str, str] = {op: family for family, ops in FAMILIES.items() for op in ops}
WITHIN = 0.10
"""The relative error that counts as right (docs/papers/rap.md, 3.2)."""

_PER_OP = {"1d": 40}
_PER_SINGLE = 80
_MOST_FUSED = 64
_MOST_WIDTH = 64
_MOST_ELEMENTS = 1 << 26  # int64: 512 MiB
_BLOCK = 1024  # elements a thread block handles, roughly; only the trees' feature


class LatencyError(ValueError):
    """Measurements that no model can be made of, in one sentence with a fix."""


@dataclass(frozen=True)
class Shape:
    """A fused kernel: `fused` operators `op`, each on `rows` rows of `width` elements.

    `width` is the mean number of elements that one operator writes per row (docs/papers/rap.md,
    3.2's effective width): min(w, x) for first_x, (w - n' + 1) n' for ngram, w k for one_hot, else
    the input's w.
    """

    op: str
    rows: int
    width: int
    fused: int

    @property
    def family(self) -> str:
        """The family whose model predicts it."""
        return FAMILY[self.op]

    @property
    def elements(self) -> int:
        """Elements written."""
        return self.rows * self.width * self.fused


@dataclass(frozen=True)
class Measurement:
    """A kernel's measured stand-alone latency in us."""

    shape: Shape
    us: float


@dataclass(frozen=True)
class HeldOut:
    """A measurement, and what a model that has not seen it predicts."""

    shape: Shape
    us: float
    predicted_us: float

    @property
    def within(self) -> bool:
        """Whether the relative error is at most 10 %."""
        return abs(self.predicted_us - self.us) <= WITHIN * self.us


def shapes(rows: Sequence[int], *, seed: int) -> tuple[Shape, ...]:
    """Return about 600 shapes to measure, all different, for kernels of any of `rows` rows.

    Every operator with fused counts 1 to 64 and widths 1 to 64, spread evenly on log scales
    (Latin hypercube), with the corners of the range; at most 2^26 elements each.
    """
    if not rows or min(rows) < 1:
        raise LatencyError("no row counts to measure; fix: give at least one, each at least 1")
    dice = random.Random(seed)
    found: dict[Shape, None] = {}
    for family, ops in FAMILIES.items():
        for op in ops:
            count = _PER_OP.get(family, _PER_SINGLE)
            corners = [(1, 1), (1, _MOST_FUSED), (_MOST_WIDTH, 1), (_MOST_WIDTH, _MOST_FUSED)]
            sizes = [(width, fused, n) for n in sorted({min(rows), max(rows)})
                     for width, fused in corners]  # fmt: skip
            spread = [_spread(count, most, dice) for most in (_MOST_WIDTH, _MOST_FUSED)]
            sizes += [(w, f, dice.choice(list(rows))) for w, f in zip(*spread, strict=True)]
            for width, fused, n in sizes[: count + len(corners)]:
                fitting = max(1, min(width, _MOST_ELEMENTS // (n * fused)))
                found[Shape(op, n, fitting, fused)] = None
    return tuple(found)


def _spread(count: int, most: int, dice: random.Random) -> list[int]:
    cells = [(cell + dice.random()) / count for cell in range(count)]
    dice.shuffle(cells)
    return [min(most, int((most + 1) ** cell)) for cell in cells]


@dataclass(frozen=True)
class _Family:
    """One family's line, trees and measured range."""

    line: Mapping[str, NDArray[np.float64]]
    trees: GradientBoostingRegressor
    low: NDArray[np.int64]
    high: NDArray[np.int64]

    def inside(self, shape: Shape) -> Shape:
        """The nearest shape within the measured range."""
        sizes = np.clip((shape.rows, shape.width, shape.fused), self.low, self.high)
        return Shape(shape.op, int(sizes[0]), int(sizes[1]), int(sizes[2]))

    def of_line(self, shape: Shape) -> float:
        """The line's us."""
        return max(float(_terms(shape) @ self.line[shape.op]), 1e-3)


class LatencyModel:
    """Predicts `Shape`s in us."""

    def __init__(self, measurements: Sequence[Measurement], *, seed: int) -> None:
        """Fit one model per family.

        Raises LatencyError for an unknown operator, a latency that is not above 0, or an operator
        with fewer than 8 measurements.
        """
        _check(measurements)
        self._known: dict[Shape, float] = {}
        self._families = {
            family: _fit([m for m in measurements if m.shape.family == family], seed)
            for family in {m.shape.family for m in measurements}
        }

    def predict(self, shape: Shape) -> float:
        """Return the us of `shape`. Outside the measured range it scales the border's by the line.

        Raises LatencyError for an operator that was not measured.
        """
        if shape not in self._known:
            self._known[shape] = self._predict([shape])[0]
        return self._known[shape]

    def _family(self, shape: Shape) -> _Family:
        family = self._families.get(FAMILY.get(shape.op, ""))
        if family is None or shape.op not in family.line:
            raise LatencyError(f"{shape.op} was not measured; fix: measure it first")
        return family

    def _predict(self, asked: Sequence[Shape]) -> list[float]:
        found = [0.0] * len(asked)
        by_family: dict[int, list[int]] = {}
        families = [self._family(shape) for shape in asked]
        for index, family in enumerate(families):
            by_family.setdefault(id(family), []).append(index)
        for indices in by_family.values():
            family = families[indices[0]]
            inside = [family.inside(asked[index]) for index in indices]
            correction = family.trees.predict(_features(inside, family))
            for index, by in zip(indices, correction, strict=True):
                found[index] = math.exp(float(by)) * family.of_line(asked[index])
        return found


def cross_validated(
    measurements: Sequence[Measurement], *, seed: int, folds: int = 10
) -> tuple[HeldOut, ...]:
    """Every measurement with what a model fitted without its fold predicts, in the order given.

    Folds are drawn by `seed`, each of an equal share of every operator. Raises LatencyError as
    LatencyModel does, also where the other folds leave an operator fewer than 8 measurements.
    """
    _check(measurements)
    dice = random.Random(seed)
    fold_of: dict[int, int] = {}
    for op in FAMILY:
        own = [at for at, m in enumerate(measurements) if m.shape.op == op]
        fold_of |= {at: n % folds for n, at in enumerate(dice.sample(own, len(own)))}
    found: dict[int, HeldOut] = {}
    for fold in range(folds):
        seen = [m for at, m in enumerate(measurements) if fold_of[at] != fold]
        model = LatencyModel(seen, seed=seed)
        for at, m in enumerate(measurements):
            if fold_of[at] == fold:
                found[at] = HeldOut(m.shape, m.us, model.predict(m.shape))
    return tuple(found[at] for at in range(len(measurements)))


def _check(measurements: Sequence[Measurement]) -> None:
    for measurement in measurements:
        shape = measurement.shape
        if shape.op not in FAMILY:
            words = ", ".join(FAMILY)
            raise LatencyError(f"no family of kernels has {shape.op}; fix: one of {words}")
        if not (measurement.us > 0 and math.isfinite(measurement.us)):
            raise LatencyError(f"{shape} took {measurement.us} us; fix: measure it again")
    for op, count in Counter(m.shape.op for m in measurements).items():
        if count < 8:
            raise LatencyError(f"{op} has {count} measurements; fix: at least 8")


def _terms(shape: Shape) -> NDArray[np.float64]:
    """Terms of the line: a launch, operators, rows of operators, elements."""
    return np.array(
        (1.0, shape.fused, shape.rows * shape.fused / 1e3, shape.elements / 1e3), dtype=np.float64
    )


def _features(asked: Iterable[Shape], family: _Family) -> NDArray[np.float64]:
    ops = sorted(family.line)
    return np.array(
        [
            (
                math.log(shape.elements), math.log(shape.rows * shape.fused),
                math.log2(shape.width), math.log2(shape.fused), math.log2(shape.rows),
                shape.fused * math.ceil(shape.rows * shape.width / _BLOCK),
                math.log(family.of_line(shape)), ops.index(shape.op),
            )
            for shape in asked
        ]
    )  # fmt: skip


def _fit(measurements: Sequence[Measurement], seed: int) -> _Family:
    # Seconds to import, and every rank imports this module.
    from scipy.optimize import nnls
    from sklearn.ensemble import GradientBoostingRegressor

    line: dict[str, NDArray[np.float64]] = {}
    for op in {m.shape.op for m in measurements}:
        own = [m for m in measurements if m.shape.op == op]
        # Relative errors count: every equation is divided by its latency.
        terms = np.array([_terms(m.shape) / m.us for m in own])
        line[op] = nnls(terms, np.ones(len(own)))[0]
    sizes = np.array([(m.shape.rows, m.shape.width, m.shape.fused) for m in measurements])
    trees = GradientBoostingRegressor(
        n_estimators=300, learning_rate=0.05, max_depth=4, subsample=0.7, min_samples_leaf=3,
        random_state=seed,
    )  # fmt: skip
    family = _Family(line, trees, sizes.min(axis=0), sizes.max(axis=0))
    target = [math.log(m.us / family.of_line(m.shape)) for m in measurements]
    trees.fit(_features([m.shape for m in measurements], family), target)
    return family

"""A mixed-integer programme, row by row, solved by HiGHS with its bound."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import highspy
import numpy as np
from numpy.typing import NDArray

INFINITY = float("inf")
BRANCH = 10.0  # s of branch and bound over everything, after rounding
SEARCH = 45.0  # s of branch and bound over a part
RETURNS = 3  # of rounding
LAST = 40  # binaries that rounding leaves to branch and bound
TINY = 1e-6


class NoPlan(ValueError):
    """No solution, or none in time, or addresses that do not fit. One sentence.

    over: bytes by which they do not; high: the tensors that end above the capacity.
    """

    def __init__(self, sentence: str, over: int = 0, high: Iterable[int] = ()) -> None:
        super().__init__(sentence)
        self.over, self.high = over, frozenset(high)


class TooSlow(NoPlan):
    """It is proven that no plan is as fast as is asked for."""


@dataclass(frozen=True)
class Aim:
    """Which plans are asked for, by their s; the best, where nothing is said.

    enough: one that takes no more is not made better. most: those that take more are none.
    """

    enough: float = 0.0
    most: float = INFINITY


@dataclass(frozen=True)
class Solution:
    """Values of the variables; objective and proven bound; seconds of the solver."""

    values: Sequence[float]
    objective: float
    bound: float
    seconds: float

    def on(self, variable: int) -> bool:
        """Whether a binary variable is 1."""
        return self.values[variable] > 0.5


@dataclass
class Model:
    """Minimises; variables and rows are added in any order.

    enough: an objective that need not be lower. most: one that nobody asks for where it is higher.
    """

    costs: list[float] = field(default_factory=list)
    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    integer: list[int] = field(default_factory=list)
    offset: float = 0.0
    enough: float = -INFINITY
    most: float = INFINITY
    _rows: list[tuple[float, float]] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    _columns: list[int] = field(default_factory=list)
    _factors: list[float] = field(default_factory=list)

    def number(self, cost: float = 0.0, low: float = 0.0, high: float = INFINITY) -> int:
        """A continuous variable."""
        self.costs.append(cost)
        self.lows.append(low)
        self.highs.append(high)
        self.integer.append(0)
        return len(self.costs) - 1

    def binary(self, cost: float = 0.0, high: float = 1.0) -> int:
        """A variable that is 0 or 1."""
        variable = self.number(cost, 0.0, high)
        self.integer[variable] = 1
        return variable

    def row(
        self, terms: Mapping[int, float], low: float = -INFINITY, high: float = INFINITY
    ) -> None:
        """low <= sum of factor * variable <= high."""
        self._rows.append((low, high))
        self._starts.append(len(self._columns))
        for variable, factor in terms.items():
            if factor:
                self._columns.append(variable)
                self._factors.append(factor)

    def solve(
        self, seconds: float, gap: float, start: Sequence[float] | None = None, threads: int = 2
    ) -> Solution:
        """The best solution that branch and bound finds. Raises NoPlan when there is none."""
        began = time.perf_counter()
        solver = self._solver(seconds, gap, threads, relaxed=False)
        if start is not None:
            chosen = [i for i, whole in enumerate(self.integer) if whole]
            values = np.round(np.array([start[i] for i in chosen], dtype=float))
            solver.setSolution(len(chosen), np.array(chosen, dtype=np.int32), values)
        if not _ran(solver):
            status = solver.modelStatusToString(solver.getModelStatus())
            raise NoPlan(f"no plan keeps within the capacity, or none was found in time: {status}")
        info = solver.getInfo()
        bound = info.mip_dual_bound if any(self.integer) else info.objective_function_value
        return self._solution(solver, bound, began)

    def near(self, fixed: Mapping[int, float], seconds: float, gap: float) -> Solution | None:
        """The best solution with these values of some variables, or None."""
        columns = np.array(list(fixed), dtype=np.int32)
        values = np.array(list(fixed.values()))
        return self._search(columns, values, np.zeros(len(fixed), bool), None, gap, seconds)

    def dive(self, seconds: float, gap: float, threads: int = 2) -> Solution:
        """Round the linear relaxation, which is the bound, and search around what comes out.

        Branch and bound finds the last binaries; then those where the result and the relaxation
        differ, and last all for some seconds, which raises the bound as well. It ends as soon as
        the result is within `gap` of the bound, or `enough`. Raises NoPlan; TooSlow where the bound
        is above `most`.
        """
        began = time.perf_counter()
        solver = self._relaxed(seconds, gap, threads)
        bound = solver.getInfo().objective_function_value
        self._asked(bound)
        whole = np.flatnonzero(np.array(self.integer)).astype(np.int32)
        relaxed = np.array(solver.getSolution().col_value)[whole]
        found: Solution | None = None
        if self._rounded(solver, whole, began + seconds, LAST):
            near = np.array(solver.getSolution().col_value)[whole]
            left = max(began + seconds - time.perf_counter(), 1.0)
            free = np.abs(near - np.round(near)) > TINY
            found = self._search(whole, near, free, None, gap / 4, left)
            if found is None and self._rounded(solver, whole, began + seconds, 0):
                found = self._solution(solver, bound, began)
        if found is not None and not self._good(found, bound, gap):
            chosen = np.round(np.array(found.values)[whole])
            left = seconds - (time.perf_counter() - began)
            free = np.abs(chosen - relaxed) > TINY
            if left > 1:
                found = self._search(whole, chosen, free, found, gap / 4, left) or found
        left = min(seconds - (time.perf_counter() - began), BRANCH)
        if found is None:
            found = self.solve(max(left, 1.0), gap, None, threads)
            bound = max(bound, found.bound)
        elif not self._good(found, bound, gap) and left > 1:
            try:
                better = self.solve(left, gap, found.values, threads)
            except NoPlan:
                better = found
            bound = max(bound, better.bound)
            found = min(better, found, key=lambda each: each.objective)
        self._asked(bound)
        return replace(found, bound=bound, seconds=time.perf_counter() - began)

    def bound(self, seconds: float) -> float:
        """The objective of the linear relaxation; none is lower. Raises NoPlan."""
        return float(self._relaxed(seconds, 0.0, 2).getInfo().objective_function_value)

    def _relaxed(self, seconds: float, gap: float, threads: int) -> highspy.Highs:
        solver = self._solver(seconds, gap, threads, relaxed=True)
        if not _ran(solver):
            status = solver.modelStatusToString(solver.getModelStatus())
            raise NoPlan(f"no plan keeps within the capacity: {status}")
        return solver

    def _good(self, found: Solution, bound: float, gap: float) -> bool:
        """Whether it need not be better."""
        return found.objective <= max(self.enough, bound + gap * found.objective)

    def _asked(self, bound: float) -> None:
        """Raises TooSlow where it is proven that nothing is as fast as is asked for."""
        if bound > self.most:
            raise TooSlow(f"every plan takes at least {bound / self.most:.3f} times what it may")

    def _search(
        self, whole: NDArray[np.int32], values: NDArray[np.float64], free: NDArray[np.bool_],
        start: Solution | None, gap: float, seconds: float, threads: int = 2,
    ) -> Solution | None:  # fmt: skip
        """The best solution that differs from `values` in `free` binaries alone, or None."""
        began = time.perf_counter()
        solver = self._solver(min(seconds, SEARCH), gap, threads, relaxed=False)
        _bound(solver, whole[~free], np.round(values[~free]), np.round(values[~free]))
        if start is not None:
            solver.setSolution(len(whole), whole, np.round(np.array(start.values)[whole]))
        return self._solution(solver, 0.0, began) if _ran(solver) else None

    def _rounded(
        self, solver: highspy.Highs, whole: NDArray[np.int32], until: float, leave: int
    ) -> bool:
        """Round the binaries that are not whole, the nearest first, until few of them are left.

        Equally near ones are taken from all over, as chains of halves settle around each. What is
        whole already stays free. Where rounding leaves nothing, fewer are rounded, and a single
        one the other way; where that fails as well, the latter half of all that was rounded is
        open again. False after some such returns, or when it is `until`.
        """
        noise, returns = np.random.default_rng(0), 0
        fixed: list[NDArray[np.intp]] = []
        values = np.array(solver.getSolution().col_value)[whole]
        while (open_ := np.flatnonzero(np.abs(values - np.round(values)) > TINY)).size > leave:
            if time.perf_counter() > until:
                return False
            far = np.abs(values - np.round(values))[open_] + 0.05 * noise.random(open_.size)
            pick = open_[np.argsort(far)[: max(5, open_.size // 10)]]
            to = np.where(values[pick] >= 0.5 - TINY, 1.0, 0.0)
            while True:
                _bound(solver, whole[pick], to, to)
                if _ran(solver):
                    fixed.append(pick)
                    break
                if pick.size == 1:
                    _bound(solver, whole[pick], 1.0 - to, 1.0 - to)
                    if _ran(solver):
                        fixed.append(pick)
                        break
                    returns += 1
                    again = np.concatenate([*fixed[len(fixed) // 2 :], pick])
                    del fixed[len(fixed) // 2 :]
                    _bound(solver, whole[again], np.zeros(again.size), np.ones(again.size))
                    if returns > RETURNS or not _ran(solver):
                        return False
                    break
                _bound(solver, whole[pick], np.zeros(pick.size), np.ones(pick.size))
                pick, to = pick[: pick.size // 4 + 1], to[: pick.size // 4 + 1]
            values = np.array(solver.getSolution().col_value)[whole]
        return True

    def _solution(self, solver: highspy.Highs, bound: float, began: float) -> Solution:
        return Solution(
            list(solver.getSolution().col_value), solver.getInfo().objective_function_value, bound,
            time.perf_counter() - began,
        )  # fmt: skip

    def _solver(self, seconds: float, gap: float, threads: int, *, relaxed: bool) -> highspy.Highs:
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.costs), len(self._rows)
        lp.offset_ = self.offset
        lp.col_cost_ = np.array(self.costs, dtype=float)
        lp.col_lower_ = np.array(self.lows, dtype=float)
        lp.col_upper_ = np.array(self.highs, dtype=float)
        lp.row_lower_ = np.array([low for low, _ in self._rows], dtype=float)
        lp.row_upper_ = np.array([high for _, high in self._rows], dtype=float)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array([*self._starts, len(self._columns)], dtype=np.int32)
        lp.a_matrix_.index_ = np.array(self._columns, dtype=np.int32)
        lp.a_matrix_.value_ = np.array(self._factors, dtype=float)
        if not relaxed:
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            lp.integrality_ = [kinds[each] for each in self.integer]
        solver: highspy.Highs = highspy.Highs()
        for name, value in (
            ("output_flag", False), ("time_limit", float(seconds)), ("mip_rel_gap", gap),
            ("threads", threads), ("random_seed", 0), ("objective_target", self.enough),
        ):  # fmt: skip
            solver.setOptionValue(name, value)
        solver.passModel(lp)
        return solver


def _bound(
    solver: highspy.Highs, columns: NDArray[np.int32], low: NDArray[np.float64],
    high: NDArray[np.float64],
) -> None:  # fmt: skip
    solver.changeColsBounds(len(columns), columns, low, high)


def _ran(solver: highspy.Highs) -> bool:
    """Solve; whether there is a feasible point."""
    solver.run()
    return bool(
        solver.getInfo().primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    )

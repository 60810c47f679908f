"""A mixed-integer programme, row by row, solved by HiGHS with its bound."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

INFINITY = float("inf")


class NoPlan(ValueError):
    """The programme has no solution, or none was found in time. One sentence."""


@dataclass(frozen=True)
class Solution:
    """Values of the variables; objective and proven bound; seconds of the solver."""

    values: Sequence[float]
    objective: float
    bound: float
    seconds: float
    rows: int
    integers: int

    def on(self, variable: int) -> bool:
        """Whether a binary variable is 1."""
        return self.values[variable] > 0.5


@dataclass
class Model:
    """Minimises; variables and rows are added in any order."""

    costs: list[float] = field(default_factory=list)
    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    integer: list[int] = field(default_factory=list)
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
        self, seconds: float, gap: float, start: Mapping[int, float] | None = None, threads: int = 2
    ) -> Solution:
        """The best solution that HiGHS finds. Raises NoPlan when there is none."""
        import highspy

        began = time.perf_counter()
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.costs), len(self._rows)
        lp.col_cost_ = np.array(self.costs, dtype=float)
        lp.col_lower_ = np.array(self.lows, dtype=float)
        lp.col_upper_ = np.array(self.highs, dtype=float)
        lp.row_lower_ = np.array([low for low, _ in self._rows], dtype=float)
        lp.row_upper_ = np.array([high for _, high in self._rows], dtype=float)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array([*self._starts, len(self._columns)], dtype=np.int32)
        lp.a_matrix_.index_ = np.array(self._columns, dtype=np.int32)
        lp.a_matrix_.value_ = np.array(self._factors, dtype=float)
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[each] for each in self.integer]
        solver = highspy.Highs()
        for name, value in (
            ("output_flag", False), ("time_limit", float(seconds)), ("mip_rel_gap", gap),
            ("threads", threads), ("random_seed", 0),
        ):  # fmt: skip
            solver.setOptionValue(name, value)
        solver.passModel(lp)
        if start:
            known = np.array(list(start), dtype=np.int32)
            solver.setSolution(len(start), known, np.array(list(start.values()), dtype=float))
        solver.run()
        info = solver.getInfo()
        status = solver.getModelStatus()
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            raise NoPlan(f"HiGHS found no plan: {solver.modelStatusToString(status)}")
        bound = info.mip_dual_bound if any(self.integer) else info.objective_function_value
        return Solution(
            list(solver.getSolution().col_value), info.objective_function_value, bound,
            time.perf_counter() - began, len(self._rows), sum(self.integer),
        )  # fmt: skip

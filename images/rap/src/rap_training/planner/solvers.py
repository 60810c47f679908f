"""Linear programmes with whole-number variables, solved by HiGHS or by Gurobi."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import highspy
import numpy as np
from reprokit.errors import ConfigError, Lacking

__all__ = [
    "LicenceError", "Model", "Solution", "SolverError", "check_licence", "gurobi", "highs",
    "mounted_licence",
]  # fmt: skip

MOUNTED = Path("/run/secrets/gurobi.lic")
"""Where a container finds Gurobi's licence."""

_LICENCE = re.compile(r"^\s*(LICENSEID|WLSACCESSID|TOKENSERVER|KEY|CSACCESSID)\s*=\s*\S", re.M)


class SolverError(Lacking):
    """A solver that cannot be used or found no solution, in one sentence with a fix."""


class LicenceError(SolverError):
    """A Gurobi licence that is none, or does not suffice."""

    exit_code = ConfigError.exit_code


@dataclass
class Model:
    """Maximise cost * x with low <= A x <= high, row by row, from a feasible start."""

    start: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    rows: list[tuple[float, float, list[int], list[float]]] = field(default_factory=list)

    def variable(
        self, low: float, high: float, *, start: float, cost: float = 0.0, whole: bool = True
    ) -> int:
        """Add a variable and return its index."""
        self.start.append(float(start))
        self.cost.append(cost)
        self.low.append(low)
        self.high.append(high)
        self.whole.append(whole)
        return len(self.cost) - 1

    def row(self, low: float, high: float, terms: Sequence[tuple[int, float]]) -> None:
        """Add low <= sum of coefficient * variable <= high; a variable may occur once."""
        self.rows.append((low, high, [index for index, _ in terms], [by for _, by in terms]))


@dataclass(frozen=True)
class Solution:
    """The best values found (the start's, if no better), the proved bound, and whether in time."""

    values: tuple[float, ...]
    objective: float
    bound: float
    finished: bool


def highs(
    model: Model, *, time_limit_s: float, gap: float, threads: int = 2, nodes: int | None = None
) -> Solution:
    """Solve by HiGHS from the model's start; `gap` is relative. Raises SolverError if it cannot.

    `nodes` of the search tree limit it the same way wherever and however often it runs.
    """
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("time_limit", max(time_limit_s, 0.01))
    solver.setOptionValue("mip_rel_gap", gap)
    solver.setOptionValue("threads", threads)
    solver.setOptionValue("random_seed", 0)
    if nodes is not None:
        solver.setOptionValue("mip_max_nodes", nodes)
    solver.passModel(_lp(model))
    point = highspy.HighsSolution()
    point.col_value = model.start
    solver.setSolution(point)
    solver.run()
    status, info = solver.getModelStatus(), solver.getInfo()
    end = highspy.HighsModelStatus
    if status not in (end.kOptimal, end.kTimeLimit, end.kInterrupt, end.kSolutionLimit):
        raise SolverError(f"HiGHS ended with {solver.modelStatusToString(status)}; fix: report it")
    values = tuple(solver.getSolution().col_value)
    mine = float(np.dot(model.cost, model.start))
    bound = float(info.mip_dual_bound)
    if info.primal_solution_status != 2 or info.objective_function_value < mine:
        values, best = tuple(model.start), mine
    else:
        best = float(info.objective_function_value)
    return Solution(values, best, bound, status == end.kOptimal)


def gurobi(
    model: Model,
    *,
    time_limit_s: float,
    gap: float,
    licence: Path | None = None,
    threads: int = 2,
) -> Solution:
    """Solve by gurobipy, with the licence file or the size-limited licence that it brings.

    Raises SolverError where gurobipy is not installed, LicenceError where the licence is none or
    does not cover the model.
    """
    if licence is not None:
        check_licence(licence)
    try:
        import gurobipy
    except ImportError as error:
        raise SolverError(
            "gurobipy is not installed here; fix: pip install gurobipy, or use HiGHS"
        ) from error
    try:
        with _licence_at(licence), gurobipy.Env(empty=True) as env:
            env.setParam("OutputFlag", 0)
            env.start()
            return _run_gurobi(gurobipy, env, model, time_limit_s, gap, threads)
    except gurobipy.GurobiError as error:
        raise LicenceError(
            f"Gurobi refuses a model of {len(model.cost)} variables "
            f"({str(error).splitlines()[0]}); fix: mount a full licence, or use HiGHS"
        ) from error


def mounted_licence() -> Path | None:
    """The licence file that Gurobi's own variable GRB_LICENSE_FILE names, else the mounted one.

    None where there is neither: gurobipy then uses the size-limited licence that it brings.
    """
    if named := os.environ.get("GRB_LICENSE_FILE"):
        return Path(named)
    return MOUNTED if MOUNTED.exists() else None


def check_licence(path: Path) -> None:
    """Raise LicenceError, one sentence, unless `path` is a file that looks like Gurobi's."""
    fix = "fix: mount the gurobi.lic that Gurobi gave you, or use HiGHS"
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise LicenceError(f"the Gurobi licence {path} is no text; {fix}") from None
    except OSError as error:
        raise LicenceError(
            f"the Gurobi licence {path} cannot be read: {error.strerror}; {fix}"
        ) from None
    if not text.strip():
        raise LicenceError(f"the Gurobi licence {path} is empty; {fix}")
    if not _LICENCE.search(text):
        raise LicenceError(
            f"{path} is no Gurobi licence: it has no line LICENSEID=, WLSACCESSID= or TOKENSERVER=;"
            f" {fix}"
        )


@contextmanager
def _licence_at(path: Path | None) -> Iterator[None]:
    before = os.environ.get("GRB_LICENSE_FILE")
    if path is not None:
        os.environ["GRB_LICENSE_FILE"] = str(path)
    try:
        yield
    finally:
        if path is not None:
            if before is None:
                del os.environ["GRB_LICENSE_FILE"]
            else:
                os.environ["GRB_LICENSE_FILE"] = before


def _run_gurobi(gurobipy, env, model, time_limit_s, gap, threads) -> Solution:  # type: ignore[no-untyped-def]
    grb = gurobipy.GRB
    with gurobipy.Model(env=env) as solver:
        solver.Params.TimeLimit = time_limit_s
        solver.Params.MIPGap = gap
        solver.Params.Threads = threads
        kinds = [grb.INTEGER if whole else grb.CONTINUOUS for whole in model.whole]
        x = [
            solver.addVar(lb=low, ub=high, obj=cost, vtype=kind)
            for low, high, cost, kind in zip(
                model.low, model.high, model.cost, kinds, strict=True
            )
        ]  # fmt: skip
        solver.ModelSense = grb.MAXIMIZE
        for low, high, indices, by in model.rows:
            terms = gurobipy.LinExpr(by, [x[index] for index in indices])
            if low == high:
                solver.addLConstr(terms, grb.EQUAL, low)
                continue
            if low > -np.inf:
                solver.addLConstr(terms, grb.GREATER_EQUAL, low)
            if high < np.inf:
                solver.addLConstr(terms, grb.LESS_EQUAL, high)
        for variable, value in zip(x, model.start, strict=True):
            variable.Start = value
        solver.optimize()
        if solver.Status not in (grb.OPTIMAL, grb.TIME_LIMIT):
            raise SolverError(f"Gurobi ended with status {solver.Status}; fix: use HiGHS")
        mine = float(np.dot(model.cost, model.start))
        if solver.SolCount == 0 or mine > solver.ObjVal:
            return Solution(tuple(model.start), mine, solver.ObjBound, False)
        values = tuple(variable.X for variable in x)
        return Solution(values, solver.ObjVal, solver.ObjBound, solver.Status == grb.OPTIMAL)


def _lp(model: Model) -> highspy.HighsLp:
    lp = highspy.HighsLp()
    lp.num_col_ = len(model.cost)
    lp.num_row_ = len(model.rows)
    lp.sense_ = highspy.ObjSense.kMaximize
    lp.col_cost_ = np.array(model.cost, dtype=np.float64)
    lp.col_lower_ = np.array(model.low, dtype=np.float64)
    lp.col_upper_ = np.array(model.high, dtype=np.float64)
    lp.row_lower_ = np.array([row[0] for row in model.rows], dtype=np.float64)
    lp.row_upper_ = np.array([row[1] for row in model.rows], dtype=np.float64)
    kind = highspy.HighsVarType
    lp.integrality_ = [kind.kInteger if whole else kind.kContinuous for whole in model.whole]
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.cumsum([0] + [len(row[2]) for row in model.rows]).astype(np.int32)
    lp.a_matrix_.index_ = np.array([i for row in model.rows for i in row[2]], dtype=np.int32)
    lp.a_matrix_.value_ = np.array([v for row in model.rows for v in row[3]], dtype=np.float64)
    return lp

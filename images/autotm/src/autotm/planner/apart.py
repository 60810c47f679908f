"""Our planner in a process of its own: several plan at once, and what ends one ends nothing else.

found = plan_apart(graph, machine, seconds=60.0, gap=0.01)

It ends with its caller, at once: a solver that runs in the caller itself lets no Ctrl-C through.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from autotm.executor.errors import AutotmError, BudgetError
from autotm.graph import Graph, Machine, Plan
from autotm.planner.model import Aim, NoPlan
from autotm.planner.ours import BEST, plan

THREADS = 2  # that a solve has
LATE = 60.0  # s beyond twice its own limit, after which a process is ended
_ENDS_WITH = 1  # PR_SET_PDEATHSIG


def plan_apart(
    graph: Graph, machine: Machine, *, seconds: float = 60.0, gap: float = 0.01, aim: Aim = BEST
) -> Plan:
    """What `planner.ours.plan` gives. Raises NoPlan, also where it takes too long; AutotmError
    where its process fails, which says nothing about plans."""
    asked = {"seconds": seconds, "gap": gap, "aim": aim}
    found: Plan = apart(2 * seconds + LATE, plan, graph, machine, **asked)
    return found


def apart(limit: float, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function of a module gives, called in a process of its own that has `limit` s.

    Raises its NoPlan, and as `plan_apart`.
    """
    words = [sys.executable, "-m", "autotm.planner.apart"]
    try:
        ran = subprocess.run(
            words, input=pickle.dumps((function, args, kwargs)), capture_output=True,
            timeout=limit, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise NoPlan(f"the planner did not end within {limit:.0f} s") from error
    if ran.returncode != 0:
        said = ran.stderr.decode(errors="replace").strip().splitlines()
        last = said[-1] if said else f"exit code {ran.returncode}"
        raise AutotmError(f"the planner's process failed: {last}")
    found = pickle.loads(ran.stdout)
    if isinstance(found, NoPlan):
        raise found
    return found


class Aimed(Protocol):
    """A planner that is told which plans are asked for."""

    def __call__(self, graph: Graph, machine: Machine, aim: Aim = BEST) -> Plan: ...


def once_planned(seconds: float, gap: float) -> Aimed:
    """Our planner, which is not asked for the least budget where it finds no plan for this one.

    Each plan is made in a process of its own.
    """

    def planner(graph: Graph, machine: Machine, aim: Aim = BEST) -> Plan:
        try:
            return plan_apart(graph, machine, seconds=seconds, gap=gap, aim=aim)
        except NoPlan as error:
            raise BudgetError(f"no plan was found for this budget: {error}", 0) from error

    return planner


def solvers() -> ThreadPoolExecutor:
    """Threads for as many solves at a time as this process has CPU cores for."""
    return ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // THREADS))


def _serve() -> None:
    ctypes.CDLL(None).prctl(_ENDS_WITH, signal.SIGKILL)
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)  # what a solver prints is no part of the answer
        function, args, kwargs = pickle.load(sys.stdin.buffer)
        try:
            found = function(*args, **kwargs)
        except NoPlan as error:
            found = error
        out.write(pickle.dumps(found))


if __name__ == "__main__":
    _serve()

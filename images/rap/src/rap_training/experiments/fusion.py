"""The fusion problem of every plan and of random graphs, by every solver at hand."""

from __future__ import annotations

import re
from dataclasses import replace

from reprokit.progress import Progress
from reprokit.records import RecordWriter

from rap_training.config import Config
from rap_training.launches import nodes
from rap_training.plan.builtin import builtin
from rap_training.plan.generator import chains
from rap_training.planner.fusion import (
    ARTIFACT_LEVELS,
    FusionError,
    FusionNode,
    LicenceError,
    SolverError,
    fuse,
)
from rap_training.planner.solvers import check_licence, mounted_licence
from rap_training.work import Work, locality

_LENGTH = 6


def run(config: Config, out: RecordWriter) -> None:
    """Solve each graph with each solver; records as the recipe names them.

    Raises LicenceError, before anything is solved, for a file that is none.
    """
    licence = mounted_licence() if config.solver == "gurobi" else None
    if licence:
        check_licence(licence)
    graphs = {f"plan{number}": plan_nodes(number) for number in range(4)}
    for count in (13, 26):
        graphs[f"random_{count}x{_LENGTH}"] = chain_nodes(count, config.seed)
    progress = Progress(3 * len(graphs))
    for graph, found in graphs.items():
        out.write(
            "launches", "1", [float(len(found))], {"graph": graph, "solver": "unfused"}, "static"
        )
        for solver in ("asap", "highs", "gurobi"):
            _solve(config, out, graph, found, solver)
            progress.step(f"{graph}, {solver}")


def plan_nodes(number: int) -> list[FusionNode]:
    """The whole graph of a built-in plan on one GPU, with the paper's kinds: operator and batch.

    What is run fuses a little less: fill_null of a float and of ids are two kernels.
    """
    plan = builtin(number, scale=0.001)  # table sizes have no part in it
    home = (0,) * len(plan.sparse)
    found = nodes(Work(plan=plan, rank=0, world=1, batch=4096, home=home, mapping=locality(home)))
    return [replace(node, kind=re.sub(":.*@", "@", node.kind)) for node in found]


def chain_nodes(count: int, seed: int) -> list[FusionNode]:
    """A random graph of `count` chains of six operators of five kinds (docs/papers/rap.md, 3.4)."""
    found = []
    for number, chain in enumerate(chains(count, _LENGTH, seed=seed)):
        for step, kind in enumerate(chain):
            before = f"{number}.{step - 1}" if step else None
            found.append(FusionNode(name=f"{number}.{step}", kind=kind, input=before))
    return found


def _solve(
    config: Config, out: RecordWriter, graph: str, found: list[FusionNode], solver: str
) -> None:
    labels = {"graph": graph, "solver": solver}
    try:
        fusion = fuse(
            found, solver=solver, time_limit_s=config.solver_seconds, seed=config.seed,
            levels=ARTIFACT_LEVELS if graph.startswith("random") else None,
            licence=mounted_licence() if solver == "gurobi" else None,
        )  # fmt: skip
    except (LicenceError, SolverError, FusionError) as error:
        out.skip(labels, str(error))
        return
    for metric, unit, value, evidence in (
        ("solve_time", "s", fusion.seconds, "measured"),
        ("objective", "1", fusion.objective, "static"),
        ("upper_bound", "1", fusion.upper_bound, "static"),
        ("gap", "%", 100.0 * fusion.gap, "static"),
        ("launches", "1", float(len(fusion.groups)), "static"),
    ):
        out.write(metric, unit, [value], labels, evidence=evidence, note=fusion.note or None)  # type: ignore[arg-type]

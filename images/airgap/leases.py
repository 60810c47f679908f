#!/usr/bin/env python3
"""What short leases of a GPU host are spent on: what decides the most claims, and nothing twice.

    leases.py plan RECIPE... --machine h200 --minutes 30    which leases are needed; runs nothing
    leases.py run RECIPE --seconds 1500                     one lease: runs what fits
    leases.py run RECIPE --seconds 1500 --share 1/2         beside another one with --share 2/2
    leases.py again RECIPE                                  a tenth in more processes, elsewhere

A process of a point is finished where a reference set, or a run in results/runs, holds its key: the
hash over the image's sources, the command, the GPU's model and the number of the process. Each
process is a point of its own in a set, so `ae keep` adds those of one point from several leases.
The order is that of `ae run --budget`; time that no whole claim fits into goes to processes of the
next ones, then to points that no claim needs.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from threading import Timer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ae.commands.asked import Asked, choose_engine, plan_for, settle
from ae.commands.options import pairs
from ae.commands.run import exit_code, measure
from ae.engines.base import Engine
from ae.errors import AeError, EnvironmentFault, ExitCode, UsageError
from ae.host import signals
from ae.model import Gpu, Machine, Plan, Point
from ae.plan.budget import Budget
from ae.plan.selection import Selection, parse_gpus
from ae.recipe.load import find_root
from ae.recipe.models import Recipe
from ae.records.files import read_object
from ae.records.folder import RunStore, results_dir
from ae.records.results import Origin, load_reference, reference_sets
from ae.run.spend import budget_of
from ae.units import format_seconds

MANY, FEW, LONG_S = 5, 3, 120  # processes of a point; of one whose process takes so long
PLANNED = 0.95  # of the time that is left: the times of points are medians
TENTH = 10  # one point in so many is measured again


def finished(root: Path, recipe: str) -> dict[str, float]:
    """The seconds of every finished process, by key."""
    sets = [load_reference(path) for path in reference_sets(root, recipe).values()]
    found = {p.status.key: p.status.seconds for one in sets for p in one.points if p.done}
    for run in RunStore(results_dir(root)).list(recipe):
        found |= {key: status.seconds for key, status in run.finished().items()}
    return found


def processes(point: Point, recipe: Recipe) -> int:
    """How many processes of a point are wanted: as the recipe says, else on a GPU five, or three of
    what takes minutes. A program that starts as many as it is told is one.
    """
    about = recipe.experiments[point.experiment]
    told = {f"{{{name}}}" for name, one in recipe.parameters.items() if one.unit == "processes"}
    said = "processes" in about.model_fields_set
    if said or point.needs.gpus is None or told.intersection(about.command):
        return about.processes
    return FEW if point.expected_s >= LONG_S else MANY


def wanted(asked: Asked, machine: Machine) -> tuple[Plan, Budget]:
    """All processes that a reference set should have, with what they take and decide."""
    repeat = asked.selection.repeat
    most = max(one.processes for one in asked.recipe.experiments.values())
    many = replace(asked.selection, repeat=repeat or max(MANY, most))
    plan = plan_for(replace(asked, selection=many), machine)
    budget = budget_of(asked.root, asked.recipe, plan, machine, math.inf)
    if repeat:
        return plan, budget
    few = {p.id for p in budget.points if p.repeat < processes(p, asked.recipe)}
    plan = replace(plan, points=tuple(p for p in plan.points if p.id in few))
    return plan, budget_of(asked.root, asked.recipe, plan, machine, math.inf)


def fitting(
    budget: Budget, took: Mapping[str, float], left_s: float, lost: Collection[str] = ()
) -> list[str]:
    """The points to run in the time that is left, by id; none that are done (`took`) or `lost`."""
    choice, seconds = budget.choice(left_s, took, lost), budget.seconds(took)
    names, left_s = choice.points, left_s - choice.seconds
    later = [name for step in choice.left for name in step.points]
    for name in dict.fromkeys([*later, *seconds]):
        if not (name in names or name in took or name in lost) and seconds[name] <= left_s:
            names.append(name)
            left_s -= seconds[name]
    return names


def part(plan: Plan, budget: Budget, share: tuple[int, int]) -> tuple[Plan, Budget]:
    """What lease `share[0]` of `share[1]` side by side runs: dealt out, so no process runs in two.

    The processes of a point go round, and those of an experiment's points: no lease's GPU has all
    of either. With a larger --repeat each has what it had, and more. A claim is decided by those of
    its points among them.
    """
    which, many = share
    seat = {where: at for at, where in enumerate(sorted(set(map(place, plan.points))))}
    mine = {p.id for p in plan.points if (seat[place(p)] + p.repeat) % many == which - 1}
    plan = replace(plan, points=tuple(point for point in plan.points if point.id in mine))
    points = [point for point in budget.points if point.id in mine]
    needs = {claim: need & mine for claim, need in budget.needs.items() if need & mine}
    return plan, replace(budget, points=points, needs=needs)


def decided(budget: Budget, took: Mapping[str, float]) -> int:
    """How many claims have all their points."""
    return sum(need <= took.keys() for need in budget.needs.values())


def run(asked: Asked, limit_s: float, share: tuple[int, int]) -> int:
    """Run what fits, and plan again while time is left. What fails is not tried twice."""
    if limit_s <= 0:
        raise UsageError("the lease is over before its first point", fix="take a longer one")
    ends, tried, codes = time.monotonic() + limit_s, set[str](), [0]
    timer = Timer(limit_s, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    while True:
        engine = choose_engine(asked, None)
        plan, budget = part(*wanted(asked, engine.machine), share)
        took = of_plan(plan, finished(asked.root, asked.recipe.name))
        left_s = max(0.0, ends - time.monotonic())
        names = fitting(budget, took, PLANNED * left_s, tried - took.keys())
        said = f"{len(took)} of {len(plan.points)} processes are finished, {decided(budget, took)}"
        said += f" of {len(budget.needs)} claims decided; {len(names)} more processes fit into"
        print(f"lease: {said} {format_seconds(left_s)}", file=sys.stderr)
        if not names:
            engine.close()
            timer.cancel()
            return max(codes)
        tried.update(names)
        codes.append(measured(asked, engine, plan, names))


def again(asked: Asked) -> int:
    """Measure a tenth of the finished points in as many processes more as are wanted of each."""
    engine = choose_engine(asked, None)
    plan, _ = wanted(asked, engine.machine)
    done = finished(asked.root, asked.recipe.name)
    first = sorted((p for p in plan.points if p.key in done and not p.repeat), key=lambda p: p.key)
    many = Counter(map(place, plan.points))
    some = {place(p): many[place(p)] for p in first[: math.ceil(len(first) / TENTH)]}
    if not some:
        raise UsageError(
            "no point of this tree's image is finished", fix=f"ae run {asked.recipe.name}"
        )
    twice = replace(asked.selection, repeat=2 * max(some.values()))
    plan = plan_for(replace(asked, selection=twice), engine.machine)
    added = {where: range(count, 2 * count) for where, count in some.items()}
    names = [p.id for p in plan.points if p.repeat in added.get(place(p), ()) and p.key not in done]
    return measured(asked, engine, plan, names)


def place(point: Point) -> tuple[str, ...]:
    """What the processes of a point have in common."""
    return point.experiment, *(f"{name}={word}" for name, word in sorted(point.labels.items()))


def of_plan(plan: Plan, done: Mapping[str, float]) -> dict[str, float]:
    """The seconds of the plan's points that are finished, by id."""
    return {point.id: done[point.key] for point in plan.points if point.key in done}


def measured(asked: Asked, engine: Engine, plan: Plan, names: Sequence[str]) -> int:
    """One run of these points, in this order; its exit code."""
    points = {point.id: point for point in plan.points}
    chosen = replace(plan, points=tuple(points[name] for name in names))
    made, outcomes = measure(asked, engine, chosen, None, verbose=False)
    print(f"run {made.name}: {made.path}")
    with suppress(EnvironmentFault):  # all were skipped
        return exit_code(asked, made, outcomes)
    return 0


def recorded(results: Path, name: str) -> Machine:
    """The machine of the reference sets of that name, with as many GPUs as their points got."""
    paths = sorted(results.glob(f"reference/{name}/*/runs/*.json"))
    origins = [read_object(path, Origin) for path in paths]
    if not origins:
        raise UsageError(f"there is no reference set {name}", fix="--machine h200, for example")
    one = max(origins, key=lambda origin: origin.gpus)
    gpus = tuple(
        Gpu(
            index=gpu.index,
            name=gpu.name,
            memory_gib=gpu.memory_gib or 0.0,
            memory_free_gib=gpu.memory_gib or 0.0,
            compute_capability=tuple(map(int, (gpu.compute_capability or "0.0").split("."))),
            driver=gpu.driver or "",
        )
        for gpu in one.provenance.gpus[: one.gpus]
    )
    host = one.provenance.host
    return Machine(gpus=gpus, cpus=host.cpus, memory_gib=host.memory_gib)


def leases_of(asked: Asked, machine: Machine, minutes: int, spent: int) -> tuple[str, str] | None:
    """What is wanted on as many GPUs as the machine has: a row of the table, and the command.

    None where nothing of the recipe uses so many.
    """
    count = len(machine.gpus)
    plan, _ = wanted(asked, machine)
    own = [
        p.experiment for p in plan.points if (p.needs.gpus.count if p.needs.gpus else 0) == count
    ]
    if not own:
        return None
    selection = replace(
        asked.selection, experiments=tuple(dict.fromkeys(own)), gpus=count if count > 1 else None
    )
    plan, budget = wanted(replace(asked, selection=selection), machine)
    took = of_plan(plan, finished(asked.root, asked.recipe.name))
    done, begun, claims = len(took), decided(budget, took), []
    seconds = {name: s for name, s in budget.seconds(took).items() if name not in took}
    while names := fitting(budget, took, PLANNED * 60 * (minutes - spent)):
        took |= {name: seconds.pop(name) for name in names}
        claims.append(decided(budget, took))
    runs = [(number, len(list(same))) for number, same in groupby(claims)]
    after = ", ".join(f"{number} ({many}x)" if many > 1 else f"{number}" for number, many in runs)
    long = f"{len(seconds)} ({format_seconds(sum(seconds.values()))})" if seconds else ""
    total = sum(budget.seconds({}).values())
    words = [f"reference_run.sh {asked.recipe.name} OUT minutes={minutes} --"]
    words += [f"--gpus {count}"] * (count > 1)
    words += [f"--experiment {name}" for name in selection.experiments]
    cells = [
        asked.recipe.name,
        str(count),
        f"{done} of {len(plan.points)}",
        str(math.ceil(total / 60)),
        f"{begun} of {len(budget.needs)}",
        f"{len(claims)}: {after}" if claims else "0",
        long,
    ]
    return f"| {' | '.join(cells)} |", " ".join(words)


def show(args: argparse.Namespace) -> int:
    """Print the table of leases, and the command of each row, as Markdown."""
    head = ["recipe", "GPUs", "finished processes", "minutes of all", "claims decided"]
    head += ["leases: claims decided after each", "longer than a lease"]
    print(f"| {' | '.join(head)} |", "|---" * len(head) + "|", sep="\n")
    machines = [recorded(results_dir(find_root()), name) for name in args.machine]
    asked = [settle(name, asked_for(args), {}) for name in args.recipe]
    found = [
        leases_of(one, machine, args.minutes, args.spent) for machine in machines for one in asked
    ]
    rows = [one for one in found if one]
    commands = (command for _, command in rows)
    print(*(row for row, _ in rows), "", "```", *commands, "```", sep="\n")
    return 0


def share_of(word: str) -> tuple[int, int]:
    """Read `--share 1/2`: which of how many leases side by side."""
    which, many = map(int, word.split("/"))
    if not 1 <= which <= many:
        raise ValueError(word)
    return which, many


def asked_for(args: argparse.Namespace) -> Selection:
    """What was picked, in the words of `ae run`."""
    return Selection(
        experiments=tuple(args.experiment),
        variants=tuple(args.variant),
        settings=pairs(args.set, "--set"),
        repeat=args.repeat,
        quick=args.quick,
        gpus=parse_gpus(args.gpus),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Read the command line, and return the exit code that `ae run` would."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    which = parser.add_subparsers(dest="act", required=True)
    for act in ("plan", "run", "again"):
        one = which.add_parser(act)
        one.add_argument("recipe", nargs="+" if act == "plan" else None)
        for word in ("--experiment", "--variant", "--set"):
            one.add_argument(word, action="append", default=[])
        one.add_argument("--repeat", type=int)
        one.add_argument("--quick", action="store_true")
        one.add_argument("--gpus")
        if act == "plan":
            one.add_argument("--machine", action="append", required=True)
            one.add_argument("--minutes", type=int, default=30, help="of a lease")
            one.add_argument("--spent", type=int, default=5, help="of them for engine and image")
        else:
            one.add_argument("--engine")
        if act == "run":
            one.add_argument("--seconds", type=float, required=True)
            one.add_argument("--share", type=share_of, default=(1, 1), help="1/2: every second one")
    args = parser.parse_args(argv)
    try:
        if args.act == "plan":
            return show(args)
        with signals.handled():
            asked = settle(args.recipe, asked_for(args), {}, args.engine)
            if args.act == "again":
                return again(asked)
            return run(asked, args.seconds, args.share)
    except AeError as error:
        print(f"error: {error.message}", f"  fix: {error.fix}", sep="\n", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("the lease is over; what had finished is kept", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())

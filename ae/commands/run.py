"""`ae run`: recipe, selection, engine and its machine -> plan -> run -> records -> results."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from shlex import join, quote
from typing import Any

from ae.claims.models import write_claims
from ae.engines import choose as engines
from ae.engines.base import Engine, Job
from ae.engines.secrets import Given, Mask, resolve
from ae.errors import AeError, EnvironmentFault, ExitCode, UsageError
from ae.host import measuring, owner, signals, watchdog
from ae.host.machine import detect
from ae.images import bake, content
from ae.images.content import BuildOptions
from ae.model import Machine, Outcome, Plan, Point, Status
from ae.plan.gpus import unknown_gpu
from ae.plan.planner import grouped, make_plan
from ae.plan.selection import Selection, check_selection, parse_gpus
from ae.recipe.load import find_root, load_recipe
from ae.recipe.models import Recipe
from ae.records.folder import Run, RunStore, results_dir
from ae.records.models import describe
from ae.records.provenance import gather
from ae.records.results import load_run
from ae.report import chapter
from ae.run.display import Display
from ae.run.loop import Work, execute
from ae.units import format_seconds

__all__ = [
    "BuildOptions",
    "Selection",
    "parse_gpus",
]  # for the command line


@dataclass(frozen=True)
class Asked:
    """What a person asked of one recipe, settled: all that a plan needs but the machine."""

    root: Path
    recipe: Recipe
    selection: Selection
    given: Given
    resumed: Run | None


def run_recipes(
    asked: Sequence[Asked],
    *,
    engine: str | None,
    build: BuildOptions | None,
    as_json: bool,
    verbose: bool,
) -> int:
    """Run recipes one after another; the exit code is the first that is not 0.

    All are planned before the first runs. `build` says how to build an image that is missing or
    out of date; None: stop instead.
    """
    with signals.handled():
        ready = []
        for one in asked:
            chosen = choose_engine(one, engine, build)
            ready.append((one, chosen, plan_for(one, chosen.machine())))
        codes, data = [], []
        for one, chosen, plan in ready:
            try:
                run, outcomes = measure(one, chosen, plan, verbose=verbose)
                data.append(conclude(one, run, as_json=as_json))
                codes.append(exit_code(one, run, outcomes))
            except AeError as error:
                if len(ready) == 1:
                    raise
                print(f"error: {one.recipe.name}: {error.message}", file=sys.stderr)
                print(f"  fix: {error.fix}", file=sys.stderr)
                codes.append(error.exit_code)
        if as_json:
            _print_json(data, len(ready))
    return next((code for code in codes if code), ExitCode.OK)


def settle(
    name: str, wanted: Selection, secrets: Mapping[str, str], *, resume: bool = False
) -> Asked:
    """Read the recipe and what is wanted of it; a run that is taken up again says it itself."""
    root = find_root()
    recipe = load_recipe(root, name)
    selection = check_selection(recipe, wanted)
    run = RunStore(results_dir(root)).find(recipe.name) if resume else None
    if run is not None:
        before, plain = run.record.plan.selection, Selection()
        for word in (about.name for about in fields(Selection)):
            if getattr(selection, word) not in (getattr(plain, word), getattr(before, word)):
                raise UsageError(
                    f"the run {run.name} was started with other {word.replace('_', ' ')}",
                    fix=f"ae run {recipe.name} --resume goes on with its own; "
                    "without --resume a new run starts",
                )
        selection = check_selection(recipe, before)
    given = resolve(recipe.secrets(), secrets, os.environ)
    for note in given.notes:
        print(f"note: {note}", file=sys.stderr)
    return Asked(root, recipe, selection, given, run)


def choose_engine(asked: Asked, name: str | None, build: BuildOptions | None) -> Engine:
    """The engine that the points run on."""
    chosen = asked.selection.experiments
    wished = any(
        about.gpu != "none" and (name in chosen or (about.default and not chosen))
        for name, about in asked.recipe.experiments.items()
    )
    gpus = None if wished and asked.selection.gpus != 0 else False  # None: where there are any
    return engines.choose(name, gpus=gpus, build=build)


def plan_for(asked: Asked, machine: Machine) -> Plan:
    """The points to run on that machine."""
    root, recipe, lane = asked.root, asked.recipe, asked.selection.lane
    name = recipe.image_of(lane)
    folder = root / "images" / name
    there = {name: content.content_hash(root, name)} if (folder / "Dockerfile").is_file() else {}
    flavours = {name: bake.flavours(root, name)} if (folder / "bake.hcl").is_file() else {}
    return make_plan(recipe, asked.selection, machine, root, there, asked.given.files, flavours)


def measure(
    asked: Asked, engine: Engine, plan: Plan, *, verbose: bool
) -> tuple[Run, dict[str, Outcome]]:
    """Run the points that are not done yet. However it ends, it says what is done and what next."""
    root, recipe = asked.root, asked.recipe
    found = engine.available()
    about = {"name": engine.name, "detail": found.detail, **found.facts}
    facts = gather(root, recipe.name, about, engine.machine())
    run = asked.resumed
    if run is None:
        run = RunStore(results_dir(root)).create(plan, facts)
    else:
        run.resume(plan, facts)
    finished = run.finished()
    todo = [point for point in plan.points if point.key not in finished]
    display = Display(todo, verbose=verbose)
    notes = grouped(plan.notes, recipe.experiments)
    if len(finished) > len(plan.points) - len(todo):
        notes.append("the recipe, its image or the machine changed: some points run again")
    for note in notes:
        display.say(f"note: {note}")
    count = f"of {len(plan.points)} points " if asked.resumed else ""
    display.say(f"run {run.name} on engine {engine.name}: {count}{_size(todo)} to run")
    labels = owner.stamp({owner.RUN: run.name, owner.RECIPE: recipe.name})
    files = asked.given.files
    work = Work(engine, run, display, labels, root / "recipes" / recipe.name, files, Mask(files))
    with ExitStack() as stack:
        stack.callback(run.close)
        stack.callback(display.close)
        stack.enter_context(watchdog.watched(run.name))
        if other := stack.enter_context(measuring.here(f"{recipe.name} {run.name}")):
            display.say(f"warning: {other} measures on this machine, too: timings will be off")
        outcomes: dict[str, Outcome] = {}
        try:
            outcomes = execute(todo, work)
        finally:
            if run.began and (_failures(outcomes) or len(outcomes) < len(todo)):
                display.close()
                done = len({point.key for point in plan.points} & set(run.finished()))
                print(
                    f"{done} of {len(plan.points)} points are done and kept; "
                    f"to run the rest: ae run {plan.recipe} --resume",
                    file=sys.stderr,
                )
    return run, outcomes


def conclude(asked: Asked, run: Run, *, as_json: bool) -> dict[str, Any]:
    """Print table, figures and counts of verdicts, and what to do next; return them as data."""
    name, figures = asked.recipe.name, run.path / "figures"
    made = chapter.conclude(asked.root, asked.recipe, load_run(run.path), figures)
    write_claims(run.path, made.judgements)
    if not as_json:
        print(chapter.chapter_text(made))
        print(f"\nrun {run.name}: {run.path}")
        print(f"next: ae check {name} (every verdict), ae report {name} (a page), ae runs")
    statuses = {point: status.status for point, status in run.statuses().items()}
    return chapter.chapter_json(made) | {"points": statuses, "folder": str(run.path)}


def exit_code(asked: Asked, run: Run, outcomes: Mapping[str, Outcome]) -> int:
    """0, or what the failed points say. Raises EnvironmentFault when no point could be measured."""
    failures = _failures(outcomes)
    for name, outcome in failures.items():
        log = run.path / "points" / name / "stderr.log"
        print(f"failed: {name}: {outcome.reason} (see {log})", file=sys.stderr)
    if failures:
        return ExitCode.WORKLOAD
    if not run.finished():
        reasons: dict[str, list[str]] = {}
        for name, outcome in outcomes.items():
            reasons.setdefault(outcome.reason, []).append(name)
        words = "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
        raise EnvironmentFault(
            f"this machine could run none of the points: {words}",
            fix=f"see `ae doctor {asked.recipe.name}`",
        )
    return ExitCode.OK


def _failures(outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """The points whose workload failed, by id."""
    good = (Status.DONE, Status.SKIPPED)
    return {name: one for name, one in outcomes.items() if one.status not in good}


def show_plans(several: Sequence[Asked], *, engine: str | None, as_json: bool) -> int:
    """`ae run --dry-run`: the points that would run, each as a command that can be pasted."""
    data = []
    for asked in several:
        plan = _plan_for_reading(asked, detect())
        if asked.resumed:
            finished = asked.resumed.finished()
            plan = replace(plan, points=tuple(p for p in plan.points if p.key not in finished))
        one = engines.make(engine or "docker")
        folder = results_dir(asked.root) / "shell" / asked.recipe.name
        commands = {
            point.id: one.equivalent(
                Job(point=point, out=folder / point.id, labels={}, secrets=asked.given.files)
            )
            for point in plan.points
        }
        data.append(describe(plan) | {"commands": {k: list(v) for k, v in commands.items()}})
        if as_json:
            continue
        for note in grouped(plan.notes, asked.recipe.experiments):
            print(f"note: {note}", file=sys.stderr)
        for point in plan.points:
            about = f"about {format_seconds(point.expected_s)}, {point.image.reference}"
            print(f"# {point.id} ({about})")
            print(f"mkdir -p {quote(str(folder / point.id))} && {join(commands[point.id])}")
        print(f"# {_size(plan.points)}" if plan.points else "# nothing is left to run")
    if as_json:
        _print_json(data, len(several))
    return ExitCode.OK


def _size(points: Sequence[Point]) -> str:
    """How many points, in how many processes each, and how long they take together."""
    each = Counter((point.experiment, *point.labels.values()) for point in points).values()
    most = f" (up to {max(each)} processes of each)" if each and max(each) > 1 else ""
    took = format_seconds(sum(point.expected_s for point in points))
    return f"{len(points)} points{most}, about {took}"


def _plan_for_reading(asked: Asked, machine: Machine) -> Plan:
    """The plan for this machine; where its GPUs will not do, for one whose GPUs would."""
    try:
        return plan_for(asked, machine)
    except EnvironmentFault as fault:
        fitting = tuple(unknown_gpu(str(index)) for index in range(asked.recipe.most_gpus()))
        plan = plan_for(asked, replace(machine, gpus=fitting))
        note = f"{fault.message}; this is the plan for a machine with the GPUs that it needs"
        return replace(plan, notes=(*plan.notes, note))


def _print_json(data: Sequence[dict[str, Any]], several: int) -> None:
    print(json.dumps(data[0] if several == 1 else data, indent=2, default=str))

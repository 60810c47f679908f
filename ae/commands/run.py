"""`ae run`: recipe, selection, engine and its machine -> plan -> run -> records -> results."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from shlex import join, quote
from typing import Any

from ae.claims.verdicts import write_claims
from ae.engines import choose as engines
from ae.engines.base import Engine, Job
from ae.engines.secrets import Given, resolve
from ae.errors import AeError, EnvironmentFault, ExitCode, UsageError
from ae.host import measuring, owner, signals
from ae.host.machine import detect
from ae.host.watchdog import Reaper
from ae.images import bake, content, lockfile, settings
from ae.images.content import BuildOptions
from ae.model import ImageRef, Machine, Plan, Status
from ae.plan.describe import describe, grouped
from ae.plan.gpus import unknown_gpu
from ae.plan.planner import make_plan
from ae.plan.selection import Request, Selection, parse_gpus, select
from ae.recipe.load import find_root, load_recipe
from ae.recipe.models import Recipe
from ae.records.folder import Run, RunStore, results_dir
from ae.records.provenance import gather
from ae.records.results import load_run
from ae.report import chapter
from ae.run.display import Display
from ae.run.loop import Result, execute
from ae.units import format_seconds

__all__ = ["BuildOptions", "Request"]  # for the command line, which imports no other room


@dataclass(frozen=True)
class Asked:
    """What a person asked of one recipe, settled: all that a plan needs but the machine."""

    root: Path
    recipe: Recipe
    selection: Selection
    given: Given
    resumed: Run | None


def run_recipes(
    requests: Sequence[Request],
    *,
    resume: bool,
    build: BuildOptions | None,
    as_json: bool,
    verbose: bool,
) -> int:
    """Run the recipes one after another; the exit code is the first that is not 0.

    All are planned before the first runs. `build` says how to build an image that is missing or
    out of date; None: stop instead.
    """
    with signals.handled(), ExitStack() as stack:
        asked = [settle(request, resume=resume) for request in requests]
        reaper = stack.enter_context(Reaper.start())
        ready = []
        for request, one in zip(requests, asked, strict=True):
            engine, machine = choose_engine(request, one, reaper, build)
            ready.append((one, engine, machine, plan_for(one, machine)))
        codes, data = [], []
        for one, engine, machine, plan in ready:
            try:
                run, result = measure(one, engine, machine, plan, verbose=verbose)
                data.append(conclude(one, run, as_json=as_json))
                codes.append(exit_code(one, run, result))
            except AeError as error:
                if len(ready) == 1:
                    raise
                print(f"error: {one.recipe.name}: {error.message}", file=sys.stderr)
                print(f"  fix: {error.fix}", file=sys.stderr)
                codes.append(error.exit_code)
        if as_json:
            print(json.dumps(data[0] if len(ready) == 1 else data, indent=2, default=str))
    return next((code for code in codes if code), ExitCode.OK)


def settle(request: Request, *, resume: bool) -> Asked:
    """Read the recipe and what is wanted of it; a run that is taken up again says it itself."""
    root = find_root()
    recipe = load_recipe(root, request.recipe)
    selection = select(request, recipe)
    run = RunStore(results_dir(root)).find(recipe.name) if resume else None
    if run is not None:
        before, plain = run.record.plan.selection, Selection()
        for name in (about.name for about in fields(Selection)):
            word = getattr(selection, name)
            if word not in (getattr(plain, name), getattr(before, name)):
                raise UsageError(
                    f"the run {run.name} was started with other {name.replace('_', ' ')}",
                    fix=f"ae run {recipe.name} --resume goes on with its own; "
                    "without --resume a new run starts",
                )
        selection = before
    given = resolve(recipe.secrets(), request.secrets, os.environ)
    for note in given.notes:
        print(f"note: {note}", file=sys.stderr)
    return Asked(root, recipe, selection, given, run)


def choose_engine(
    request: Request, asked: Asked, reaper: Reaper | None, build: BuildOptions | None
) -> tuple[Engine, Machine]:
    """The engine that the points run on, and its machine."""
    count, _ = parse_gpus(request.gpus)
    chosen = asked.selection.experiments
    wished = any(
        about.gpu != "none" and (name in chosen or (about.default and not chosen))
        for name, about in asked.recipe.experiments.items()
    )
    gpus = None if wished and count != 0 else False  # None: where its machine has any
    engine = engines.choose(request.engine, gpus=gpus, reaper=reaper, build=build)
    return engine, engine.machine()


def plan_for(asked: Asked, machine: Machine) -> Plan:
    """The points to run on that machine."""
    root, recipe, lane = asked.root, asked.recipe, asked.selection.lane
    name = recipe.image_of(lane) if lane in recipe.lanes else recipe.image
    folder = root / "images" / name
    there = {name: content.content_hash(root, name)} if (folder / "Dockerfile").is_file() else {}
    flavours = {name: bake.flavours(root, name)} if (folder / "bake.hcl").is_file() else {}
    return make_plan(recipe, asked.selection, machine, root, there, asked.given.files, flavours)


def measure(
    asked: Asked, engine: Engine, machine: Machine, plan: Plan, *, verbose: bool
) -> tuple[Run, Result]:
    """Run the points that are not done yet. However it ends, it says what is done and what next."""
    root, recipe = asked.root, asked.recipe
    found = engine.available()
    about = {"name": engine.name, "detail": found.detail, **found.facts}
    facts = gather(root, recipe.name, about, machine)
    run = asked.resumed
    if run is None:
        run = RunStore(results_dir(root)).create(plan, facts)
    else:
        before = len(run.finished())
        run.resume(plan, facts)
    todo = [point for point in plan.points if point.key not in run.finished()]
    display = Display(todo, verbose=verbose)
    for note in (*grouped(plan.notes, recipe.experiments), *_image_notes(plan, engine)):
        display.say(f"note: {note}")
    if asked.resumed and before > len(plan.points) - len(todo):
        display.say("note: the recipe, its image or the machine changed: some points run again")
    count = f"{len(todo)} of {len(plan.points)}" if asked.resumed else str(len(todo))
    display.say(f"run {run.name} on engine {engine.name}: {count} points to run")
    labels = owner.stamp({owner.RUN: run.name, owner.RECIPE: recipe.name})
    with ExitStack() as stack:
        stack.callback(run.close)
        stack.callback(display.close)
        if other := stack.enter_context(measuring.here(f"{recipe.name} {run.name}")):
            display.say(f"warning: {other} measures on this machine, too: timings will be off")
        complete = False
        try:
            result = execute(
                plan,
                engine,
                run,
                display,
                labels,
                root / "recipes" / recipe.name,
                asked.given.files,
            )
            complete = not result.failures
        finally:
            if run.began and not complete:
                display.close()
                _say_how_to_go_on(plan, run)
    return run, result


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


def exit_code(asked: Asked, run: Run, result: Result) -> int:
    """0, or what the failed points say. Raises EnvironmentFault when no point could be measured."""
    for name, outcome in result.failures.items():
        log = run.path / "points" / name / "stderr.log"
        print(f"failed: {name}: {outcome.reason} (see {log})", file=sys.stderr)
    if result.failures:
        return ExitCode.WORKLOAD
    if not result.kept and result.count(Status.DONE) == 0:
        reasons: dict[str, list[str]] = {}
        for name, outcome in result.outcomes.items():
            reasons.setdefault(outcome.reason, []).append(name)
        words = "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
        raise EnvironmentFault(
            f"this machine could run none of the points: {words}",
            fix=f"see `ae doctor {asked.recipe.name}`",
        )
    return ExitCode.OK


def show_plans(requests: Sequence[Request], *, resume: bool, as_json: bool) -> int:
    """`ae run --dry-run`: the points that would run, each as a command that can be pasted."""
    data = []
    for request in requests:
        asked = settle(request, resume=resume)
        plan = _plan_for_reading(asked, detect())
        if asked.resumed:
            finished = asked.resumed.finished()
            plan = replace(plan, points=tuple(p for p in plan.points if p.key not in finished))
        engine = engines.make(request.engine or "docker")
        folder = results_dir(asked.root) / "shell" / asked.recipe.name
        commands = {
            point.id: engine.equivalent(
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
        if not plan.points:
            print("# nothing is left to run")
    if as_json:
        print(json.dumps(data[0] if len(data) == 1 else data, indent=2, default=str))
    return ExitCode.OK


def _plan_for_reading(asked: Asked, machine: Machine) -> Plan:
    """The plan for this machine; where its GPUs will not do, for one whose GPUs would."""
    try:
        return plan_for(asked, machine)
    except EnvironmentFault as fault:
        fitting = tuple(unknown_gpu(str(index)) for index in range(asked.recipe.most_gpus()))
        plan = plan_for(asked, replace(machine, gpus=fitting))
        note = f"{fault.message}; this is the plan for a machine with the GPUs that it needs"
        return replace(plan, notes=(*plan.notes, note))


def _image_notes(plan: Plan, engine: Engine) -> list[str]:
    """What is to be known of the images: built here, or not those of the lock file."""
    if engine.name == "local":
        return []
    return list(lockfile.notes(images_of(plan), settings.registry()))


def images_of(plan: Plan) -> list[ImageRef]:
    """The images of a plan, each once."""
    return list({point.image.reference: point.image for point in plan.points}.values())


def _say_how_to_go_on(plan: Plan, run: Run) -> None:
    finished = run.finished()
    done = sum(point.key in finished for point in plan.points)
    print(
        f"{done} of {len(plan.points)} points are done and kept; "
        f"to run the rest: ae run {plan.recipe} --resume",
        file=sys.stderr,
    )

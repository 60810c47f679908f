"""What a person asked of a recipe; the engine and the plan that follow, and how that plan reads."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import join, quote
from typing import Any

from ae.commands.options import screen_width
from ae.engines import choose as engines
from ae.engines.base import Engine, Job
from ae.engines.secrets import resolve
from ae.errors import EnvironmentFault, UsageError
from ae.host.machine import detect
from ae.images import content
from ae.images.content import BuildOptions
from ae.model import Machine, Plan, Point
from ae.plan.gpus import unknown_gpu
from ae.plan.planner import chosen_experiments, make_plan
from ae.plan.selection import Selection, check_selection
from ae.recipe.load import find_root, list_recipes, load_recipe
from ae.recipe.models import Recipe
from ae.records.folder import Run, RunStore, results_dir
from ae.records.models import describe
from ae.run.spend import budget_of, took
from ae.units import counted, format_seconds


@dataclass(frozen=True)
class Asked:
    """What a person asked of one recipe, settled: all that a plan needs but the machine."""

    root: Path
    recipe: Recipe
    selection: Selection
    engine: str | None  # None: the first that can
    secrets: Mapping[str, Path]  # the files that the person gave, by name
    resumed: Run | None


def settle(
    name: str,
    wanted: Selection,
    secrets: Mapping[str, str],
    engine: str | None = None,
    *,
    resume: bool = False,
) -> Asked:
    """Read the recipe and what is wanted of it; a run that is taken up again says it itself."""
    root = find_root()
    run = RunStore(results_dir(root)).resumable(name, list_recipes(root)) if resume else None
    recipe = load_recipe(root, run.record.recipe if run else name)
    selection = check_selection(recipe, wanted)
    if run is not None:
        before, plain = run.record.plan.selection, vars(Selection())
        ours = vars(before) | {"engine": run.record.provenance.engine.get("name", engine)}
        for word, asked in (vars(selection) | {"engine": engine}).items():
            if asked not in (plain.get(word), ours[word]):
                own = f"{word.replace('_', ' ')}: {ours[word] or 'the default'}"
                said = f"the run {run.name} was started with other settings ({own})"
                fix = f"ae run {name} --resume goes on with its own; "
                raise UsageError(said, fix=f"{fix}without --resume a new run starts")
        selection, engine = check_selection(recipe, before), ours["engine"]
    if engine == "local" and (image := selection.image_override):
        said = f"--image {image} needs a container, and --engine local has none"
        raise UsageError(said, fix="leave one of the two out")
    given = resolve(recipe.secrets(), secrets, os.environ)
    return Asked(root, recipe, selection, engine, given, run)


def choose_engine(asked: Asked, build: BuildOptions | None) -> Engine:
    """The engine that the points run on."""
    names = chosen_experiments(asked.recipe, asked.selection)
    wished = any(asked.recipe.experiments[one].gpu != "none" for one in names)
    gpus = None if wished and asked.selection.gpus != 0 else False  # None: where there are any
    name = "docker" if asked.engine is None and asked.selection.image_override else asked.engine
    return engines.choose(name, gpus=gpus, build=build)


def plan_for(asked: Asked, machine: Machine) -> Plan:
    """The points to run on that machine."""
    root, recipe, lane = asked.root, asked.recipe, asked.selection.lane
    name = recipe.image_of(lane)
    folder = root / "images" / name
    there = {name: content.content_hash(root, name)} if (folder / "Dockerfile").is_file() else {}
    flavours = {name: content.flavours(root, name)}
    return make_plan(recipe, asked.selection, machine, root, there, asked.secrets, flavours)


def show_plan(asked: Asked, limit_s: float | None, *, quiet: bool) -> dict[str, Any]:
    """`ae run --dry-run`: the points that would run, each as a command that can be pasted."""
    machine = detect()
    try:
        plan = plan_for(asked, machine)
    except EnvironmentFault as fault:  # then for a machine whose GPUs would do
        fitting = tuple(unknown_gpu(str(i)) for i in range(64))  # more than any recipe asks for
        plan = plan_for(asked, replace(machine, gpus=fitting))
        note = f"{fault.message}; this is the plan for a machine with the GPUs that it needs"
        plan = replace(plan, notes=(*plan.notes, note))
    done = took(asked.resumed, plan)
    todo = [point for point in plan.points if point.id not in done]
    size = size_of(todo)
    if limit_s is not None:
        budget = budget_of(asked.root, asked.recipe, plan, machine, limit_s)
        choice = budget.require(done)
        todo = [point for name in choice.points for point in budget.points if point.id == name]
        size = budget.text(choice, screen_width())
    plan = replace(plan, points=tuple(todo))
    chosen = engines.make("docker" if asked.engine is None else asked.engine)
    folder = results_dir(asked.root) / "shell" / asked.recipe.name
    jobs = [Job(point=p, out=folder / p.id, labels={}, secrets=asked.secrets) for p in plan.points]
    commands = {job.point.id: list(chosen.equivalent(job)) for job in jobs}
    if not quiet:
        for note in plan.notes:
            print(f"note: {note}", file=sys.stderr)
        for job in jobs:
            seconds, image = format_seconds(job.point.expected_s), job.point.image.reference
            print(f"# {job.point.id} (about {seconds}, {image})")
            print(f"mkdir -p {quote(str(job.out))} && {join(commands[job.point.id])}")
        print(f"note: {size}", file=sys.stderr)
        if not jobs:
            print("# nothing is left to run")
    return describe(plan) | {"commands": commands}


def size_of(points: Sequence[Point]) -> str:
    """How many points, in how many processes each, and how long the recipe says they take."""
    each = Counter((point.experiment, *point.labels.values()) for point in points).values()
    most = f" (up to {max(each)} processes of each)" if each and max(each) > 1 else ""
    seconds = format_seconds(sum(point.expected_s for point in points))
    return f"{counted(len(points), 'point')}{most}, by the recipe about {seconds}"

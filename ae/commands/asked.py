"""What a person asked of a recipe, and the engine and the plan that follow from it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ae.engines import choose as engines
from ae.engines.base import Engine
from ae.engines.secrets import resolve
from ae.errors import UsageError
from ae.images import content
from ae.images.content import BuildOptions
from ae.model import Machine, Plan
from ae.plan.planner import chosen_experiments, make_plan
from ae.plan.selection import Selection, check_selection
from ae.recipe.load import find_root, load_recipe
from ae.recipe.models import Recipe
from ae.records.folder import Run, RunStore, results_dir


@dataclass(frozen=True)
class Asked:
    """What a person asked of one recipe, settled: all that a plan needs but the machine."""

    root: Path
    recipe: Recipe
    selection: Selection
    secrets: Mapping[str, Path]  # the files that the person gave, by name
    resumed: Run | None


def settle(
    name: str, wanted: Selection, secrets: Mapping[str, str], *, resume: bool = False
) -> Asked:
    """Read the recipe and what is wanted of it; a run that is taken up again says it itself."""
    root = find_root()
    recipe = load_recipe(root, name)
    selection = check_selection(recipe, wanted)
    run = RunStore(results_dir(root)).find(recipe.name) if resume else None
    if run is not None:
        before, plain = run.record.plan.selection, vars(Selection())
        for word, asked in vars(selection).items():
            if asked not in (plain[word], vars(before)[word]):
                raise UsageError(
                    f"the run {run.name} was started with other {word.replace('_', ' ')}",
                    fix=f"ae run {recipe.name} --resume goes on with its own; "
                    "without --resume a new run starts",
                )
        selection = check_selection(recipe, before)
    given = resolve(recipe.secrets(), secrets, os.environ)
    return Asked(root, recipe, selection, given, run)


def choose_engine(asked: Asked, name: str | None, build: BuildOptions | None) -> Engine:
    """The engine that the points run on."""
    names = chosen_experiments(asked.recipe, asked.selection)
    wished = any(asked.recipe.experiments[one].gpu != "none" for one in names)
    gpus = None if wished and asked.selection.gpus != 0 else False  # None: where there are any
    return engines.choose(name, gpus=gpus, build=build)


def plan_for(asked: Asked, machine: Machine) -> Plan:
    """The points to run on that machine."""
    root, recipe, lane = asked.root, asked.recipe, asked.selection.lane
    name = recipe.image_of(lane)
    folder = root / "images" / name
    there = {name: content.content_hash(root, name)} if (folder / "Dockerfile").is_file() else {}
    flavours = {name: content.flavours(root, name)}
    return make_plan(recipe, asked.selection, machine, root, there, asked.secrets, flavours)

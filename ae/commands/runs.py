"""`ae runs`, the runs below the results folder, and `ae shell`, a shell where points run."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from typing import Any

from ae.commands.asked import choose_engine, plan_for, settle
from ae.commands.options import (
    AnyRecipe,
    AsJson,
    EngineName,
    ImageOption,
    RecipeName,
    SecretOption,
    pairs,
    print_data,
)
from ae.errors import EnvironmentFault
from ae.images.content import BuildOptions
from ae.model import Status
from ae.plan.selection import Selection
from ae.recipe.load import find_root, list_recipes, load_recipe
from ae.records.folder import Run, RunStore, results_dir
from ae.run.display import Display
from ae.units import format_seconds


def runs(name: AnyRecipe = None, as_json: AsJson = False) -> None:
    """List the runs: how each ended, how many points are done, how old it is."""
    root = find_root()
    names = list_recipes(root) if name is None else [load_recipe(root, name).name]
    store = RunStore(results_dir(root))
    found = [_about(run) for each in names for run in store.list(each)]
    lines = [
        f"{one['recipe']}  {one['run']}  {one['state']:<13}  "
        f"{one['done']} of {one['points']} points done  {format_seconds(one['age_s'])} ago"
        for one in found
    ]
    text = "\n".join(lines) or "there is no run yet; start one: ae run RECIPE"
    print_data(as_json, found, text)


def _about(run: Run) -> dict[str, Any]:
    record = run.record
    ended = {one.key: one.status for one in run.statuses().values()}
    planned = [ended.get(point.key) for point in record.plan.points]
    if run.is_claimed():
        state = "running"
    elif not run.began:
        state = "never started"
    else:
        bad = set(ended.values()) - {Status.DONE, Status.SKIPPED}
        state = "stopped" if None in planned else "failed" if bad else "finished"
    age = datetime.now(UTC) - datetime.fromisoformat(record.created)
    return {
        "recipe": record.recipe,
        "run": run.name,
        "state": state,
        "done": planned.count(Status.DONE),
        "points": len(planned),
        "age_s": age.total_seconds(),
        "folder": str(run.path),
    }


def shell(
    name: RecipeName,
    engine_name: EngineName = None,
    image: ImageOption = None,
    secret: SecretOption = None,
) -> None:
    """Open a shell where a paper's points run: same image, GPUs, limits and mounts."""
    asked = settle(name, Selection(image_override=image), pairs(secret, "--secret"))
    engine = choose_engine(asked, engine_name, BuildOptions())
    point = plan_for(asked, engine.machine).points[0]
    if not engine.has_image(point.image):
        engine.prepare(point.image, Display(()))
    out = results_dir(asked.root) / "shell" / name
    out.mkdir(parents=True, exist_ok=True)
    argv, environment = engine.shell(point, out, asked.secrets)
    print(f"shell of {name} on engine {engine.name}; $AE_OUT is {out}", file=sys.stderr)
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        raise EnvironmentFault(
            f"{argv[0]} cannot be started: {error.strerror}", fix=f"install {argv[0]}"
        ) from error

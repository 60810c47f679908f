"""`ae runs`: the runs below the results folder."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ae.recipe.load import find_root, list_recipes, load_recipe
from ae.records.folder import Run, RunStore, results_dir
from ae.units import format_seconds


def list_runs(name: str | None) -> tuple[list[dict[str, Any]], str]:
    """The runs of a recipe or of all, the newest last, as data and as lines."""
    root = find_root()
    names = list_recipes(root) if name is None else [load_recipe(root, name).name]
    store = RunStore(results_dir(root))
    found = [_about(run) for each in names for run in store.list(each)]
    lines = [
        f"{one['recipe']}  {one['run']}  {one['state']:<13}  "
        f"{one['done']} of {one['points']} points done  {format_seconds(one['age_s'])} ago"
        for one in found
    ]
    return found, "\n".join(lines) or "there is no run yet; start one: ae run RECIPE"


def _about(run: Run) -> dict[str, Any]:
    record, finished = run.record, run.finished()
    ended = {status.key for status in run.statuses().values()}
    done = sum(point.key in finished for point in record.plan.points)
    if run.is_claimed():
        state = "running"
    elif not run.began:
        state = "never started"
    else:
        whole = all(point.key in ended for point in record.plan.points)
        bad = any(s.status not in ("done", "skipped") for s in run.statuses().values())
        state = "stopped" if not whole else "failed" if bad else "finished"
    created = datetime.fromisoformat(record.created)
    return {
        "recipe": record.recipe,
        "run": run.name,
        "state": state,
        "done": done,
        "points": len(record.plan.points),
        "age_s": (datetime.now(UTC) - created).total_seconds(),
        "folder": str(run.path),
    }

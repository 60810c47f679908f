"""What the commands do: each function is one command's steps, in order, over the other modules."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from ae.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from ae.recipe.models import Recipe
    from ae.records.folder import RunStore


def plot_run(name: str, run_name: str | None, *, as_json: bool) -> int:
    """`ae plot`: draw the figures of a run again and print where they are."""
    from ae.report.chapter import chapter_json, conclude, figures_text

    root, recipe = _load(name)
    chapter = conclude(root, recipe, _store(root).find(name, run_name))
    if as_json:
        _print_json(chapter_json(chapter)["figures"])
    else:
        print(figures_text(chapter) or f"the run has no records that a figure of {name} draws")
    return ExitCode.OK


def check_run(name: str, run_name: str | None, *, as_json: bool) -> int:
    """`ae check`: the verdict for every claim; 1 when one is not reproduced."""
    from ae.claims.judge import exit_code, to_json
    from ae.report.chapter import judge_run
    from ae.report.tables import verdict_text

    root, recipe = _load(name)
    verdicts = judge_run(root, recipe, _store(root).find(name, run_name))
    if as_json:
        _print_json(to_json(verdicts))
    else:
        print(verdict_text(verdicts, width=_terminal_width()))
    return exit_code(verdicts)


def write_report(name: str | None, run_name: str | None, output: Path | None) -> int:
    """`ae report`: one page of a run, or of the committed reference results of all recipes."""
    from ae.recipe.load import find_root, list_recipes, load_recipe
    from ae.records.folder import RunStore, results_dir
    from ae.report import page as report
    from ae.report.chapter import conclude

    root = find_root()
    store = RunStore(results_dir(root))
    if name is not None:
        found = [(load_recipe(root, name), store.find(name, run_name))]
    else:
        recipes = [load_recipe(root, each) for each in list_recipes(root)]
        latest = [(recipe, store.latest(recipe.name)) for recipe in recipes]
        found = [(recipe, run) for recipe, run in latest if run is not None]
        found += [(r, run) for r in recipes for run in store.references(r.name)]
    if not found:
        raise UsageError("there is no run to report", fix="start one: `make demo`, or `ae run`")
    chapters = [conclude(root, recipe, run) for recipe, run in found]
    page, text = report.write_report(chapters, output or results_dir(root) / "report")
    print(f"report: {page}\n        {text}")
    return ExitCode.OK


def _load(name: str) -> tuple[Path, Recipe]:
    from ae.recipe.load import load_recipe

    root = _root()
    return root, load_recipe(root, name)


def _root() -> Path:
    from ae.recipe.load import find_root

    return find_root()


def _store(root: Path) -> RunStore:
    from ae.records.folder import RunStore, results_dir

    return RunStore(results_dir(root))


def _terminal_width() -> int:
    return max(80, min(120, get_terminal_size((100, 24)).columns))


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=2, default=str))

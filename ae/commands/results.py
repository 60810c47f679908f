"""What `ae plot`, `check`, `table`, `report` and `keep` do: steps over results that are there.

They read a run or a reference set and never write into it; what they draw goes to results/report.
"""

from __future__ import annotations

import json
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from ae.claims.models import exit_code, to_json, verdict_lines
from ae.errors import ExitCode, UsageError, nearest
from ae.recipe.load import find_root, list_recipes, load_recipe
from ae.records import reference
from ae.records.folder import RunStore, results_dir
from ae.records.results import Results, load_run
from ae.report import chapter, page, text

if TYPE_CHECKING:
    from ae.recipe.models import Recipe

_FORMATS = ("text", "csv", "latex")


def plot_run(name: str, run_name: str | None, output: Path | None, *, as_json: bool) -> int:
    """`ae plot`: draw the figures of a run and print where they are."""
    root, recipe, results = _open(name, run_name)
    drawn = chapter.draw_figures(root, recipe, results, _figures(root, results, output))
    if as_json:
        _print_json(chapter.figures_json(drawn))
    else:
        print(
            chapter.figures_text(drawn) or f"the run has no records that a figure of {name} draws"
        )
    return ExitCode.OK


def check_run(name: str, run_name: str | None, *, as_json: bool) -> int:
    """`ae check`: the verdict for every claim; 1 when one is not reproduced."""
    judged = chapter.judge_results(*_open(name, run_name))
    if as_json:
        _print_json(to_json(judged))
    else:
        print(
            text.verdict_text(judged, width=max(80, min(120, get_terminal_size((100, 24)).columns)))
        )
    return exit_code(judged)


def print_tables(name: str, run_name: str | None, form: str) -> int:
    """`ae table`: all result tables of a run, whole."""
    if form not in _FORMATS:
        raise UsageError(
            f"there is no format '{form}'; {nearest(form, _FORMATS)}", fix="--format csv"
        )
    _, recipe, results = _open(name, run_name)
    tables, skipped = chapter.tables_of(recipe, results)
    if form == "text":
        parts = [*map(text.result_text, tables), text.skip_text(skipped)]
        print("\n\n".join(part for part in parts if part) or "the run has no records")
    else:
        print((text.result_csv if form == "csv" else text.result_latex)(tables), end="")
    return ExitCode.OK


def write_report(name: str | None, run_name: str | None, output: Path | None) -> int:
    """`ae report`: one page of a run, or of the latest runs and reference sets of all recipes."""
    root = find_root()
    if name is not None:
        _, recipe, results = _open(name, run_name)
        found = [(recipe, results)]
    else:
        store = RunStore(results_dir(root))
        recipes = [load_recipe(root, each) for each in list_recipes(root)]
        found = [(r, load_run(run.path)) for r in recipes if (run := store.latest(r.name))]
        found += [(r, reference.load_reference(path)) for r in recipes
                  for path in reference.reference_sets(store.results, r.name)]  # fmt: skip
    if not found:
        raise UsageError("there is no run to report", fix="start one: `make demo`, or `ae run`")
    chapters = [chapter.conclude(root, r, each, _figures(root, each, output)) for r, each in found]
    print(f"report: {page.write_report(chapters, output or results_dir(root) / 'report')}")
    return ExitCode.OK


def keep_run(run_name: str, machine: str | None) -> int:
    """`ae keep`: put a run's finished points among the reference results, and judge them all."""
    root = find_root()
    results = results_dir(root)
    run = reference.find_run(results, run_name)
    recipe = load_recipe(root, run.recipe)
    folder = results / "reference" / (machine or reference.machine_of(run)) / run.recipe
    replaced = reference.keep(run, folder)
    judged = chapter.judge_results(root, recipe, reference.load_reference(folder))
    (folder / "verdicts.txt").write_text(verdict_lines(judged), encoding="utf-8")
    count = sum(point.done for point in run.points)
    print(f"kept {count} points in {folder}, {len(replaced)} of them instead of older ones")
    print(text.verdict_counts(one.verdict for one in judged))
    return ExitCode.OK


def _open(name: str, run_name: str | None) -> tuple[Path, Recipe, Results]:
    """A recipe and the results that a person means: a run, by default the latest, or a set."""
    root = find_root()
    recipe = load_recipe(root, name)
    folder = results_dir(root)
    if run_name and (known := reference.find_set(folder, name, run_name)):
        return root, recipe, reference.load_reference(known)
    return root, recipe, load_run(RunStore(folder).find(name, run_name).path)


def _figures(root: Path, results: Results, output: Path | None) -> Path:
    below = output or results_dir(root) / "report"
    return below / "figures" / f"{results.recipe}-{results.name}"


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=2, default=str))

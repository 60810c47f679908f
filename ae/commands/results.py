"""`ae plot`, `check`, `table`, `report`, `docs`, `keep` and `runs`: over results that are there.

They read a run or a reference set and never write into it; what they draw goes to results/report.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ae.claims.judge import exit_code, to_json, verdict_lines
from ae.commands.options import AnyRecipe, AsJson, RecipeName, option, print_data, screen_width
from ae.errors import UsageError
from ae.model import Status
from ae.recipe.load import find_root, list_recipes, load_recipe
from ae.recipe.models import Recipe
from ae.records import results as measured
from ae.records.folder import Run, RunStore, results_dir
from ae.records.results import Results, load_run
from ae.report import chapter, documents, text
from ae.units import format_seconds

RunName = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        help="a run's name or folder, or a machine of results/reference; default: the latest",
    ),
]
ReportFolder = Annotated[
    Path | None, option("where to write; default: results/report", "-o", "--output", value="DIR")
]


def plot(name: RecipeName, run_name: RunName = None, output: ReportFolder = None) -> None:
    """Draw the figures of a run again; needs no GPU and no container."""
    root, recipe, results = _open(name, run_name)
    drawn = chapter.draw_figures(root, recipe, results, _figures(root, results, output))
    print(chapter.figures_text(drawn) or f"the run has no records that a figure of {name} draws")


def check(name: RecipeName, run_name: RunName = None, as_json: AsJson = False) -> int:
    """Judge every claim against a run; exit code 1 when one is not reproduced."""
    judged = chapter.judge_results(*_open(name, run_name))
    print_data(as_json, to_json(judged), text.verdict_text(judged, width=screen_width()))
    return exit_code(judged)


def table(
    name: RecipeName,
    run_name: RunName = None,
    form: Annotated[Literal["text", "csv", "latex"], typer.Option("--format")] = "text",
) -> None:
    """Print the result tables of a run, whole: as text, CSV or LaTeX."""
    _, recipe, results = _open(name, run_name)
    tables, skipped = chapter.tables_of(recipe, results)
    if form == "text":
        parts = [*map(text.result_text, tables), text.skip_text(skipped)]
        print("\n\n".join(part for part in parts if part) or "the run has no records")
    else:
        print((text.result_csv if form == "csv" else text.result_latex)(tables), end="")


def report(name: AnyRecipe = None, run_name: RunName = None, output: ReportFolder = None) -> None:
    """Write one page per paper: provenance, results, figures, verdicts."""
    root = find_root()
    if name is not None:
        _, recipe, results = _open(name, run_name)
        found = [(recipe, results)]
    else:
        store = RunStore(results_dir(root))
        recipes = [load_recipe(root, each) for each in list_recipes(root)]
        found = [(r, load_run(run.path)) for r in recipes if (run := store.latest(r.name))]
        found += [(r, measured.load_reference(path)) for r in recipes
                  for path in measured.reference_sets(store.results, r.name)]  # fmt: skip
    if not found:
        raise UsageError("there is no run to report", fix="start one: `make demo`, or `ae run`")
    chapters = [chapter.conclude(root, r, each, _figures(root, each, output)) for r, each in found]
    print(f"report: {chapter.write_report(chapters, output or results_dir(root) / 'report')}")


def docs(
    check: Annotated[
        bool, option("write nothing; exit code 1 when a number differs", "--check")
    ] = False,
) -> int:
    """Fill the numbers in README.md and docs/ from the reference results."""
    root = find_root()
    changes = documents.fill(root, results_dir(root), write=not check)
    for one in changes:
        numbers = f"{one.stands or 'nothing'} stands there, it is {one.should}"
        print(f"{one.place}: {'the table differs' if chr(10) in numbers else numbers}")
    if not changes:
        print("every number is that of the reference results")
    elif check:
        print("`ae docs` fills them in")
    return int(bool(changes and check))


def keep(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="a run's name or folder")],
    machine: Annotated[
        str | None, option("the set's name; default: the GPU's, as in h200x2, or cpu")
    ] = None,
) -> None:
    """Put a run's finished points among the reference results of its machine and judge them."""
    root = find_root()
    results = results_dir(root)
    run = load_run(RunStore(results).find("*", run_name).path)
    recipe = load_recipe(root, run.recipe)
    folder = results / "reference" / (machine or measured.machine_of(run)) / run.recipe
    replaced = measured.keep(run, folder)
    judged = chapter.judge_results(root, recipe, measured.load_reference(folder))
    (folder / "verdicts.txt").write_text(verdict_lines(judged), encoding="utf-8")
    count = sum(point.done for point in run.points)
    print(f"kept {count} points in {folder}, {len(replaced)} of them instead of older ones")
    print(text.verdict_counts(judged))


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
    ] or ["there is no run yet; start one: ae run RECIPE"]
    print_data(as_json, found, "\n".join(lines))


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


def _open(name: str, run_name: str | None) -> tuple[Path, Recipe, Results]:
    """A recipe and the results that a person means: a run, by default the latest, or a set."""
    root = find_root()
    recipe = load_recipe(root, name)
    folder = results_dir(root)
    if run_name and (known := measured.find_set(folder, name, run_name)):
        return root, recipe, measured.load_reference(known)
    return root, recipe, load_run(RunStore(folder).find(name, run_name).path)


def _figures(root: Path, results: Results, output: Path | None) -> Path:
    below = output or results_dir(root) / "report"
    return below / "figures" / f"{results.recipe}-{results.name}"

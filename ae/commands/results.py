"""`ae plot`, `check`, `table`, `report`, `docs` and `keep`: steps over results that are there.

They read a run or a reference set and never write into it; what they draw goes to results/report.
"""

from __future__ import annotations

from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Literal

import typer

from ae.claims.models import exit_code, to_json, verdict_lines
from ae.commands.options import AnyRecipe, AsJson, RecipeName, print_data
from ae.errors import UsageError
from ae.recipe.load import find_root, list_recipes, load_recipe
from ae.recipe.models import Recipe
from ae.records import reference
from ae.records.folder import RunStore, results_dir
from ae.records.results import Results, load_run
from ae.report import chapter, documents, page, text

RunName = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        help="a run's name or folder, or a machine of results/reference; default: the latest",
    ),
]
ReportFolder = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="DIR", help="where to write; default: results/report"),
]


def plot(name: RecipeName, run_name: RunName = None, output: ReportFolder = None) -> None:
    """Draw the figures of a run again; needs no GPU and no container."""
    root, recipe, results = _open(name, run_name)
    drawn = chapter.draw_figures(root, recipe, results, _figures(root, results, output))
    print(chapter.figures_text(drawn) or f"the run has no records that a figure of {name} draws")


def check(name: RecipeName, run_name: RunName = None, as_json: AsJson = False) -> int:
    """Judge every claim against a run; exit code 1 when one is not reproduced."""
    judged = chapter.judge_results(*_open(name, run_name))
    width = max(80, min(120, get_terminal_size((100, 24)).columns))
    print_data(as_json, to_json(judged), text.verdict_text(judged, width=width))
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
        found += [(r, reference.load_reference(path)) for r in recipes
                  for path in reference.reference_sets(store.results, r.name)]  # fmt: skip
    if not found:
        raise UsageError("there is no run to report", fix="start one: `make demo`, or `ae run`")
    chapters = [chapter.conclude(root, r, each, _figures(root, each, output)) for r, each in found]
    print(f"report: {page.write_report(chapters, output or results_dir(root) / 'report')}")


def docs(
    check: Annotated[
        bool, typer.Option("--check", help="write nothing; exit code 1 when a number differs")
    ] = False,
) -> int:
    """Fill the numbers in README.md and docs/ from the reference results."""
    root = find_root()
    changes = documents.fill(root, results_dir(root), write=not check)
    for one in changes:
        if "\n" in one.stands + one.should:
            print(f"{one.place}: the table differs")
        else:
            print(f"{one.place}: {one.stands or 'nothing'} stands there, it is {one.should}")
    if not changes:
        print("every number is that of the reference results")
    elif check:
        print("`ae docs` fills them in")
    return int(bool(changes and check))


def keep(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="a run's name or folder")],
    machine: Annotated[
        str | None,
        typer.Option("--machine", help="the set's name; default: the GPU's, as in h200x2, or cpu"),
    ] = None,
) -> None:
    """Put a run's finished points among the reference results of its machine and judge them."""
    root = find_root()
    results = results_dir(root)
    run = load_run(RunStore(results).find("*", run_name).path)
    recipe = load_recipe(root, run.recipe)
    folder = results / "reference" / (machine or reference.machine_of(run)) / run.recipe
    replaced = reference.keep(run, folder)
    judged = chapter.judge_results(root, recipe, reference.load_reference(folder))
    (folder / "verdicts.txt").write_text(verdict_lines(judged), encoding="utf-8")
    count = sum(point.done for point in run.points)
    print(f"kept {count} points in {folder}, {len(replaced)} of them instead of older ones")
    print(text.verdict_counts(judged))


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

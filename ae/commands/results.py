"""`ae plot`, `check`, `table`, `report`, `site`, `docs`, `keep`, `runs`: over results.

They read a run or a reference set and never write into it; what they draw goes to results/report.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import typer

from ae.claims.judge import exit_code, to_json, verdict_lines
from ae.commands.options import AnyRecipe, AsJson, RecipeName, option, print_data, screen_width
from ae.errors import UsageError
from ae.model import ALL_SKIPPED, Status
from ae.recipe.load import find_root, list_recipes, load_recipe
from ae.recipe.models import Recipe
from ae.records import results as measured
from ae.records.files import RecordsFault
from ae.records.folder import Run, RunStore, results_dir
from ae.records.results import Results, load_run
from ae.report import chapter, documents, page, text
from ae.units import counted, format_seconds

RunName = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="a run's name or folder, or a machine of results/reference; default: the latest",
    ),
]
ReportFolder = Annotated[
    Path | None, option("a folder; default: results/report", "-o", "--output", file_okay=False)
]


def plot(name: RecipeName, run_name: RunName = None, output: ReportFolder = None) -> None:
    """Draw the figures of a run again; needs no GPU and no container."""
    root, recipe, results = open_results(name, run_name)
    drawn = chapter.draw_figures(root, recipe, results, _figures(root, results, output))
    if not drawn:
        raise results.lacks(f"records that a figure of {name} draws")
    print(chapter.figures_text(drawn))


def check(name: RecipeName, run_name: RunName = None, as_json: AsJson = False) -> int:
    """Judge every claim against a run; exit code 1 when one is not reproduced."""
    judged = chapter.judge_results(*open_results(name, run_name))
    print_data(as_json, to_json(judged), text.verdict_text(judged, width=screen_width()))
    return exit_code(judged)


def table(
    name: RecipeName,
    run_name: RunName = None,
    form: Annotated[Literal["text", "csv", "latex"], typer.Option("--format")] = "text",
) -> None:
    """Print the result tables of a run, whole: as text, CSV or LaTeX."""
    _, recipe, results = open_results(name, run_name)
    tables, skipped = chapter.tables_of(recipe, results)
    if not tables:
        raise results.lacks("; ".join(["records", *(f"skipped {a}: {why}" for a, why in skipped)]))
    if form == "text":
        parts = [*map(text.result_text, tables), text.skip_text(skipped)]
        print("\n\n".join(part for part in parts if part))
    else:
        print((text.result_csv if form == "csv" else text.result_latex)(tables), end="")


def report(name: AnyRecipe = None, run_name: RunName = None, output: ReportFolder = None) -> None:
    """Write one page: provenance, results, figures, verdicts; of one paper or of all."""
    root = find_root()
    found = _shown(root, ()) if name is None else [open_results(name, run_name)[1:]]
    chapters = page.chapters_of(root, found, partial(_figures, root, output=output))
    print(f"report: {page.write_report(chapters, output or results_dir(root) / 'report')}")


def site(
    output: Annotated[Path, typer.Argument(metavar="DIR", help="where to write", file_okay=False)],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="runs, or machines of results/reference; default: the latest run of every paper "
            "and every reference set",
        ),
    ] = None,
) -> None:
    """Write a site: a scoreboard, and a page for every run; open its index.html."""
    root = find_root()
    with TemporaryDirectory() as figures:
        chapters = page.chapters_of(
            root, _shown(root, names or ()), lambda one: Path(figures, f"{one.recipe}-{one.name}")
        )
        print(f"site: {page.write_site(chapters, output)}")


def _shown(root: Path, names: Sequence[str]) -> list[tuple[Recipe, Results]]:
    """The named runs, the sets of the named machines; without names: the latest, and all sets."""
    store = RunStore(results_dir(root))
    recipes = {name: load_recipe(root, name) for name in list_recipes(root)}
    sets = [path for name in recipes for path in measured.reference_sets(root, name).values()]
    if names:
        kept = [path for path in sets if path.parent.name in names]
        machines = {path.parent.name for path in sets}
        runs = [store.find("*", one, machines).path for one in names if one not in machines]
    else:
        kept, runs = sets, [run.path for name in recipes if (run := store.latest(name))]
    found = [*map(load_run, runs), *map(measured.load_reference, kept)]
    if not found:
        raise UsageError("there is no run to report", fix="start one: `make demo`, or `ae run`")
    print(f"drawing figures of {counted(len(found), 'page')}; it takes a while", file=sys.stderr)
    return [(recipes[one.recipe], one) for one in found]


def docs(
    check: Annotated[
        bool, option("write nothing; exit code 1 when a number differs", "--check")
    ] = False,
) -> int:
    """Fill the numbers in README.md and docs/ from the reference results."""
    changes = documents.fill(find_root(), write=not check)
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
    if machine is not None and not re.fullmatch(r"[a-zA-Z0-9][\w.-]*", machine, re.ASCII):
        said = f"--machine '{machine}': not letters, digits, '.', '_' and '-', as in h200x2"
        raise UsageError(said, fix="--machine NAME, or without it the GPU's name is taken")
    root = find_root()
    results = results_dir(root)
    run = load_run(RunStore(results).find("*", run_name).path)
    recipe = load_recipe(root, run.recipe)
    folder = results / "reference" / (machine or measured.machine_of(run)) / run.recipe
    replaced = measured.keep(run, folder)
    judged = chapter.judge_results(root, recipe, measured.load_reference(folder))
    (folder / "verdicts.txt").write_text(verdict_lines(judged), encoding="utf-8")
    points = counted(sum(point.done for point in run.points), "point")
    print(f"kept {points} in {folder}, {len(replaced)} of them instead of older ones")
    print(text.verdict_counts(judged))


def runs(name: AnyRecipe = None, as_json: AsJson = False) -> None:
    """List the runs: how each ended, how many points are done, how old it is."""
    root = find_root()
    names = list_recipes(root) if name is None else [load_recipe(root, name).name]
    found = [about_run(run) for each in names for run in RunStore(results_dir(root)).list(each)]
    lines = [
        f"{one['recipe']}  {one['run']}  {one['state']:<14}  {points_of(one)}  "
        f"{format_seconds(one['age_s'])} ago"
        for one in found
    ] or ["there is no run yet; start one: ae run RECIPE"]
    print_data(as_json, found, "\n".join(lines))


def points_of(about: dict[str, Any]) -> str:
    """How many points of a run are done, and how many could only be skipped."""
    skipped = f", {about['skipped']} skipped" if about["skipped"] else ""
    return f"{about['done']} of {about['points']} points done{skipped}"


def about_run(run: Run) -> dict[str, Any]:
    """A run as `ae runs` lists it."""
    found = [one for one in run.statuses().values() if one.status != Status.INTERRUPTED]
    ended = {s.key: Status.SKIPPED if s.reason == ALL_SKIPPED else s.status for s in found}
    planned: list[Status | None] = [*ended.values()]
    try:
        planned = [ended.get(point.key) for point in run.record.plan.points]
        if run.is_claimed():
            state = "running"
        elif not run.began:
            state = "never started"
        else:
            bad = set(ended.values()) - {Status.DONE, Status.SKIPPED}
            state = "stopped" if None in planned else "failed" if bad else "finished"
    except RecordsFault as fault:
        state = "cannot be read"
        print(f"warning: {fault.message}\n  fix: {fault.fix}", file=sys.stderr)
    age = datetime.now(UTC) - datetime.fromisoformat(run.created)
    return {
        "recipe": run.path.parent.name,
        "run": run.name,
        "state": state,
        "done": planned.count(Status.DONE),
        "skipped": planned.count(Status.SKIPPED),
        "points": len(planned),
        "age_s": age.total_seconds(),
        "folder": str(run.path),
    }


def open_results(name: str, run_name: str | None) -> tuple[Path, Recipe, Results]:
    """A recipe and the results that a person means: a run, by default the latest, or a set."""
    root = find_root()
    recipe = load_recipe(root, name)
    if run_name and (known := measured.find_set(root, name, run_name)):
        return root, recipe, measured.load_reference(known)
    sets = measured.reference_sets(root, name)
    return root, recipe, load_run(RunStore(results_dir(root)).find(name, run_name, sets).path)


def _figures(root: Path, results: Results, output: Path | None) -> Path:
    return (output or results_dir(root) / "report") / "figures" / f"{results.recipe}-{results.name}"

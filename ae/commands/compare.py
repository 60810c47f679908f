"""`ae compare`: two runs, or reference sets, of one paper, cell by cell."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from ae.commands.options import AsJson, option, print_data, recipe_names, screen_width
from ae.commands.results import open_results
from ae.compare import cells, text
from ae.compare.decide import Word, decide, margins_of
from ae.errors import ExitCode, UsageError, WorkloadError
from ae.recipe.load import find_root
from ae.recipe.models import Recipe
from ae.records.folder import RunStore, results_dir
from ae.records.results import Results, load_run
from ae.report.chapter import judge_results

_NAME = "a run's name or folder, or a machine of results/reference"


def compare(
    name: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="a paper, or the first of two runs", autocompletion=recipe_names
        ),
    ],
    a: Annotated[str, typer.Argument(metavar="A", help=f"what to compare with: {_NAME}")],
    b: Annotated[
        str | None, typer.Argument(metavar="B", help="what is compared; default: the latest run")
    ] = None,
    across: Annotated[
        bool, option("only ratios, also of what was not measured alike", "--across")
    ] = False,
    form: Annotated[Literal["text", "csv"], typer.Option("--format")] = "text",
    as_json: AsJson = False,
) -> int:
    """Say what is slower, faster or the same in B than in A; exit code 1 when something is slower
    or a claim's verdict is worse."""
    if b is None:
        with suppress(UsageError):  # two runs: they say themselves of which paper they are
            run = RunStore(results_dir(find_root())).find("*", name)
            name, a, b = run.record.recipe, name, a
    root, recipe, old = open_results(name, a)
    made = compared(root, recipe, old, open_results(recipe.name, b)[2], across=across)
    if form == "csv" and not as_json:
        import pandas as pd

        print(pd.DataFrame(text.rows_of(made)).to_csv(index=False), end="")
    else:
        shown = "" if as_json else text.comparison_text(made, screen_width())
        print_data(as_json, text.to_json(made), shown)
    return ExitCode.CLAIM if made.worse else ExitCode.OK


def compared(
    root: Path, recipe: Recipe, a: Results, b: Results, *, across: bool = False
) -> text.Comparison:
    """B compared with A. Raises UsageError where nothing in them was measured alike."""
    if a.path == b.path:
        raise UsageError(f"A and B are both {a.name}", fix=f"name two: ae runs {a.recipe}")
    both = cells.pair(a.rows, b.rows)
    if not both:
        raise UsageError(
            f"A ({a.name}) and B ({b.name}) have no records in common",
            fix=f"measure the same experiments: ae run {a.recipe} --against {a.name}",
        )
    if not across and all(cell.differs for cell in both):
        reasons = "; ".join(dict.fromkeys(why for cell in both for why in cell.differs))
        raise UsageError(
            f"A ({a.name}) and B ({b.name}) were not measured alike: {reasons}",
            fix="--across shows the ratios without verdicts",
        )
    repeats = [] if across else _repeats(root, a, b)
    margins = margins_of([cell for one in repeats for cell in cells.pair(a.rows, one.rows)])
    found = decide(both, margins)
    if across:
        found = [replace(one, word=Word.NONE, needed=None) for one in found]
    return text.Comparison(
        a=a,
        b=b,
        findings=sorted(found, key=lambda one: list(Word).index(one.word)),
        flips=() if across else cells.flips(*(judge_results(root, recipe, r) for r in (a, b))),
        margins=margins,
        repeats=[one.name for one in repeats],
        alone={
            side: len(cells.by_place(one.rows)) - len(both) for side, one in (("A", a), ("B", b))
        },
    )


def _repeats(root: Path, a: Results, b: Results) -> list[Results]:
    """The other runs of points of A: the same commands in the same image on the same GPUs."""
    known = {point.status.key for point in a.points if point.done}
    ours = {origin.run for one in (a, b) for origin in one.origins}
    found = []
    for run in RunStore(results_dir(root)).list(a.recipe):
        with suppress(WorkloadError):  # what cannot be read repeats nothing
            if run.name not in ours and known & {point.key for point in run.record.plan.points}:
                read = load_run(run.path)
                if same := tuple(p for p in read.points if p.done and p.status.key in known):
                    found.append(replace(read, points=same))
    return found

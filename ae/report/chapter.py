"""From results to what a person reads: tables, figures, verdicts. Reads nothing, runs nothing."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ae.claims.judge import judge, load_claims
from ae.claims.verdicts import to_json
from ae.model import Status
from ae.records.files import table
from ae.report.drawing import Drawn, draw
from ae.report.page import Chapter
from ae.report.tables import ResultTable, result_tables
from ae.report.text import result_text, skip_text

if TYPE_CHECKING:
    from ae.claims.judge import Judgement
    from ae.recipe.models import Recipe
    from ae.records.results import Results

SCREEN_ROWS = 18  # of result tables, so that the end of a run fits a screen


def conclude(root: Path, recipe: Recipe, results: Results, out: Path) -> Chapter:
    """Draw the figures into `out`, make the tables, judge the claims.

    Raises RecipeError (figures.py, claims.yaml) and RecordsFault (damaged records).
    """
    figures = draw_figures(root, recipe, results, out)
    return Chapter(
        recipe=recipe.name,
        title=recipe.title,
        paper=f"{recipe.paper.title}, {recipe.paper.venue}",
        url=recipe.paper.url,
        name=results.name,
        origins=results.origins,
        environment=results.environment,
        tables=tables_of(recipe, results),
        figures=figures,
        captions={drawn.name: recipe.figures[drawn.name].title for drawn in figures},
        judgements=judge_results(root, recipe, results),
        unfinished=[
            (one.status.id, str(one.status.status), one.status.reason)
            for one in results.points
            if one.status.status not in (Status.DONE, Status.SKIPPED)
        ],
    )


def draw_figures(root: Path, recipe: Recipe, results: Results, out: Path | None) -> list[Drawn]:
    """Draw the figures that the results have records for; `out` None: save nothing."""
    ran = {row.experiment for row in results.rows}
    names = [name for name, about in recipe.figures.items() if ran & set(about.experiments)]
    folder = root / "recipes" / recipe.name
    return draw(folder, names, results.frame, results.environment, out) if names else []


def tables_of(recipe: Recipe, results: Results) -> list[ResultTable]:
    """The result table of every experiment, in the recipe's order of values."""
    shape = recipe.table
    return result_tables(
        table(results.rows),
        metric=shape.metric if shape else "",
        keys=shape.rows if shape else (),
        baseline=(shape.baseline or "") if shape else "",
        baselines={n: v.baseline for n, v in recipe.variants.items() if v.baseline},
        order={"variant": list(recipe.variants)}
        | {name: list(axis.values) for name, axis in recipe.axes.items()},
        skipped=results.skips,
    )


def judge_results(root: Path, recipe: Recipe, results: Results) -> list[Judgement]:
    """Judge every claim of a recipe."""
    return judge(load_claims(root, recipe), results.rows, results.environment)


def chapter_text(chapter: Chapter) -> str:
    """What `ae run` prints at its end: a screen of it."""
    shown = [one for one in chapter.tables if one.rows] or chapter.tables
    most = max(3, SCREEN_ROWS // max(1, len(shown)))
    parts = [
        (f"{one.experiment}\n" if one.experiment else "") + result_text(one, most=most)
        for one in shown
    ]
    parts += [skip_text(chapter.tables, most=3), figures_text(chapter.figures), chapter.counts]
    parts += [f"note: {note}" for note in chapter.notes]
    return "\n\n".join(part for part in parts if part)


def figures_text(figures: list[Drawn]) -> str:
    """Where the figures are, and why one is not there."""
    files = [drawn.png for drawn in figures if drawn.png]
    lines = [f"figures: {files[0].parent}: {', '.join(p.name for p in files)}"] if files else []
    lines += [f"no figure {drawn.name}: {drawn.reason}" for drawn in figures if not drawn.png]
    return "\n".join(lines)


def chapter_json(chapter: Chapter) -> dict[str, Any]:
    """The same for a program: rows of every table, figure files, verdicts."""
    return {
        "recipe": chapter.recipe,
        "run": chapter.name,
        "environment": json.loads(chapter.environment.model_dump_json(exclude_unset=True)),
        "tables": [asdict(table) for table in chapter.tables],
        "figures": figures_json(chapter.figures),
        "claims": to_json(chapter.judgements)["claims"],
        "unfinished": [list(item) for item in chapter.unfinished],
        "notes": chapter.notes,
    }


def figures_json(figures: list[Drawn]) -> list[dict[str, str | None]]:
    """Each figure's files, or the reason why there are none."""

    def text(path: Path | None) -> str | None:
        return str(path) if path else None

    return [
        {
            "name": one.name, "reason": one.reason,
            "pdf": text(one.pdf), "png": text(one.png), "csv": text(one.csv),
        }
        for one in figures
    ]  # fmt: skip

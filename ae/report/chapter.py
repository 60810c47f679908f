"""From results to what a person reads: tables, figures, verdicts, a page. Runs nothing."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ae.claims.judge import Judgement, judge
from ae.claims.tables import load_claims
from ae.host.files import write_atomic
from ae.recipe.models import Recipe
from ae.records.files import flat
from ae.records.results import Results
from ae.report import text
from ae.report.drawing import Drawn, draw, machine_words
from ae.report.tables import ResultTable, Shape, result_tables, skip_groups

SCREEN_ROWS = 18  # of result tables, so that the end of a run fits a screen


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """What is shown of one paper's results on one machine; what the template asks for."""

    recipe: Recipe
    results: Results
    tables: Sequence[ResultTable]
    skipped: Sequence[tuple[str, str]]  # what was not measured, and why
    figures: Sequence[Drawn]
    judgements: Sequence[Judgement]

    @property
    def machine(self) -> str:
        """What it was measured on, in words."""
        evidence = {row["evidence"] for table in self.tables for row in table.rows}
        return machine_words(self.results.environment, evidence)

    @property
    def notes(self) -> list[str]:
        """What a reader must know of sizes, of what the planner left out, of how it was made."""
        origins = self.results.origins
        return list(dict.fromkeys(n for one in origins for n in (*one.notes, *one.about)))


def conclude(root: Path, recipe: Recipe, results: Results, out: Path) -> Chapter:
    """Draw the figures into `out`, make the tables, judge the claims.

    Raises RecipeError (figures.py, claims.yaml) and RecordsFault (damaged records).
    """
    tables, skipped = tables_of(recipe, results)
    return Chapter(
        recipe=recipe,
        results=results,
        tables=tables,
        skipped=skipped,
        figures=draw_figures(root, recipe, results, out),
        judgements=judge_results(root, recipe, results),
    )


def draw_figures(root: Path, recipe: Recipe, results: Results, out: Path | None) -> list[Drawn]:
    """Draw the figures that the results have records for; `out` None: save nothing."""
    ran = {row.experiment for row in results.rows}
    each = {name: about.experiments for name, about in recipe.figures.items()}
    shown = {name: experiments for name, experiments in each.items() if ran & set(experiments)}
    folder = root / "recipes" / recipe.name
    return draw(folder, shown, results.frame, results.environment, out) if shown else []


def tables_of(recipe: Recipe, results: Results) -> tuple[list[ResultTable], list[tuple[str, str]]]:
    """The result table of every experiment, in the recipe's order of values; what was skipped."""
    about = recipe.table
    shape = Shape(
        metric=about.metric if about else "",
        keys=about.rows if about else (),
        baseline=(about.baseline or "") if about else "",
        baselines={n: v.baseline for n, v in recipe.variants.items() if v.baseline},
        order={"variant": list(recipe.variants)}
        | {name: list(axis.values) for name, axis in recipe.axes.items()},
    )
    rows = list(map(flat, results.rows))
    return result_tables(rows, shape), skip_groups(results.skips, rows, shape)


def judge_results(root: Path, recipe: Recipe, results: Results) -> list[Judgement]:
    """Judge every claim of a recipe."""
    return judge(load_claims(root, recipe), results.rows)


def chapter_text(chapter: Chapter) -> str:
    """What `ae run` prints at its end: a screen of it."""
    most = max(3, SCREEN_ROWS // max(1, len(chapter.tables)))
    parts = [text.result_text(one, most=most) for one in chapter.tables]
    parts += [text.skip_text(chapter.skipped, most=3), figures_text(chapter.figures)]
    parts += [text.verdict_counts(chapter.judgements)] if chapter.judgements else []
    parts += [f"note: {note}" for note in chapter.notes]
    return "\n\n".join(part for part in parts if part)


def figures_text(figures: Sequence[Drawn]) -> str:
    """Where the figures are, and why one is not there."""
    files = [drawn.files["png"] for drawn in figures if drawn.files]
    lines = [f"figures: {files[0].parent}: {', '.join(p.name for p in files)}"] if files else []
    lines += [f"no figure {drawn.name}: {drawn.reason}" for drawn in figures if not drawn.files]
    return "\n".join(lines)


def write_report(chapters: Sequence[Chapter], out_dir: Path) -> Path:
    """Write `report.html` into `out_dir` and return its path."""
    path = out_dir / "report.html"
    out_dir.mkdir(parents=True, exist_ok=True)
    write_atomic(path, html_report(chapters))
    return path


def html_report(chapters: Sequence[Chapter]) -> str:
    """The report as one HTML page that refers to nothing outside itself."""
    import jinja2

    page = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    page.filters["base64"] = lambda path: base64.b64encode(path.read_bytes()).decode("ascii")
    return page.get_template("page.html").render(chapters=chapters, text=text)

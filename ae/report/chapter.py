"""From a run's folder to what a person reads: tables, figures, verdicts. Runs on any old run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ae.records.files import frame, load_environment, load_run, load_skips, table
from ae.report.page import Chapter, Judgement

if TYPE_CHECKING:
    from ae.claims.judge import Verdict
    from ae.figures.draw import Drawn
    from ae.recipe.models import Recipe
    from ae.records.files import Row
    from ae.records.folder import Run
    from ae.records.models import PlanRecord


def conclude(root: Path, recipe: Recipe, run: Run) -> Chapter:
    """Draw the figures, judge the claims and keep both in the run's folder.

    Raises RecipeError (figures.py, claims.yaml) and RecordsFault (damaged records).
    """
    from ae.report.tables import result_tables

    rows = load_run(run.path)
    environment = load_environment(run.path)
    statuses = run.statuses()
    ran = {row.experiment for row in rows}
    figures = [name for name, about in recipe.figures.items() if ran & set(about.experiments)]
    shape = recipe.table
    folder = root / "recipes" / recipe.name
    record = run.record
    return Chapter(
        recipe=recipe.name,
        title=recipe.title,
        paper=f"{recipe.paper.title}, {recipe.paper.venue}",
        url=recipe.paper.url,
        run=run.name,
        provenance=record.provenance.model_dump(mode="json", exclude_none=True),
        environment=environment,
        tables=result_tables(
            table(rows),
            metric=shape.metric if shape else "",
            keys=shape.rows if shape else (),
            baseline=(shape.baseline or "") if shape else "",
            baselines={n: v.baseline for n, v in recipe.variants.items() if v.baseline},
            order={"variant": list(recipe.variants)}
            | {name: list(axis.values) for name, axis in recipe.axes.items()},
            skipped=load_skips(run.path),
        ),
        figures=_draw(folder, figures, rows, environment, run.path / "figures"),
        captions={name: recipe.figures[name].title for name in figures},
        judgements=[_judgement(verdict) for verdict in judge_run(root, recipe, run)],
        unfinished=[
            (name, str(status.status), status.reason)
            for name, status in statuses.items()
            if status.status not in ("done", "skipped")
        ],
        notes=notes_of(record.plan),
    )


def _draw(
    folder: Path, names: list[str], rows: list[Row], environment: dict[str, Any], out: Path
) -> list[Drawn]:
    """Draw figures; pandas and matplotlib are imported only where there is one to draw."""
    if not names:
        return []
    from ae.figures.draw import draw

    return draw(folder, names, frame(rows), environment, out)


def judge_run(root: Path, recipe: Recipe, run: Run) -> list[Verdict]:
    """Judge every claim of a recipe against a run and write claims.json beside the points."""
    from ae.claims.judge import judge, load_claims, write_claims

    verdicts = judge(
        load_claims(root, recipe.name),
        load_run(run.path),
        load_environment(run.path),
        reduced=run.record.plan.reduced,
    )
    write_claims(run.path, verdicts)
    return verdicts


def _judgement(verdict: Verdict) -> Judgement:
    return Judgement(
        id=verdict.id,
        sentence=verdict.sentence,
        verdict=str(verdict.verdict),
        reason=verdict.reason,
        value=verdict.value,
        low=verdict.low,
        high=verdict.high,
        reference=verdict.reference,
        unit=verdict.unit,
        source=verdict.source,
        figure=verdict.figure,
        hardware=verdict.paper_hardware,
    )


def notes_of(plan: PlanRecord) -> list[str]:
    """What a reader must know of the run's sizes and of what the planner left out."""
    notes = list(plan.notes)
    if plan.quick:
        notes.insert(0, "run with --quick: small sizes, for a look at the mechanism only")
    return notes


def chapter_text(chapter: Chapter) -> str:
    """What `ae run` and `ae plot` print at their end."""
    from ae.report.tables import result_text, verdict_counts

    parts = [
        (f"{table.experiment}\n" if table.experiment else "") + result_text(table)
        for table in chapter.tables
    ]
    parts.append(figures_text(chapter))
    if chapter.judgements:
        parts.append(verdict_counts(item.verdict for item in chapter.judgements))
    parts += [f"note: {note}" for note in chapter.notes]
    return "\n\n".join(part for part in parts if part)


def figures_text(chapter: Chapter) -> str:
    """Where each figure is, or why there is none."""
    lines = [
        f"figure {drawn.name}: {drawn.png}"
        if drawn.png
        else f"figure {drawn.name}: none, {drawn.reason}"
        for drawn in chapter.figures
    ]
    return "\n".join(lines)


def chapter_json(chapter: Chapter) -> dict[str, Any]:
    """The same for a program: rows of every table, figure files, verdicts."""
    from dataclasses import asdict

    return {
        "recipe": chapter.recipe,
        "run": chapter.run,
        "environment": dict(chapter.environment),
        "tables": [asdict(table) for table in chapter.tables],
        "figures": [
            {k: v and str(v) for k, v in asdict(drawn).items()} for drawn in chapter.figures
        ],
        "claims": [asdict(item) for item in chapter.judgements],
        "unfinished": [list(item) for item in chapter.unfinished],
        "notes": list(chapter.notes),
    }

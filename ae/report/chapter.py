"""From results to what a person reads: tables, figures, verdicts, a page. Runs nothing.

Figures are a recipe's functions; here the facts are put on each face, and the files are written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from ae.claims.deciding import incomplete, writers
from ae.claims.judge import Judgement, judge
from ae.claims.tables import load_claims
from ae.errors import AeError, RecipeError
from ae.figures.draw import STYLE, NoData, Plot
from ae.figures.summary import ASKED, Row, rows_of
from ae.host.files import write_atomic
from ae.recipe.code import function_of, load_code
from ae.recipe.models import Recipe
from ae.records.files import COLUMNS, Environment, flat, frame
from ae.records.results import Results
from ae.report import text
from ae.report.tables import ResultTable, Shape, result_tables, skip_groups, without_ends
from ae.statistics import FEWEST, Basis, basis, by_process, unpaired

if TYPE_CHECKING:
    import pandas as pd

FORMATS: Mapping[str, str] = {  # of a figure, and where one would write when it was drawn
    "pdf": "CreationDate", "svg": "Date", "png": "Software",
}  # fmt: skip
SCREEN_ROWS = 18  # of result tables, so that the end of a run fits a screen


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One figure: what it plots and its files, or the reason why there is none."""

    name: str
    table: pd.DataFrame | None = None  # what is plotted
    over: str = ""  # as of its Plot
    files: Mapping[str, Path] = field(default_factory=dict)  # pdf, svg, png, csv
    reason: str = ""


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
        """What a reader must know of the runs; and of which, where it is not said of all."""
        said: dict[str, list[str]] = {}
        for one in self.results.origins:
            for note in (*one.notes, *one.provenance.about):
                said.setdefault(note, []).append(one.run)
        every = len(self.results.origins)
        of = {note: f"{len(runs)} of {every} runs: " if runs[1:] else f"run {runs[0]}: "
              for note, runs in said.items() if len(runs) < every}  # fmt: skip
        return [of.get(note, "") + note for note in said]


def compose(root: Path, recipe: Recipe, results: Results, figures: Sequence[Drawn]) -> Chapter:
    """The chapter of results whose figures are drawn. Raises RecipeError (claims.yaml)."""
    tables, skipped = tables_of(recipe, results)
    return Chapter(
        recipe=recipe, results=results, tables=tables, skipped=skipped, figures=figures,
        judgements=judge_results(root, recipe, results),
    )  # fmt: skip


def draw_figures(
    root: Path, recipe: Recipe, results: Results, out: Path | None, formats: Iterable[str] = FORMATS
) -> list[Drawn]:
    """Draw the figures that the results have records for; `out` None: save nothing."""
    ran = {row.experiment for row in results.rows}
    shown = {n: one.experiments for n, one in recipe.figures.items() if ran & set(one.experiments)}
    folder = root / "recipes" / recipe.name
    rows = frame(results.rows)
    return draw(folder, shown, rows, results.environment, out, formats) if shown else []


def tables_of(recipe: Recipe, results: Results) -> tuple[list[ResultTable], list[tuple[str, str]]]:
    """The result table of every experiment, in the recipe's order of values; what was skipped."""
    order = {n: list(a.values) for n, a in recipe.axes.items()} | {"variant": list(recipe.variants)}
    baselines = {n: v.baseline for n, v in recipe.variants.items() if v.baseline}
    about, rows = recipe.table, list(map(flat, results.rows))
    shape = Shape(metrics=about.metrics, keys=about.rows, baseline=about.baseline,
                  baselines=baselines, order=order)  # fmt: skip
    shown = [row for row in rows if row["metric"] not in about.drawn]
    return result_tables(shown, shape), skip_groups(results.skips, rows, shape)


def judge_results(root: Path, recipe: Recipe, results: Results) -> list[Judgement]:
    """Judge every claim of a recipe."""
    judged = judge(load_claims(root, recipe), results.rows)
    return incomplete(judged, results.missing, writers(results.rows))


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


def draw(
    recipe_dir: Path,
    names: Iterable[str] | Mapping[str, Collection[str]],
    frame: pd.DataFrame,
    environment: Environment | Mapping[str, object],
    out_dir: Path | None,
    formats: Iterable[str] = FORMATS,
) -> list[Drawn]:
    """Draw the named figures of a recipe into `out_dir`, and their CSV; None: save nothing.

    `names` can say of which experiments each is: it gets the records of those alone.
    `environment` is what the workload wrote into environment.json. A figure without data comes
    back with its reason and no files. RecipeError: no such function, or it failed.
    """
    import matplotlib as mpl

    module = load_code(recipe_dir, "figures", fix="write it, or drop `figures:` from the recipe")
    known = Environment.model_validate(environment)
    if out_dir is not None:
        out_dir.mkdir(parents=True, exist_ok=True)
    drawn = []
    with mpl.rc_context(STYLE):
        for name in names:
            token = ASKED.set([])
            try:
                what = f"figure '{name}' of {recipe_dir.name}"
                experiments = names[name] if isinstance(names, Mapping) else ()
                own = frame[frame["experiment"].isin(experiments)] if experiments else frame
                plot = _call(function_of(module, name), what, own)
                foot = face(plot, known, ASKED.get() or rows_of(own))
                drawn.append(_save(plot, name, foot, out_dir, formats))
            except NoData as error:
                drawn.append(Drawn(name=name, reason=error.message))
            finally:
                ASKED.reset(token)
    return drawn


def machine_words(environment: Environment, evidence: Iterable[str]) -> str:
    """What the numbers were taken on: the GPU, else the CPU; none for purely static numbers."""
    if set(evidence) == {"static"}:
        return "no GPU used: calculated, or read from compiled code"
    if environment.gpu:
        names = list(dict.fromkeys(environment.gpu))
        many = len(environment.gpu) if len(names) == 1 else 1
        gpu = (f"{many} x " if many > 1 else "") + ", ".join(names)
        versions = {
            "driver": environment.driver, "CUDA": environment.cuda, "PyTorch": environment.torch
        }  # fmt: skip
        facts = [f"{title} {version}" for title, version in versions.items() if version]
        return f"GPU: {gpu}" + (f" ({', '.join(facts)})" if facts else "")
    return f"CPU: {environment.cpu}" if environment.cpu else "machine not recorded"


def bases_of(rows: Iterable[Row]) -> list[Basis]:
    """What each label set that was measured rests on."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row["evidence"] != "static":
            labels = [row[name] for name in row if name not in COLUMNS]
            groups.setdefault((row["experiment"], row["metric"], *labels), []).append(row)
    return [basis(by_process(one)) for one in groups.values()]


def face(plot: Plot, environment: Environment, rows: Sequence[Row]) -> str:
    """The foot of a figure of these records: machine, evidence, samples, how spread is shown."""
    evidence = sorted({word for cell in plot.table["evidence"] for word in str(cell).split("+")})
    machine = [machine_words(environment, evidence), f"evidence: {', '.join(evidence)}"]
    machine[1:1] = ["variants of several runs, not paired"] * unpaired(rows)
    facts, spread = [f"samples: {_between([int(n) for n in plot.table['n']])}"], plot.spread
    if bases := bases_of(rows):
        _, processes, devices = zip(*bases, strict=True)
        many = max(processes) > 1
        if min(processes) < FEWEST:  # what the figure says of whiskers is of more of them
            ends = "range" if max(processes) < FEWEST else f"95 % interval (range below {FEWEST})"
            spread = re.sub(r"([,;] |^)whiskers?: [^;,|]*", rf"\1whiskers: {ends}" * many, spread)
        where = f"es on {_between(devices)} device{'s' * (max(devices) > 1)}" * many
        facts += [f"{_between(processes)} process{where}"]
    return "\n".join("   |   ".join(filter(None, line)) for line in (machine, [*facts, spread]))


def _between(counts: Collection[int]) -> str:
    return " to ".join(map(str, sorted({min(counts), max(counts)})))


def _call(function: Callable[..., object], what: str, frame: pd.DataFrame) -> Plot:
    try:
        plot = function(frame)
    except AeError:
        raise
    except Exception as error:
        fix = "the records are kept; see --debug for the place in figures.py"
        raise RecipeError(f"{what} failed: {type(error).__name__}: {error}", fix=fix) from error
    if not isinstance(plot, Plot) or not {"evidence", "n"} <= set(plot.table.columns):
        said = f"{what} did not return a Plot whose table has the columns 'evidence' and 'n'"
        raise RecipeError(said, fix="return ae.figures.draw.Plot(figure=..., table=...)")
    if plot.table.empty:
        raise NoData("no records for it in this run")
    return plot


def _save(plot: Plot, name: str, foot: str, out_dir: Path | None, formats: Iterable[str]) -> Drawn:
    text = plot.figure.text(0.008, 0.008, foot, color="#444", va="bottom", linespacing=1.5)
    per_point = text.get_window_extent().width / float(text.get_fontsize())
    text.set_fontsize(min(7.5, 0.984 * plot.figure.bbox.width / per_point))
    if out_dir is None:
        return Drawn(name=name, table=plot.table)
    if engine := plot.figure.get_layout_engine():  # solved once for all files
        engine.execute(plot.figure)
        plot.figure.set_layout_engine("none")
    made = {}
    for suffix in formats:  # no dates inside: the same records give the same bytes
        image = BytesIO()  # on a full disk matplotlib would hide what the system says
        plot.figure.savefig(image, format=suffix, metadata={FORMATS[suffix]: None})
        made[suffix] = image.getvalue()
    digits = lambda v: f"{v:.6g}" if abs(v) < 1e5 else f"{v:.0f}"  # noqa: E731
    made["csv"] = without_ends(plot.table).to_csv(index=False, float_format=digits).encode()
    files = {suffix: out_dir / f"{name}.{suffix}" for suffix in made}
    for suffix, path in files.items():
        write_atomic(path, made[suffix])
    return Drawn(name=name, table=plot.table, over=plot.over, files=files)

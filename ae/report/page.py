"""Chapters as HTML: `report.html`, or a site with a page for each. They fetch nothing.

A page stands alone: figures (SVG), their CSV, style and script are in it. Only the interactive
views need the code in `vendor/`, which is copied beside it and loaded when one is asked for.
"""

from __future__ import annotations

import html
import json
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path

import yaml

from ae.claims.judge import Verdict, scoreboard
from ae.host.files import write_atomic
from ae.recipe.load import load_recipe
from ae.recipe.models import Recipe
from ae.records.results import Results
from ae.report import text, views
from ae.report.chapter import Chapter, Drawn, compose, draw_figures
from ae.report.svg import address

VENDOR = Path(__file__).parent / "vendor"
_SCRIPTS = ("vega", "vega-lite", "vega-embed")  # in the order in which they are loaded


def chapters_of(
    root: Path, found: Sequence[tuple[Recipe, Results]], out: Callable[[Results], Path]
) -> list[Chapter]:
    """The chapters of results; their figures go as SVG and CSV into the folder `out` of each.

    Several are drawn at once, each in a process of its own. Raises RecipeError.
    """
    import matplotlib.figure  # noqa: F401 once, before the processes part

    many = min(len(found), cpu_count() or 1)
    quiet = (signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends them at once, and is told once, here
    with ProcessPoolExecutor(many, get_context("fork"), signal.signal, quiet) as pool:
        # A copy, because composing keeps what it finds in the results, while they are sent off.
        drawing = [pool.submit(_draw, root, replace(one), out(one)) for _, one in found]
        undrawn = [compose(root, recipe, results, ()) for recipe, results in found]
        both = zip(undrawn, drawing, strict=True)
        return [replace(chapter, figures=figures.result()) for chapter, figures in both]


def _draw(root: Path, results: Results, out: Path) -> list[Drawn]:
    return draw_figures(root, load_recipe(root, results.recipe), results, out, ["svg"])


def write_report(chapters: Sequence[Chapter], out_dir: Path) -> Path:
    """Write all chapters as `report.html` into `out_dir` and return its path."""
    return _write(out_dir, {"report.html": html_page(chapters)})


def write_site(chapters: Sequence[Chapter], out_dir: Path) -> Path:
    """Write a page for each chapter, and `index.html`, whose path is returned."""
    links = [f"{one.recipe.name}-{one.results.name}.html" for one in chapters]
    pages = {
        link: html_page([one], home="index.html") for link, one in zip(links, chapters, strict=True)
    }
    return _write(out_dir, {**pages, "index.html": html_page(chapters, links=links)})


def _write(out_dir: Path, pages: Mapping[str, str]) -> Path:
    shutil.copytree(VENDOR, out_dir / "assets", dirs_exist_ok=True)
    for name, page in pages.items():
        write_atomic(out_dir / name, page)
    return out_dir / list(pages)[-1]


def html_page(chapters: Sequence[Chapter], *, links: Sequence[str] = (), home: str = "") -> str:
    """The chapters as one page; with `links`, the page that leads to theirs; `home` leads back."""
    import jinja2

    page = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return page.get_template("page.html").render(
        {"chapters": chapters, "links": links, "home": home, "text": text, "yaml": yaml},
        scores=_scores,
        order=[str(word) for word in Verdict],
        image=lambda drawn: address(drawn.files["svg"].read_text(encoding="utf-8")),
        plotted=_plotted,
        colours=views.COLOURS,
        within=lambda said: html.escape(said, quote=False),  # an element: `&#34;` has five bytes
        same=lambda one, last: {k for k, v in one if last and getattr(last, k) == v},
        scripts=[path.name for one in _SCRIPTS for path in VENDOR.glob(f"{one}-[0-9]*.js")],
    )


def _scores(chapters: Sequence[Chapter]) -> tuple[list[str], list[list[str]]]:
    """Verdicts that occur; of every chapter and tag, how many facts got each."""
    boards = [(c, tag, row) for c in chapters for tag, row in scoreboard(c.judgements).items()]
    words = [str(word) for word in Verdict if any(row[word] for _, _, row in boards)]
    return words, [
        [c.recipe.name, c.results.name, tag, *(str(row[word] or "") for word in words)]
        for c, tag, row in boards
        if any(row.values())
    ]


def _plotted(drawn: Drawn) -> tuple[str, str, str]:
    """A figure's CSV: what differs between rows, and in one row what does not; the interactive view
    of it, if there is one."""
    import pandas as pd

    table = pd.read_csv(drawn.files["csv"], dtype=str, keep_default_na=False)
    same = [name for name in table if len(table) > 2 and table[name].nunique() == 1]
    spec = views.view(pd.read_csv(drawn.files["csv"]), drawn.over)
    return (
        table.drop(columns=same).to_csv(index=False),
        table[same][:1].to_csv(index=False) if same else "",
        json.dumps(spec, separators=(",", ":")) if spec else "",
    )

"""The report: one self-contained HTML page over one or more results."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from ae.host.files import write_atomic
from ae.report.chapter import Chapter
from ae.report.text import judgement_cells, result_cells, scoreboard_text, verdict_counts


def write_report(chapters: Sequence[Chapter], out_dir: Path) -> Path:
    """Write `report.html` into `out_dir` and return its path."""
    out_dir.mkdir(parents=True, exist_ok=True)
    path = out_dir / "report.html"
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
    functions = (result_cells, judgement_cells, scoreboard_text, verdict_counts)
    page.globals |= {one.__name__: one for one in functions}
    return page.get_template("page.html").render(chapters=chapters)

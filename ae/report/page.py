"""The report: one self-contained HTML page, and the same as markdown, over one or more runs.

Pure but for `write_report`: everything shown is handed in as `Chapter`s, one per run.
"""

from __future__ import annotations

import base64
import html
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ae.figures.draw import Drawn, machine_words
from ae.report.tables import ResultTable, clean, number, result_cells, verdict_counts

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 2rem auto;
  padding: 0 1rem; }
h1, h2, h3 { line-height: 1.25; } h2 { border-top: 2px solid #222; padding-top: 1rem;
  margin-top: 3rem; }
table { border-collapse: collapse; margin: .5rem 0 1rem; font-size: .92em; display: block;
  overflow-x: auto; }
th, td { border-bottom: 1px solid #ddd; padding: .25rem .7rem .25rem 0; text-align: left;
  vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
img { max-width: 100%; height: auto; border: 1px solid #ddd; }
figure { margin: 1rem 0 2rem; } figcaption { color: #444; }
details { margin: .5rem 0; } pre { background: #f6f6f6; padding: .7rem; overflow-x: auto; }
.v { font-weight: 600; white-space: nowrap; } .good { color: #00664a; } .bad { color: #a33a00; }
.half { color: #0a5a8c; } .none { color: #666; }
""".strip()

_CLASSES = {"reproduced": "good", "direction holds": "half", "not reproduced": "bad"}


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """One claim and what a run says of it. Texts are plain; numbers in the claim's unit."""

    id: str
    sentence: str
    verdict: str
    reason: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    reference: float | None = None
    unit: str = ""
    source: str = ""
    figure: str = ""
    hardware: str = ""


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """One run of one recipe, with everything that its part of the report shows."""

    recipe: str
    title: str
    paper: str  # "Title, MICRO 2024"
    url: str
    run: str  # the run's name
    provenance: Mapping[str, Any]
    environment: Mapping[str, object]
    tables: Sequence[ResultTable]
    figures: Sequence[Drawn]
    captions: Mapping[str, str] = field(default_factory=dict)  # figure name -> title
    judgements: Sequence[Judgement] = ()
    unfinished: Sequence[tuple[str, str, str]] = ()  # point, status, reason
    notes: Sequence[str] = ()  # e.g. "measured with --quick: not the paper's sizes"


def write_report(chapters: Sequence[Chapter], out_dir: Path) -> tuple[Path, Path]:
    """Write `report.html` and `report.md` into `out_dir`; return both paths."""
    out_dir.mkdir(parents=True, exist_ok=True)
    page, text = out_dir / "report.html", out_dir / "report.md"
    for path, content in (
        (page, html_report(chapters)),
        (text, markdown_report(chapters, out_dir)),
    ):
        part = path.with_name(f".{path.name}.part")
        part.write_text(content, encoding="utf-8")
        os.replace(part, path)
    return page, text


def html_report(chapters: Sequence[Chapter]) -> str:
    """The report as one HTML page that refers to nothing outside itself."""
    heading = "Reproduction report"
    body = [f"<h1>{heading}</h1>"]
    if len(chapters) > 1:
        items = [
            f'<li><a href="#c{i}">{_e(c.title)}</a>: {_e(_machine(c))}. {_e(_counts(c))}</li>'
            for i, c in enumerate(chapters)
        ]
        body.append("<ul>" + "".join(items) + "</ul>")
    for index, chapter in enumerate(chapters):
        body += _html_chapter(chapter, f"c{index}")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{heading}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def markdown_report(chapters: Sequence[Chapter], out_dir: Path) -> str:
    """The report as markdown; figures are referred to relative to `out_dir`."""
    lines = ["# Reproduction report", ""]
    for chapter in chapters:
        lines += [f"## {chapter.title}", "", f"{chapter.paper}. <{chapter.url}>", ""]
        lines += _markdown_table(
            ["", ""], [[key, value] for key, value in provenance_rows(chapter)]
        )
        lines += [f"> {note}\n" for note in chapter.notes]
        if chapter.judgements:
            lines += ["### Verdicts", "", _counts(chapter), ""]
            lines += _markdown_table(*judgement_cells(chapter.judgements))
        lines += ["### Figures", ""]
        for drawn in chapter.figures:
            caption = chapter.captions.get(drawn.name, drawn.name)
            if drawn.png is None:
                lines += [f"*{caption}*: not drawn, {drawn.reason}", ""]
            else:
                path = os.path.relpath(drawn.png, out_dir).replace(os.sep, "/")
                lines += [f"![{caption}]({path})", "", f"*{caption}*", ""]
        lines += ["### Results", ""]
        for table in chapter.tables:
            lines += [f"{table.experiment or table.metric}:", ""] if table.rows else []
            lines += _markdown_table(*result_cells(table)) if table.rows else []
        missing = missing_cells(chapter)
        if missing:
            lines += ["### Not measured, and why", ""]
            lines += _markdown_table(["what", "why"], missing)
    return "\n".join(lines).rstrip() + "\n"


def provenance_rows(chapter: Chapter) -> list[tuple[str, str]]:
    """The facts of a run that stand at its head, in words."""
    facts = chapter.provenance
    source = _mapping(facts.get("source"))
    revision = str(source.get("revision") or "unknown")
    if source.get("dirty"):
        revision += " with local changes"
    engine = _mapping(facts.get("engine"))
    host = _mapping(facts.get("host"))
    clocks = chapter.environment.get("clocks")
    rows = [
        ("run", chapter.run),
        ("measured on", _machine(chapter)),
        ("started", str(facts.get("started", "unknown"))),
        ("command", _command(facts.get("command"))),
        ("source", revision),
        ("engine", str(engine.get("detail") or engine.get("name") or "unknown")),
        ("host", " ".join(str(host[key]) for key in ("system",) if key in host) or "unknown"),
    ]
    if clocks:
        rows.append(("clocks", json.dumps(clocks, default=str)))
    return rows


def judgement_cells(judgements: Iterable[Judgement]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the verdicts: claim, what it says, the paper's value, ours, verdict."""
    rows = []
    for item in judgements:
        unit = f" {item.unit}" if item.unit else ""
        paper = "" if item.reference is None else f"{number(item.reference)}{unit}"
        ours = ""
        if item.value is not None:
            ours = f"{number(item.value)}{unit}"
            if item.low is not None and item.high is not None:
                ours += f" ({number(item.low)} to {number(item.high)})"
        where = ", ".join(word for word in (item.source, item.figure, item.hardware) if word)
        rows.append([item.id, item.sentence, where, paper, ours, item.verdict, item.reason])
    return ["claim", "says", "source", "stated", "ours", "verdict", "why"], rows


def missing_cells(chapter: Chapter) -> list[list[str]]:
    """What was not measured and why: skipped parts, then points that did not finish."""
    skipped = [list(pair) for table in chapter.tables for pair in table.skipped]
    return skipped + [[f"point {name} ({status})", reason or "no reason recorded"]
                      for name, status, reason in chapter.unfinished]  # fmt: skip


def _html_chapter(chapter: Chapter, anchor: str) -> list[str]:
    out = [
        f'<h2 id="{anchor}">{_e(chapter.title)}</h2>',
        f'<p>{_e(chapter.paper)}. <a href="{_e(chapter.url)}">{_e(chapter.url)}</a></p>',
        _html_table(["", ""], [list(row) for row in provenance_rows(chapter)]),
    ]
    out += [f"<p><strong>{_e(note)}</strong></p>" for note in chapter.notes]
    if chapter.judgements:
        header, rows = judgement_cells(chapter.judgements)
        out += ["<h3>Verdicts</h3>", f"<p>{_e(_counts(chapter))}</p>"]
        out.append(_html_table(header, rows, verdict=header.index("verdict")))
    out.append("<h3>Figures</h3>")
    out += [_html_figure(drawn, chapter) for drawn in chapter.figures]
    out.append("<h3>Results</h3>")
    for table in chapter.tables:
        if table.rows:
            header, rows = result_cells(table)
            right = range(len(table.keys), len(table.keys) + 3)
            out.append(f"<h4>{_e(table.experiment or table.metric)}</h4>")
            out.append(_html_table(header, rows, right=right))
    missing = missing_cells(chapter)
    if missing:
        out += ["<h3>Not measured, and why</h3>", _html_table(["what", "why"], missing)]
    facts = json.dumps(
        {"provenance": chapter.provenance, "environment": chapter.environment},
        indent=2,
        default=str,
    )
    out.append(f"<details><summary>Full provenance</summary><pre>{_e(facts)}</pre></details>")
    return out


def _html_figure(drawn: Drawn, chapter: Chapter) -> str:
    caption = _e(chapter.captions.get(drawn.name, drawn.name))
    if drawn.png is None:
        return f"<p>{caption}: not drawn, {_e(drawn.reason)}</p>"
    data = base64.b64encode(drawn.png.read_bytes()).decode("ascii")
    values = ""
    if drawn.csv is not None:
        values = (
            "<details><summary>Plotted values (CSV)</summary><pre>"
            f"{_e(drawn.csv.read_text(encoding='utf-8'))}</pre></details>"
        )
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
        f"<figcaption>{caption}</figcaption>{values}</figure>"
    )


def _html_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[int] = (),
    verdict: int | None = None,
) -> str:
    flush = set(right)
    lines = ["<table>"]
    if any(header):
        lines.append(
            "<tr>" + "".join(f'<th scope="col">{_e(cell)}</th>' for cell in header) + "</tr>"
        )
    for row in rows:
        cells = []
        for index, cell in enumerate(row):
            kind = ' class="n"' if index in flush else ""
            if index == verdict:
                kind = f' class="v {_CLASSES.get(cell, "none")}"'
            cells.append(f"<td{kind}>{_e(cell)}</td>")
        lines.append("<tr>" + "".join(cells) + "</tr>")
    return "\n".join([*lines, "</table>"])


def _markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(_m(cell) for cell in row) + " |" for row in rows]
    return [*lines, ""]


def _machine(chapter: Chapter) -> str:
    evidence = {row.evidence for table in chapter.tables for row in table.rows} or {"measured"}
    return machine_words(chapter.environment, evidence)


def _counts(chapter: Chapter) -> str:
    return verdict_counts(item.verdict for item in chapter.judgements) if chapter.judgements else ""


def _command(words: object) -> str:
    return "ae " + " ".join(map(str, words)) if isinstance(words, list | tuple) else "unknown"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _e(text: object) -> str:
    return html.escape(str(text), quote=True)


def _m(text: object) -> str:
    return clean(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")

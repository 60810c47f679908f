"""The report: one self-contained HTML page, and the same as markdown, over one or more results.

Pure but for `write_report`: everything shown is handed in as `Chapter`s.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ae.claims.judge import Judgement
from ae.records.files import Environment
from ae.records.results import Origin
from ae.report.drawing import Drawn, machine_words
from ae.report.tables import ResultTable, clean
from ae.report.text import judgement_cells, result_cells, verdict_counts


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """What is shown of one paper's results on one machine; what the templates ask for."""

    recipe: str
    title: str
    paper: str  # "Title, MICRO 2024"
    url: str
    name: str  # of the run, or of the reference set's machine
    origins: Sequence[Origin]
    environment: Environment
    tables: Sequence[ResultTable]
    figures: list[Drawn]
    captions: Mapping[str, str] = field(default_factory=dict)  # figure name -> title
    judgements: Sequence[Judgement] = ()
    unfinished: Sequence[tuple[str, str, str]] = ()  # point, status, reason

    origin_header = ("run", "started", "command", "source", "image", "engine", "host")
    verdict_header = ("claim", "says", "source", "paper", "ours", "verdict", "why")

    @property
    def machine(self) -> str:
        """What it was measured on, in words."""
        evidence = {row.evidence for table in self.tables for row in table.rows}
        return machine_words(self.environment, evidence or {"measured"})

    @property
    def notes(self) -> list[str]:
        """What a reader must know of sizes, of what the planner left out, of how it was made."""
        return list(dict.fromkeys(n for one in self.origins for n in (*one.notes, *one.about)))

    @property
    def counts(self) -> str:
        """How many claims got which verdict."""
        return verdict_counts(one.verdict for one in self.judgements) if self.judgements else ""

    @property
    def origin_cells(self) -> list[list[str]]:
        """A row a run, under `origin_header`."""
        return [_origin_cells(one) for one in self.origins]

    @property
    def verdict_cells(self) -> list[list[str]]:
        """A row a claim, under `verdict_header`."""
        rows = []
        for one in self.judgements:
            claim, (name, *rest) = one.claim, judgement_cells(one)
            where = ", ".join(w for w in (claim.source, claim.figure, claim.paper_hardware) if w)
            rows.append([name, claim.sentence, where, *rest])
        return rows

    @property
    def missing(self) -> list[tuple[str, str]]:
        """What was not measured and why: skipped parts, then points that did not finish."""
        skipped = [pair for table in self.tables for pair in table.skipped]
        return skipped + [(f"point {name} ({status})", reason or "no reason recorded")
                          for name, status, reason in self.unfinished]  # fmt: skip

    @property
    def facts(self) -> str:
        """All that is known of the runs and the machine, as JSON."""
        return json.dumps(
            {
                "runs": [
                    one.model_dump(mode="json", exclude={"points"}, exclude_none=True)
                    for one in self.origins
                ],
                "environment": json.loads(self.environment.model_dump_json(exclude_unset=True)),
            },
            indent=2,
        )


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
    return _render("page.html", chapters, Path())


def markdown_report(chapters: Sequence[Chapter], out_dir: Path) -> str:
    """The report as markdown; figures are referred to relative to `out_dir`."""
    return _render("page.md", chapters, out_dir)


def _render(template: str, chapters: Sequence[Chapter], out_dir: Path) -> str:
    import jinja2

    page = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=template.endswith(".html"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    page.filters |= {
        "base64": lambda path: base64.b64encode(path.read_bytes()).decode("ascii"),
        "beside": lambda path: os.path.relpath(path, out_dir).replace(os.sep, "/"),
        "cell": _markdown,
    }
    return page.get_template(template).render(chapters=chapters, result_cells=result_cells)


def _origin_cells(origin: Origin) -> list[str]:
    facts = origin.provenance
    source, engine = facts.source, facts.engine
    return [
        origin.run,
        facts.started,
        "ae " + " ".join(facts.command),
        (source.revision or "unknown") + (" with local changes" if source.dirty else ""),
        ", ".join(f"{name} {content[:12]}" for name, content in origin.images.items()),
        engine.get("detail") or engine.get("name") or "unknown",
        facts.host.system,
    ]


def _markdown(text: object) -> str:
    return clean(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")

"""The report: self-contained, complete, escaped."""

from __future__ import annotations

import filecmp
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pandas as pd
import pytest

from ae.claims.judge import Claim, Judgement, Verdict
from ae.model import Status
from ae.recipe.load import load_recipe
from ae.records.files import Environment, PointRecords, Record
from ae.records.models import Provenance, Source, StatusRecord
from ae.records.results import Origin, PointResult, Results
from ae.report.chapter import Chapter, Drawn
from ae.report.page import VENDOR, html_page, write_report, write_site
from ae.report.tables import Shape, result_tables
from tests.toy import make_toy

PICTURE = """<?xml version="1.0"?>
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><defs><style>*{a: b}</style></defs>
 <g id="g1"><text style="fill: #123456" x="1.23456">50 % "x" 1.23456</text></g></svg>
"""


def claim(name: str, sentence: str, **facts: object) -> Claim:
    own = {"id": name, "figure": "Fig. 9", "sentence": sentence, "tag": "magnitude", "unit": "x",
           "paper_hardware": "NVIDIA A100", "scored_on": ["A100"],
           "source": "abstract"}  # fmt: skip
    return Claim.model_validate({**own, **facts})


@pytest.fixture
def chapter(tmp_path: Path) -> Chapter:
    svg, table = tmp_path / "speedup.svg", tmp_path / "speedup.csv"
    svg.write_text(PICTURE)
    table.write_text("variant,speedup\nrpf's <1>,1.5\nbase,1\n")
    rows = [
        {"metric": "kernel_time", "unit": "us", "evidence": "measured", "samples": samples,
         "experiment": "embedding", "variant": variant}
        for variant, samples in (("base", [40.0, 42.0]), ("rpf", [20.0, 21.0]))
    ]  # fmt: skip
    shape = Shape(metrics=["kernel_time"], keys=["variant"], baseline="base")
    origins = (
        Origin(
            recipe="toy", run="20240101T000000-abc", created="2024-01-01T00:00:00+00:00",
            images={"ae/toy:cuda": "feedface" * 8},
            reduced=("--quick",),
            notes=("Measured with --quick.",),
            provenance=Provenance(
                about=("Host: two | H200s.",),
                command=("run", "toy"),
                source=Source(revision="deadbeef", dirty=True),
                engine={"name": "docker", "detail": "Docker Engine 26.1"},
            ),
        ),
        Origin(
            recipe="toy", run="20240102T000000-def", created="2024-01-02T00:00:00+00:00",
            provenance=Provenance(command=("run", "toy", "--seconds", "60")),
        ),
    )  # fmt: skip
    facts = {"gpu": "NVIDIA H200", "driver": "580.1", "clocks": {"sm": 1980}, "odd": float("nan")}
    points = [
        PointResult(
            status=StatusRecord(
                id=name, key=name, status=status, seconds=1.0, ended="2024",
                experiment="embedding", labels={}, reason=reason,
            ),
            found=PointRecords(
                records=(
                    Record(metric="m", unit="s", samples=(1,), labels={}, evidence="measured"),
                ),
                environment=Environment.model_validate(facts),
            ),
            origin=origins[0],
            folder=tmp_path,
        )
        for name, status, reason in (
            ("embedding-ones", Status.DONE, ""),
            ("embedding-random", Status.TIMEOUT, "killed after 5 min"),
        )
    ]  # fmt: skip
    toy = load_recipe(make_toy(tmp_path / "toy"), "toy")
    figure = toy.figures["times"]
    return Chapter(
        recipe=toy.model_copy(
            update={
                "title": "A <toy> paper",
                "figures": {
                    "speedup": figure.model_copy(update={"title": "Speed-up | per dataset"}),
                    "sweep": figure.model_copy(update={"title": "Sweep"}),
                },
            }
        ),
        results=Results(
            path=tmp_path, name="r1", recipe="toy", points=tuple(points), origins=origins
        ),
        tables=result_tables(rows, shape),
        skipped=[("variant stock21", "the wheel was not at hand")],
        figures=[
            Drawn(name="speedup", files={"svg": svg, "csv": table}),
            Drawn(name="sweep", reason="no record of experiment sweep"),
        ],
        judgements=[
            Judgement(
                claim=claim("D2", "OptMT gains 53 %.", reference=1.53), value=1.3,
                low=1.2, high=1.4, verdict=Verdict.DIRECTION, reason="judged on A100 only",
            ),
            Judgement(claim=claim("D5", "A <b>bold</b> one."), verdict=Verdict.NOT_TRANSCRIBED,
                      reason="nobody could read it"),
            Judgement(claim=claim("D6", "Both.", paper_hardware="none"),
                      verdict=Verdict.NOT_REPRODUCED, reason="no"),
        ],
    )  # fmt: skip


class Tags(HTMLParser):
    """Collects what a browser would fetch, and checks that tags close in order.

    Those of rows and cells may be left out: the next one, and the end of the table, closes them.
    """

    CLOSED_BY = {"td": ("td", "tr", "tbody"), "tr": ("tr", "tbody")}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [v or "" for k, v in attrs if k in ("src", "srcset", "data", "poster")]
        assert tag not in ("iframe", "object", "embed")
        if tag == "link":
            self.sources += [dict(attrs)["href"] or ""]
        self._close(tag)
        if tag not in ("meta", "img", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.CLOSED_BY:
            self._close(tag)
        assert self.open.pop() == tag

    def _close(self, tag: str) -> None:
        while self.open and tag in self.CLOSED_BY.get(self.open[-1], ()):
            self.open.pop()


def test_html_is_whole_and_fetches_nothing(chapter: Chapter) -> None:
    page = html_page([chapter])
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    verdicts = re.findall('<td class="v ([a-z-]+)">', page)
    assert verdicts == ["not-reproduced", "direction-holds", "not-transcribed"], "worst first"
    icon, picture = tags.sources
    assert icon == "data:,"
    assert picture.startswith("data:image/svg+xml,")
    drawn = ElementTree.fromstring(unquote(picture.partition(",")[2]))
    assert "".join(drawn.find(".//{*}text").itertext()) == '50 % "x" 1.23456'
    assert "url(" not in page.replace("url(#", "")
    assert "@import" not in page
    assert "\n//" not in page


def test_the_report_says_everything(chapter: Chapter) -> None:
    plain = re.sub(r"<[^>]+>", " ", html_page([chapter]))
    for words in (
        "NVIDIA H200", "driver 580.1", "deadbeef with local changes", "Docker Engine 26.1",
        "20240101T000000-abc", " ae run toy ", "images/airgap/leases.py run toy --seconds 60",
        "1980", "Measured with --quick.",
        "D2", "OptMT gains 53 %.", "1.530 x", "1.300 x (1.200 to 1.400)", "direction holds",
        "judged on A100 only",
        "3 claims: 1 not reproduced, 1 direction holds, 1 not transcribed",
        "20240102T000000-def", "ae/toy:cuda feedfacefeed", "abstract, Fig. 9, NVIDIA A100",
        "41", "20.50", "2.00x over base",
        "not drawn, no record of experiment sweep",
        "variant stock21", "the wheel was not at hand",
        "point embedding-random (timeout)", "killed after 5 min",
    ):  # fmt: skip
        assert words in plain, words


def test_what_was_calculated_was_measured_on_nothing(chapter: Chapter) -> None:
    rows = tuple({**row, "evidence": "static"} for row in chapter.tables[0].rows)
    page = html_page([replace(chapter, tables=[replace(chapter.tables[0], rows=rows)])])
    assert "<p>r1: no GPU used: calculated, or read from compiled code</p>" in page


def test_of_a_run_what_differs_from_the_one_before_is_told_and_no_more(chapter: Chapter) -> None:
    first, second = chapter.results.origins
    same = second.model_copy(update={"run": "20240103T000000-aaa"})
    origins = (first, second, same)
    page = html_page([replace(chapter, results=replace(chapter.results, origins=origins))])
    told = page.partition('<details class="provenance">')[2].partition("</details>")[0]
    before, _, after = told.partition("run: 20240102T000000-def")
    assert "reduced: [--quick]" in before
    assert "about: ['Host: two | H200s.']" in before
    assert {"reduced: []", "about: []"} < {line.strip(" {},") for line in re.split("\n|, ", after)}
    assert same.run in page
    assert same.run not in told, "it is as the one before"


def test_what_was_not_run_is_listed_by_what_it_lacks(chapter: Chapter) -> None:
    lacking = "no records of time (variant base, experiment sweep)"
    more = [
        Judgement(claim=claim(name, f"Says {name} <i>."), verdict=Verdict.NOT_RUN, reason=reason)
        for name, reason in (("D7", lacking), ("D8", lacking), ("D9", "2 of 3 cells"))
    ]
    page = html_page([replace(chapter, judgements=[*chapter.judgements, *more])])
    assert "<td>Both.<td>abstract, Fig. 9<td>" in page, "no paper's hardware is no word"
    table, _, rest = page.partition('<table class="data claims">')[2].partition("</table>")
    assert "D6" in table
    assert not re.search("D[789]", table)
    listed = rest.partition("</details>")[0]
    assert "3 claims not run here" in listed
    assert re.findall(r"<p>(.*)</p>", listed) == [
        "no records of time in sweep: D7, D8",
        "2 of 3 cells: D9",
        "What they say: <code>ae show toy --all</code>",
    ]


@pytest.mark.parametrize(
    ("plotted", "named"),
    [({"at": range(202)}, True), ({"at": range(1, 203)}, False), ({"at": [0, *range(200)]}, False),
     ({"at": range(200)}, False), ({"place": range(201)}, False)],
)  # fmt: skip
def test_a_long_table_whose_rows_are_plotted_is_there_once(
    chapter: Chapter, plotted: dict[str, Sequence[int]], named: bool
) -> None:
    rows = [
        {"metric": "time", "unit": "us", "evidence": "measured", "samples": [float(at)],
         "experiment": "ramp", "variant": "base", "at": str(at)}
        for at in range(201)
    ]  # fmt: skip
    figures = [replace(chapter.figures[0], table=pd.DataFrame(plotted))]
    about = chapter.recipe.figures["speedup"].model_copy(update={"experiments": ("ramp",)})
    recipe = chapter.recipe.model_copy(update={"figures": {"speedup": about}})
    tables = result_tables(rows, Shape(metrics=["time"]))
    long = replace(chapter, recipe=recipe, tables=tables, figures=figures)
    page = html_page([long])
    link = 'ramp: its 201 rows are the plotted values of <a href="#toy-r1-speedup">'
    assert (link in page) == named
    assert ('aria-label="Results of ramp"' in page) == (not named)


def test_text_of_others_is_escaped(chapter: Chapter) -> None:
    page = html_page([chapter])
    assert "A &lt;toy&gt; paper" in page
    assert "<b>bold</b>" not in page
    assert "rpf's &lt;1&gt;,1.5" in page


def test_write_report_lists_its_chapters(chapter: Chapter, tmp_path: Path) -> None:
    page = write_report([chapter, chapter], tmp_path / "report")
    assert len(re.findall(r'href="#c\d"', page.read_text())) == 2
    assert {path.name for path in page.parent.iterdir()} == {"report.html", "assets"}
    assert filecmp.dircmp(page.parent / "assets", VENDOR).diff_files == []


def test_a_site_has_a_page_for_each_chapter(chapter: Chapter, tmp_path: Path) -> None:
    other = replace(chapter, results=replace(chapter.results, name="r2"))
    index = write_site([chapter, other], tmp_path / "site")
    assert index.name == "index.html"
    start = index.read_text()
    for name in ("toy-r1.html", "toy-r2.html"):
        assert f'href="{name}"' in start
        page = (index.parent / name).read_text()
        assert page.count("<h1") == 1
        assert 'href="index.html"' in page
        assert "OptMT gains 53 %." in page
        assert f"({name[4:6]}): Reproduction report</title>" in page
    assert "OptMT gains 53 %." not in start
    assert "magnitude" in start
    assert len(re.findall(r"\(toy, r\d\): [^<]*, in part with --quick\. ", start)) == 2


def test_vendored_code_is_what_was_published() -> None:
    lines = (VENDOR / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split() for line in lines)}
    there = {path.name for path in VENDOR.iterdir()} - {"SHA256SUMS"}
    assert set(sums) == there
    for name, digest in sums.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name
    licences = (VENDOR / "LICENSES.txt").read_text()
    for name in there - {"LICENSES.txt"}:
        package, _, version = name.removesuffix(".min.js").rpartition("-")
        assert f"{package} {version} (BSD-3-Clause)" in licences


def test_ctrl_c_while_figures_are_drawn(tmp_path: Path) -> None:
    """It reaches the whole group, as from a terminal, and nobody draws to the end."""
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-m", "ae", "report", "dlrm", "h200", "-o", str(tmp_path / "report")],
        cwd=root, env=os.environ | {"AE_ROOT": str(root)}, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as drawing:  # fmt: skip
        children = Path(f"/proc/{drawing.pid}/task/{drawing.pid}/children")
        while not children.read_text().split():
            assert drawing.poll() is None
            time.sleep(0.05)
        time.sleep(0.5)
        os.killpg(drawing.pid, signal.SIGINT)
        began = time.monotonic()
        out, err = drawing.communicate(timeout=60)
    assert (drawing.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert time.monotonic() - began < 3

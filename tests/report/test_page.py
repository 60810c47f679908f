"""The report: self-contained, complete, escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ae.claims.judge import Claim, Judgement, Verdict
from ae.records.files import Environment, Skip
from ae.records.models import Provenance, Source
from ae.records.results import Origin
from ae.report.drawing import Drawn
from ae.report.page import Chapter, html_report, markdown_report, write_report
from ae.report.tables import result_tables

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63606060"
    "00000004000160a2c5d90000000049454e44ae426082"
)


def claim(name: str, sentence: str, **facts: object) -> Claim:
    own = {"id": name, "figure": "Fig. 9", "sentence": sentence, "kind": "ratio", "unit": "x",
           "paper_hardware": "NVIDIA A100", "scored_on": ["A100"],
           "source": "abstract"}  # fmt: skip
    return Claim.model_validate({**own, **facts})


@pytest.fixture
def chapter(tmp_path: Path) -> Chapter:
    figures = tmp_path / "run" / "figures"
    figures.mkdir(parents=True)
    (figures / "speedup.png").write_bytes(PIXEL)
    (figures / "speedup.csv").write_text("variant,speedup\nrpf,1.5\n")
    rows = [
        {"metric": "kernel_time", "unit": "us", "evidence": "measured", "samples": samples,
         "n": 2, "experiment": "embedding", "point": "p", "repeat": 0, "variant": variant}
        for variant, samples in (("base", [40.0, 42.0]), ("rpf", [20.0, 21.0]))
    ]  # fmt: skip
    return Chapter(
        recipe="toy",
        title="A <toy> paper",
        paper="On toys & bags, VENUE 2024",
        url="https://example.org/paper",
        name="20240101T000000-abc",
        origins=[
            Origin(
                recipe="toy", run="20240101T000000-abc", created="2024-01-01T00:00:00+00:00",
                images={"ae/toy:cuda": "feedface" * 8},
                notes=("Measured with --quick.",), about=("Host: two | H200s.",),
                provenance=Provenance(
                    started="2024-01-01T00:00:00+00:00",
                    command=("run", "toy"),
                    source=Source(revision="deadbeef", dirty=True),
                    engine={"name": "docker", "detail": "Docker Engine 26.1"},
                ),
            ),
            Origin(recipe="toy", run="20240102T000000-def", created="2024-01-02T00:00:00+00:00"),
        ],
        environment=Environment.model_validate(
            {"gpu": "NVIDIA H200", "driver": "580.1", "clocks": {"sm": 1980}, "odd": float("nan")}
        ),
        tables=result_tables(
            rows, metric="kernel_time", keys=["variant"], baseline="base",
            skipped=[Skip(labels={"variant": "stock21"}, reason="the wheel was not at hand")],
        ),
        figures=[
            Drawn(name="speedup", png=figures / "speedup.png", csv=figures / "speedup.csv"),
            Drawn(name="sweep", reason="no record of experiment sweep"),
        ],
        captions={"speedup": "Speed-up | per dataset", "sweep": "Sweep"},
        judgements=[
            Judgement(
                claim=claim("D2", "OptMT gains 53 %.", reference=1.53), value=1.3,
                low=1.2, high=1.4, verdict=Verdict.DIRECTION, reason="judged on A100 only",
            ),
            Judgement(claim=claim("D5", "A <b>bold</b> one."), verdict=Verdict.NOT_TRANSCRIBED,
                      reason="nobody could read it"),
            Judgement(claim=claim("D6", "Both."), verdict=Verdict.NOT_REPRODUCED, reason="no"),
        ],
        unfinished=[("embedding-random", "timeout", "killed after 5 min")],
    )  # fmt: skip


class Tags(HTMLParser):
    """Collects what a browser would fetch, and checks that tags close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [v or "" for k, v in attrs if k in ("src", "srcset", "data", "poster")]
        assert tag not in ("script", "link", "iframe")
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_whole_and_fetches_nothing(chapter: Chapter) -> None:
    page = html_report([chapter])
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    for name in ("direction-holds", "not-transcribed", "not-reproduced"):
        assert f'<td class="v {name}">' in page
    assert len(tags.sources) == 1
    assert tags.sources[0].startswith("data:image/png;base64,")
    assert "url(" not in page


@pytest.mark.parametrize("kind", ["html", "markdown"])
def test_both_reports_say_everything(chapter: Chapter, tmp_path: Path, kind: str) -> None:
    text = html_report([chapter]) if kind == "html" else markdown_report([chapter], tmp_path)
    plain = re.sub(r"<[^>]+>", " ", text)
    for words in (
        "NVIDIA H200", "driver 580.1", "deadbeef with local changes", "Docker Engine 26.1",
        "20240101T000000-abc", "ae run toy", "1980", "Measured with --quick.",
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


def test_text_of_others_is_escaped(chapter: Chapter, tmp_path: Path) -> None:
    page = html_report([chapter])
    assert "A &lt;toy&gt; paper" in page
    assert "<b>bold</b>" not in page
    text = markdown_report([chapter], tmp_path)
    assert "<b>bold" not in text
    assert "two \\| H200s" in text
    width = {line.count("|") - line.count("\\|") for line in text.splitlines() if "D5" in line}
    assert width == {8}


def test_write_report_refers_to_figures_relative_to_itself(
    chapter: Chapter, tmp_path: Path
) -> None:
    page, text = write_report([chapter, chapter], tmp_path / "report")
    assert page.name == "report.html"
    match = re.search(r"!\[[^\]]*\]\(([^)]+)\)", text.read_text())
    assert match is not None
    assert (text.parent / match[1]).read_bytes() == PIXEL
    assert page.read_text().count('href="#c') == 2  # two chapters: a table of contents
    assert sorted(p.name for p in (tmp_path / "report").iterdir()) == ["report.html", "report.md"]

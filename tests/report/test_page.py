"""The report: self-contained, complete, escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from ae.figures.draw import Drawn
from ae.report.page import Chapter, Judgement, html_report, markdown_report, write_report
from ae.report.tables import result_tables

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63606060"
    "00000004000160a2c5d90000000049454e44ae426082"
)


class Skipped:
    labels = {"variant": "stock21"}  # noqa: RUF012
    reason = "the wheel of torch 2.1.0 was not at hand"


@pytest.fixture
def chapter(tmp_path: Path) -> Chapter:
    figures = tmp_path / "run" / "figures"
    figures.mkdir(parents=True)
    (figures / "speedup.png").write_bytes(PIXEL)
    (figures / "speedup.csv").write_text("variant,speedup\nrpf,1.5\n")
    frame = pd.DataFrame(
        [
            {"metric": "kernel_time", "unit": "us", "evidence": "measured", "samples": samples,
             "n": 2, "experiment": "embedding", "point": "p", "repeat": 0, "variant": variant}
            for variant, samples in (("base", [40.0, 42.0]), ("rpf", [20.0, 21.0]))
        ]
    )  # fmt: skip
    return Chapter(
        recipe="toy",
        title="A <toy> paper",
        paper="On toys & bags, VENUE 2024",
        url="https://example.org/paper",
        run="20240101T000000-abc",
        provenance={
            "started": "2024-01-01T00:00:00+00:00",
            "command": ["run", "toy"],
            "source": {"revision": "deadbeef", "dirty": True},
            "engine": {"name": "docker", "detail": "Docker Engine 26.1"},
        },
        environment={"gpu": "NVIDIA H200", "driver": "580.1", "clocks": {"sm": 1980}},
        tables=result_tables(
            frame, metric="kernel_time", keys=["variant"], baseline="base", skipped=[Skipped()]
        ),
        figures=[
            Drawn(name="speedup", png=figures / "speedup.png", csv=figures / "speedup.csv"),
            Drawn(name="sweep", reason="no record of experiment sweep"),
        ],
        captions={"speedup": "Speed-up | per dataset", "sweep": "Sweep"},
        judgements=[
            Judgement(
                id="D2", sentence="OptMT gains 53 %.", verdict="direction holds", value=1.3,
                low=1.2, high=1.4, reference=1.53, unit="x", source="abstract",
                reason="judged on A100 only",
            ),
            Judgement(id="D5", sentence="A <b>bold</b> one.", verdict="not transcribed"),
        ],
        unfinished=[("embedding-random", "timeout", "killed after 5 min")],
        notes=["Measured with --quick."],
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
        "judged on A100 only", "2 claims: 1 direction holds, 1 not transcribed",
        "41", "20.50", "2.00x over base",
        "not drawn, no record of experiment sweep",
        "variant stock21", "the wheel of torch 2.1.0 was not at hand",
        "point embedding-random (timeout)", "killed after 5 min",
    ):  # fmt: skip
        assert words in plain, words


def test_text_of_others_is_escaped(chapter: Chapter, tmp_path: Path) -> None:
    page = html_report([chapter])
    assert "A &lt;toy&gt; paper" in page
    assert "<b>bold</b>" not in page
    text = markdown_report([chapter], tmp_path)
    assert "<b>bold" not in text


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

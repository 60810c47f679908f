"""The report: self-contained, complete, escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ae.claims.judge import Claim, Judgement, Verdict
from ae.model import Status
from ae.recipe.load import load_recipe
from ae.records.files import Environment, PointRecords
from ae.records.models import Provenance, Source, StatusRecord
from ae.records.results import Origin, PointResult, Results
from ae.report.chapter import Chapter, Drawn, html_report, write_report
from ae.report.tables import Shape, result_tables
from tests.toy import make_toy

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63606060"
    "00000004000160a2c5d90000000049454e44ae426082"
)


def claim(name: str, sentence: str, **facts: object) -> Claim:
    own = {"id": name, "figure": "Fig. 9", "sentence": sentence, "tag": "magnitude", "unit": "x",
           "paper_hardware": "NVIDIA A100", "scored_on": ["A100"],
           "source": "abstract"}  # fmt: skip
    return Claim.model_validate({**own, **facts})


@pytest.fixture
def chapter(tmp_path: Path) -> Chapter:
    png, table = tmp_path / "speedup.png", tmp_path / "speedup.csv"
    png.write_bytes(PIXEL)
    table.write_text("variant,speedup\nrpf,1.5\n")
    rows = [
        {"metric": "kernel_time", "unit": "us", "evidence": "measured", "samples": samples,
         "experiment": "embedding", "variant": variant}
        for variant, samples in (("base", [40.0, 42.0]), ("rpf", [20.0, 21.0]))
    ]  # fmt: skip
    shape = Shape(metric="kernel_time", keys=["variant"], baseline="base")
    origins = (
        Origin(
            recipe="toy", run="20240101T000000-abc", created="2024-01-01T00:00:00+00:00",
            images={"ae/toy:cuda": "feedface" * 8},
            notes=("Measured with --quick.",), about=("Host: two | H200s.",),
            provenance=Provenance(
                command=("run", "toy"),
                source=Source(revision="deadbeef", dirty=True),
                engine={"name": "docker", "detail": "Docker Engine 26.1"},
            ),
        ),
        Origin(recipe="toy", run="20240102T000000-def", created="2024-01-02T00:00:00+00:00"),
    )  # fmt: skip
    facts = {"gpu": "NVIDIA H200", "driver": "580.1", "clocks": {"sm": 1980}, "odd": float("nan")}
    points = [
        PointResult(
            status=StatusRecord(
                id=name, key=name, status=status, seconds=1.0, ended="2024",
                experiment="embedding", labels={}, reason=reason,
            ),
            found=PointRecords(environment=Environment.model_validate(facts)),
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
            Drawn(name="speedup", files={"png": png, "csv": table}),
            Drawn(name="sweep", reason="no record of experiment sweep"),
        ],
        judgements=[
            Judgement(
                claim=claim("D2", "OptMT gains 53 %.", reference=1.53), value=1.3,
                low=1.2, high=1.4, verdict=Verdict.DIRECTION, reason="judged on A100 only",
            ),
            Judgement(claim=claim("D5", "A <b>bold</b> one."), verdict=Verdict.NOT_TRANSCRIBED,
                      reason="nobody could read it"),
            Judgement(claim=claim("D6", "Both."), verdict=Verdict.NOT_REPRODUCED, reason="no"),
        ],
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


def test_the_report_says_everything(chapter: Chapter) -> None:
    plain = re.sub(r"<[^>]+>", " ", html_report([chapter]))
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


def test_text_of_others_is_escaped(chapter: Chapter) -> None:
    page = html_report([chapter])
    assert "A &lt;toy&gt; paper" in page
    assert "<b>bold</b>" not in page


def test_write_report_lists_its_chapters(chapter: Chapter, tmp_path: Path) -> None:
    page = write_report([chapter, chapter], tmp_path / "report")
    assert page.read_text().count('href="#c') == 2
    assert [path.name for path in (tmp_path / "report").iterdir()] == ["report.html"]

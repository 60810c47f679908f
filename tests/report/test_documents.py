"""Numbers in documents are those of the reference sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from ae.errors import UsageError
from ae.report.documents import fill, rounded
from ae.statistics import Interval

ROOT = Path(__file__).resolve().parents[2]
KERNEL = "median(kernel_time, experiment=embedding, variant=best, launch=one_table)"


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AE_RESULTS", str(ROOT / "results"))
    (tmp_path / "docs").mkdir()
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / "images").symlink_to(ROOT / "images")
    return tmp_path


@pytest.mark.slow
def test_this_projects_documents() -> None:
    assert fill(ROOT, write=False) == []
    (board,) = [path for path in ROOT.glob("*.md") if "<!-- ae scoreboard" in path.read_text()]
    assert "| dlrm | order |" in board.read_text()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Interval(79.93, 79.7, 80.1, "ci95", 5, 1), "79.9"),
        (Interval(1234.5, 1200, 1260, "range", 3, 1), "1,230"),
        (Interval(1.00012, 1.00011, 1.00013, "range", 2, 1), "1.00"),
        (Interval(-0.98765, -0.9877, -0.9876, "range", 4, 1), "-0.988"),
        (Interval(0.0, -0.1, 0.1, "range", 2, 1), "0.0"),
        (Interval(-0.012, -0.5, 0.1, "ci95", 5, 1), "0.0"),
        (Interval(1234.5, 1234.5, 1234.5, "ci95", 5, 1), "1,234.5"),
        (Interval(1234.5, 1234.5, 1234.5, "range", 3, 1), "1,200"),
        (Interval(102.5, 102.5, 102.5, "none", 1, 1), "100"),
        (Interval(0.8266, 0.8266, 0.8266, "none", 1, 1), "0.83"),
        (Interval(876.12, 876.12, 876.12, "none", 0, 0), "876.12"),
        (Interval(0.0, 0.0, 0.0, "none", 1, 1), "0"),
    ],
)
def test_digits_are_those_that_the_spread_allows(value: Interval, said: str) -> None:
    assert rounded(value) == said


@pytest.mark.parametrize("space", [" ", "\n"])  # a long line is broken anywhere
def test_a_number_is_filled_where_a_comment_asks_for_it(house: Path, space: str) -> None:
    asked = f"<!--{space}ae h200/dlrm {KERNEL.replace('best', 'best, dataset=random')} -->"
    (house / "README.md").write_text(
        f"Best: {asked}1<!-- / --> us\n\n```\n{asked}1<!-- / -->\n```\n"
    )
    (change,) = fill(house, write=False)
    assert (change.place, change.stands) == ("README.md:1", "1")
    assert 30 < float(change.should) < 40
    assert "1<!-- / --> us" in (house / "README.md").read_text()  # nothing was written
    fill(house, write=True)
    assert (house / "README.md").read_text() == (
        f"Best: {asked}{change.should}<!-- / --> us\n\n```\n{asked}1<!-- / -->\n```\n"
    )
    assert fill(house, write=False) == []


def test_a_claims_value_and_a_table(house: Path) -> None:
    (house / "README.md").touch()
    (house / "docs" / "one.md").write_text(
        "<!-- ae h200/dlrm B1 --><!-- / -->\n\n<!-- ae\nset: h200/dlrm\nlabel: dataset\n"
        f"columns: {{random: Random}}\nrows: {{Best: '{KERNEL}'}}\n-->\n<!-- / -->\n"
    )
    fill(house, write=True)
    lines = (house / "docs" / "one.md").read_text().splitlines()
    assert float(lines[0].removeprefix("<!-- ae h200/dlrm B1 -->").removesuffix("<!-- / -->"))
    assert "|  | Random |" in lines
    assert any(line.startswith("| Best | 3") for line in lines)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("h200/nothing D1", "no reference set 'h200/nothing'"),
        ("cpu/valueexpert Q99", "no number for a claim 'Q99'"),
        ("h200/dlrm median(kernel_time, variant=nobody)", "no records"),
        ("h200/dlrm medium(kernel_time)", "no function 'medium'"),
        ("set: h200/dlrm\nrows: {}", "columns"),
        ("set: [", "while parsing"),
    ],
)
def test_what_is_not_there_is_said_with_its_place(house: Path, asked: str, why: str) -> None:
    (house / "README.md").write_text(f"one\n\n<!-- ae {asked} -->2<!-- / -->\n")
    with pytest.raises(UsageError, match=r"^README.md:3: ") as caught:
        fill(house, write=True)
    assert why in caught.value.message
    assert "-->2<!--" in (house / "README.md").read_text()

"""The reference results that are kept: verdicts by today's claims, figures that still draw, and
that looking at them changes nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ae.__main__ import guarded
from ae.claims.verdicts import verdict_lines
from ae.recipe.models import load_recipe
from ae.records.reference import load_reference
from ae.records.results import Results
from ae.report.chapter import draw_figures, judge_results

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "results" / "reference"
SETS = [path.relative_to(REFERENCE).parent for path in sorted(REFERENCE.glob("*/*/runs"))]
KEPT = {"records.jsonl", "skipped.jsonl", "status.json", "environment.json"}


@pytest.fixture(scope="module", params=SETS, ids=str)
def results(request: pytest.FixtureRequest) -> Results:
    return load_reference(REFERENCE / request.param)


def test_verdicts_are_of_todays_claims(results: Results) -> None:
    judged = judge_results(ROOT, load_recipe(ROOT, results.recipe), results)
    assert verdict_lines(judged) == (results.path / "verdicts.txt").read_text()


def test_every_figure_draws(results: Results) -> None:
    drawn = draw_figures(ROOT, load_recipe(ROOT, results.recipe), results, None)
    without = {one.name for one in drawn if one.reason}
    # The large models were never traced on the CPU as well.
    assert without == ({"extrapolation"} if results.name == "h200" and len(drawn) == 10 else set())
    assert drawn


def test_every_point_has_a_clean_origin_and_no_logs(results: Results) -> None:
    for origin in results.origins:
        assert re.fullmatch("[0-9a-f]{40}", origin.provenance["source"]["revision"])
        assert set(origin.provenance["source"]) == {"revision"}
        assert all(re.fullmatch("[0-9a-f]{64}", content) for content in origin.images.values())
        assert origin.reduced == ()
    assert all(point.done for point in results.points)
    for path in results.path.rglob("*"):
        if path.is_file() and path.parent.name not in ("runs", results.path.name):
            assert path.name in KEPT, path


def test_what_was_promised_of_table_v_holds_on_an_h200() -> None:
    lines = (REFERENCE / "h200/pasta/verdicts.txt").read_text().splitlines()
    verdicts = dict(line.split(" ", 1) for line in lines)
    rows = [n for n in range(1, 14) if n != 7]  # T5.7 and T5.14 are the averages
    for row in rows:
        assert verdicts[f"T5.{row}"] == verdicts[f"T5.{row}-max"] == "reproduced", row
    assert verdicts["T5.17"] == verdicts["T5.18"] == "reproduced"


def test_looking_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def state() -> dict[Path, tuple[int, bytes]]:
        files = (path for path in sorted(REFERENCE.rglob("*")) if path.is_file())
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = state()
    folders = {path.parent for path in before}
    for words in (
        ["plot", "pasta", "h200x2", "-o", str(tmp_path)],
        ["check", "pasta", str(REFERENCE / "h200x2/pasta")],
        ["table", "pasta", "h200x2", "--format", "csv"],
        ["report", "pasta", "h200x2", "-o", str(tmp_path)],
        ["show", "pasta"],
    ):
        assert guarded(words) in (0, 1), capsys.readouterr().err
        assert capsys.readouterr().out
    assert state() == before
    assert {path for path in REFERENCE.rglob("*") if path.is_dir()} >= folders
    assert {path.name for path in (tmp_path / "figures/pasta-h200x2").iterdir()} == {
        "memory.csv", "memory.pdf", "memory.png",
    }  # fmt: skip
    assert "memory.png" in (tmp_path / "report.md").read_text()

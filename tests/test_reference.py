"""The reference results that are kept: verdicts by today's claims, figures that still draw, and
that looking at them changes nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ae.__main__ import guarded
from ae.claims.judge import verdict_lines
from ae.plan.selection import is_protocol
from ae.recipe.load import load_recipe
from ae.records.models import Source
from ae.records.results import Results, load_reference
from ae.report.chapter import draw_figures, judge_results

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "results" / "reference"
SETS = [
    path.relative_to(REFERENCE).parent
    for path in sorted(REFERENCE.glob("*/*/runs"))
    if (ROOT / "recipes" / path.parent.name).is_dir()
]
KEPT = {"records.jsonl", "skipped.jsonl", "status.json", "environment.json"}


@pytest.fixture(scope="module", params=SETS, ids=str)
def results(request: pytest.FixtureRequest) -> Results:
    return load_reference(REFERENCE / request.param)


def test_verdicts_are_of_todays_claims(results: Results) -> None:
    judged = judge_results(ROOT, load_recipe(ROOT, results.recipe), results)
    assert verdict_lines(judged) == (results.path / "verdicts.txt").read_text()


def test_every_figure_draws(results: Results) -> None:
    drawn = draw_figures(ROOT, load_recipe(ROOT, results.recipe), results, None)
    assert any(not one.reason for one in drawn)
    assert all(one.reason.startswith("no record of metric") for one in drawn if one.reason)
    for table in (one.table for one in drawn if one.table is not None and "low" in one.table):
        ends = table.dropna(subset=["low", "high"])
        plotted = ends.select_dtypes("number").drop(columns=["low", "high"])
        within = plotted.ge(ends["low"], axis=0) & plotted.le(ends["high"], axis=0)
        assert within.any(axis=1).all(), table  # each value lies within its interval


def test_every_point_has_a_clean_origin_and_no_logs(results: Results) -> None:
    for origin in results.origins:
        source = origin.provenance.source
        assert source.revision
        assert re.fullmatch("[0-9a-f]{40}", source.revision)
        assert source == Source(revision=source.revision)
        assert all(re.fullmatch("[0-9a-f]{64}", content) for content in origin.images.values())
        assert all(map(is_protocol, origin.reduced))
    assert all(point.done for point in results.points)
    for path in results.path.rglob("*"):
        if path.is_file() and path.parent.name not in ("runs", results.path.name):
            assert path.name in KEPT, path


def test_processes_of_a_point_are_of_one_image(results: Results) -> None:
    """`ae keep` replaces process by process: where it ended halfway, the older ones must go."""
    contents: dict[str, set[str]] = {}
    for point in results.points:
        one = point.status
        place = f"{one.experiment} {sorted(one.labels.items())} {one.variants}"
        contents.setdefault(place, set()).add(point.origin.images[one.image])
    assert {place for place, found in contents.items() if len(found) > 1} == set()


@pytest.mark.skipif(not SETS, reason="no reference set of a recipe that is here")
def test_looking_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine, recipe = min(SETS, key=lambda one: len(list((REFERENCE / one).rglob("*")))).parts

    def state() -> dict[Path, tuple[int, bytes]]:
        files = (path for path in sorted(REFERENCE.rglob("*")) if path.is_file())
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before, folders = state(), {path for path in REFERENCE.rglob("*") if path.is_dir()}
    for words in (
        ["plot", recipe, machine, "-o", str(tmp_path)],
        ["check", recipe, str(REFERENCE / machine / recipe)],
        ["table", recipe, machine, "--format", "csv"],
        ["report", recipe, machine, "-o", str(tmp_path)],
        ["show", recipe],
    ):
        assert guarded(words) in (0, 1), capsys.readouterr().err
        assert capsys.readouterr().out
    assert state() == before
    assert {path for path in REFERENCE.rglob("*") if path.is_dir()} == folders
    drawn = {path.name for path in (tmp_path / f"figures/{recipe}-{machine}").glob("*.png")}
    assert drawn
    assert (tmp_path / "report.html").read_text().count("data:image/svg") == len(drawn)

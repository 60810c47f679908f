"""From results to a chapter: which figures, whose notes, what did not finish, what is printed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from ae.model import Status
from ae.recipe.load import load_recipe
from ae.recipe.models import Recipe
from ae.records.files import Environment, PointRecords, Record, Skip
from ae.records.models import Provenance, StatusRecord
from ae.records.results import Origin, PointResult, Results
from ae.report.chapter import (
    Chapter,
    Drawn,
    chapter_text,
    compose,
    draw_figures,
    figures_text,
    tables_of,
)
from ae.report.page import html_page
from tests.toy import make_toy


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_toy(tmp_path / "toy")


@pytest.fixture
def recipe(root: Path) -> Recipe:
    return load_recipe(root, "toy")


def result(name: str, status: Status, *records: Record, **facts: object) -> PointResult:
    about = StatusRecord(
        id=name, key=name, status=status, seconds=1.0, ended="2026",
        experiment=name.partition("-")[0],
        labels={"dataset": "ones"}, reason=str(facts.get("reason", "")),
    )  # fmt: skip
    found = PointRecords(
        records=records, skipped=facts.get("skipped", ()), environment=Environment(gpu="Toy GPU 1")
    )  # fmt: skip
    return PointResult(status=about, found=found, origin=ORIGIN, folder=Path(name))


def record(variant: str, *samples: float) -> Record:
    return Record(
        metric="work_time", unit="us", samples=samples, labels={"variant": variant},
        evidence="measured",
    )  # fmt: skip


ORIGIN = Origin(
    recipe="toy",
    run="r1",
    created="2026",
    notes=("left out: y",),
    provenance=Provenance(about=("Host: x.",)),
)
TIMES = (record("slow", 80.0, 81.0, 79.0), record("fast", 10.0, 10.1, 9.9))


@pytest.fixture
def results() -> Results:
    points = (
        result("together-ones", Status.DONE, *TIMES,
               skipped=(Skip(labels={"variant": "v"}, reason="no abacus"),)),
        result("apart-a", Status.SKIPPED, reason="no GPU here"),
        result("apart-b", Status.TIMEOUT, *TIMES, reason="killed after 5 min"),
        result("apart-c", Status.INTERRUPTED),
    )  # fmt: skip
    return Results(path=Path(), name="r1", recipe="toy", points=points, origins=(ORIGIN,))


def made(root: Path, recipe: Recipe, results: Results, out: Path) -> Chapter:
    return compose(root, recipe, results, draw_figures(root, recipe, results, out))


def test_a_chapter_holds_what_was_done_and_says_what_was_not(
    root: Path, recipe: Recipe, results: Results, tmp_path: Path
) -> None:
    chapter = made(root, recipe, results, tmp_path / "out")
    assert [one.name for one in chapter.figures] == ["times"]
    endings = {path.suffix for path in (tmp_path / "out").iterdir()}
    assert endings == {".csv", ".pdf", ".png", ".svg"}
    plain = re.sub(r"<[^>]+>", "", html_page([chapter]))
    assert (
        "point apart-b (timeout)killed after 5 min\npoint apart-c (interrupted)no reason" in plain
    )
    (table,) = chapter.tables  # a point that did not finish is in no table
    assert [(row[table.keys[-1]], row["median"], row["speedup"]) for row in table.rows] == [
        ("slow", 80.0, None), ("fast", 10.0, pytest.approx(8.0)),
    ]  # fmt: skip
    assert {reason for _, reason in chapter.skipped} == {"no abacus", "no GPU here"}
    assert chapter.notes == ["left out: y", "Host: x."]
    others = [
        ORIGIN.model_copy(update=each) for each in ({"run": "r2"}, {"run": "r3", "notes": ("z",)})
    ]
    several = replace(chapter, results=replace(chapter.results, origins=(ORIGIN, *others)))
    assert several.notes == ["2 of 3 runs: left out: y", "Host: x.", "run r3: z"]
    verdicts = {one.id: str(one.verdict) for one in chapter.judgements}
    assert verdicts["T1"] == "not run"  # one of its two cells: the other was not done
    assert verdicts["T4"] == "not comparable"
    assert chapter.machine == "GPU: Toy GPU 1"


def test_what_is_drawn_only_is_in_no_table(recipe: Recipe, results: Results) -> None:
    (table,), _ = tables_of(recipe, results)
    drawn = recipe.table.model_copy(update={"drawn": (table.metric,)})
    left, skipped = tables_of(recipe.model_copy(update={"table": drawn}), results)
    assert table.metric not in {one.metric for one in left}
    assert skipped == tables_of(recipe, results)[1]


def test_a_figure_of_an_experiment_without_records_is_not_drawn(
    root: Path, recipe: Recipe, results: Results, tmp_path: Path
) -> None:
    renamed = recipe.figures["times"].model_copy(update={"experiments": ("apart",)})
    other = recipe.model_copy(update={"figures": {"times": renamed}})
    assert made(root, other, results, tmp_path / "out").figures == []
    assert not (tmp_path / "out").exists()


def test_what_a_run_prints_fits_a_screen(
    root: Path, recipe: Recipe, results: Results, tmp_path: Path
) -> None:
    chapter = made(root, recipe, results, tmp_path / "out")
    text = chapter_text(chapter)
    assert "8.00x over slow" in text
    assert "skipped variant v" in text
    assert f"figures: {tmp_path / 'out'}: times.png" in text
    assert "claims: " in text
    assert "note: left out: y" in text
    (table,) = chapter.tables
    long = replace(table, rows=table.rows * 100)
    assert len(chapter_text(replace(chapter, tables=[long] * 4)).splitlines()) < 50
    assert "196 more rows" in chapter_text(replace(chapter, tables=[long] * 4))


@pytest.mark.parametrize("words", [1, 60])
def test_the_foot_of_a_figure_is_not_cut_off(
    root: Path, recipe: Recipe, results: Results, monkeypatch: pytest.MonkeyPatch, words: int
) -> None:
    feet: list[Text] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: feet.append(figure.texts[-1]))
    monkeypatch.setattr("ae.report.chapter.face", lambda *_: "median " * words)
    made(root, recipe, results, root / "out")
    foot = feet[0]
    assert foot.get_window_extent().x1 <= foot.figure.bbox.x1
    assert (foot.get_fontsize() == 7.5) == (words == 1)


def test_figures_say_why_they_are_not_there() -> None:
    drawn = [Drawn(name="a", files={"png": Path("x/a.png")}), Drawn(name="b", reason="no records")]
    assert figures_text(drawn) == "figures: x: a.png\nno figure b: no records"
    assert figures_text([]) == ""

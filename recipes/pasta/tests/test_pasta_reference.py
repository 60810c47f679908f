"""PASTA's reference results: which figures draw, and what was promised of Table V."""

from __future__ import annotations

from pathlib import Path

from ae.recipe.load import load_recipe
from ae.records.results import load_reference
from ae.report.chapter import draw_figures

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = ROOT / "results" / "reference"


def test_every_figure_but_one_draws() -> None:
    results = load_reference(REFERENCE / "h200/pasta")
    drawn = draw_figures(ROOT, load_recipe(ROOT, "pasta"), results, None)
    # The large models were never traced on the CPU as well.
    assert {one.name for one in drawn if one.reason} == {"extrapolation"}
    assert len(drawn) == 12


def test_what_was_promised_of_table_v_holds_on_an_h200() -> None:
    lines = (REFERENCE / "h200/pasta/verdicts.txt").read_text().splitlines()
    verdicts = dict(line.split(" ", 1) for line in lines)
    rows = [n for n in range(1, 14) if n != 7]  # T5.7 and T5.14 are the averages
    for row in rows:
        assert verdicts[f"T5.{row}"] == verdicts[f"T5.{row}-max"] == "reproduced", row
    assert verdicts["T5.17"] == verdicts["T5.18"] == "reproduced"

"""PASTA's reference results: figures that still draw, and what was promised of Table V."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ae.__main__ import guarded

ROOT = Path(__file__).resolve().parents[3]
PASTA = sorted(path.parent for path in ROOT.glob("results/reference/*/pasta/run.json"))


def place(run: Path) -> str:
    return run.parent.name


@pytest.mark.parametrize("run", PASTA, ids=place)
def test_pastas_runs_draw(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("figures"))
    assert guarded(["plot", "pasta", str(copy)]) == 0, capsys.readouterr().err
    drawn = {path.stem for path in (copy / "figures").glob("*.png")}
    assert drawn == {path.stem for path in (run / "figures").glob("*.png")}


def test_what_was_promised_of_table_v_holds_on_an_h200() -> None:
    (run,) = (run for run in PASTA if place(run) == "h200")
    verdicts = {
        c["id"]: c["verdict"] for c in json.loads((run / "claims.json").read_text())["claims"]
    }
    rows = [n for n in range(1, 14) if n != 7]  # T5.7 and T5.14 are the averages
    for row in rows:
        assert verdicts[f"T5.{row}"] == verdicts[f"T5.{row}-max"] == "reproduced", row
    assert verdicts["T5.17"] == verdicts["T5.18"] == "reproduced"

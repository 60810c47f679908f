"""The experiment `sharing`: its plan, its claims, its figure."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from reprokit.records import RecordWriter
from valueexpert.cli import PROGRAM
from valueexpert.experiments.sharing import run

from ae.claims.tables import load_claims
from ae.figures.draw import STYLE, NoData
from ae.recipe.code import load_code
from ae.records.files import Row, frame
from ae.report.views import view
from tests.judged import judge

ROOT = Path(__file__).resolve().parents[3]
FIGURES = load_code(ROOT / "recipes/valueexpert", "figures")
CLAIMS = {"GP-01-sharing", "GP-01-faults"}


def row(record: dict[str, Any]) -> Row:
    return Row(
        metric=record["metric"], unit=record["unit"], evidence=record["evidence"],
        samples=tuple(record["samples"]), experiment="sharing", point="sharing", repeat=1,
        labels=record["labels"],
    )  # fmt: skip


@cache
def records() -> tuple[Row, ...]:
    """What the workload itself writes."""
    with tempfile.TemporaryDirectory() as folder:
        run(PROGRAM.parse(["sharing"]), RecordWriter(Path(folder)))
        lines = (Path(folder) / "records.jsonl").read_text().splitlines()
    return tuple(row(json.loads(line)) for line in lines)


def spoilt(metric: str, value: float, **labels: str) -> dict[str, str]:
    """Verdicts where the records of a metric with these labels have another value."""
    rows = []
    for one in records():
        hit = one.metric == metric and labels.items() <= dict(one.labels).items()
        rows.append(
            row({"metric": one.metric, "unit": one.unit, "evidence": one.evidence,
                 "samples": [value] if hit else one.samples, "labels": dict(one.labels)})
        )  # fmt: skip
    return verdicts(rows)


def verdicts(rows: list[Row]) -> dict[str, str]:
    found = judge(load_claims(ROOT, "valueexpert"), rows, {})
    return {one.id: str(one.verdict) for one in found if one.id in CLAIMS}


def test_claims_hold_on_the_trace_and_fail_where_they_should() -> None:
    assert verdicts(list(records())) == dict.fromkeys(CLAIMS, "reproduced")
    assert verdicts([]) == dict.fromkeys(CLAIMS, "not run")
    wrong = "not reproduced"
    for page in ("4096", "65536", "2097152"):
        assert spoilt("kinds_right", 0.9, variant="after", page=page)["GP-01-sharing"] == wrong
        assert spoilt("faults_right", 0, variant="before", page=page)["GP-01-faults"] == wrong
    found = spoilt("pages", 1, variant="after", page="4096", kind="false")
    assert found == {"GP-01-sharing": wrong, "GP-01-faults": "reproduced"}


def test_the_figure_draws_every_page_and_window() -> None:
    with mpl.rc_context(STYLE):
        plot = FIGURES.sharing(frame(list(records())))
    plot.figure.canvas.draw()
    before = plot.table[plot.table["variant"] == "before"]
    assert before["row"].nunique() == 8
    cells = before[before["object"] == "cells"]
    assert cells["kind"].value_counts().to_dict() == {"false": 6 * 8, "cpu": 6}
    after = plot.table[plot.table["variant"] == "after"]
    assert "false" not in set(after["kind"])
    assert {"n", "evidence"} <= set(plot.table)
    assert set(plot.table["evidence"]) == {"static"}
    shown = view(plot.table)
    assert shown is not None
    assert shown["facet"]["sort"][:2] == ["before, cells", "before, factors"]
    fields = {key: one["field"] for key, one in shown["spec"]["layer"][0]["encoding"].items()
              if "field" in one}  # fmt: skip
    assert fields == {"x": "start_window", "x2": "end_window", "y": "kind", "color": "kind"}
    with pytest.raises(NoData):
        FIGURES.sharing(frame([]))

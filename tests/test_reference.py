"""The reference results that are kept: verdicts by today's claims, and figures that still draw."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ae.__main__ import guarded

ROOT = Path(__file__).resolve().parents[1]
RUNS = sorted(
    path.parent for path in ROOT.glob("results/reference/*/*/run.json")
    if (ROOT / "recipes" / path.parent.name).is_dir()
)  # fmt: skip


def place(run: Path) -> str:
    return run.parent.name


def judged(run: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `ae check` says of a copy."""
    copy = folder / "run"
    shutil.copytree(run, copy)
    guarded(["check", run.name, str(copy), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.name}-{place(run)}")
def test_verdicts_are_of_todays_claims(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = json.loads((run / "claims.json").read_text())
    found = judged(run, tmp_path, capsys)
    assert {c["id"]: c["verdict"] for c in kept["claims"]} == {
        c["id"]: c["verdict"] for c in found["claims"]
    }

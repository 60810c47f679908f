"""The tests of recipes have the launcher's guard against daemons and networks, its engine, and a
command line in a checkout that has their recipe alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.calling import Ae, caller
from tests.conftest import _guard, docker_endpoint, docker_host
from tests.h200 import machine

__all__ = ["_guard", "ae", "docker_endpoint", "docker_host"]


@pytest.fixture
def ae(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Ae:
    """`ae` with the recipe of the test, on a machine with two H200s: code, output, errors."""
    recipe = request.path.parents[1]
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / recipe.name).symlink_to(recipe)
    for name in (recipe.name, f"{recipe.name}-upstream"):
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "Dockerfile").write_text("FROM scratch\n")
    monkeypatch.setenv("AE_ROOT", str(tmp_path))
    monkeypatch.setattr("ae.commands.asked.detect", lambda: machine(2))
    return caller(capsys)

"""What CI expects of a recipe (recipes/<name>/tests/expected.yaml) is in the recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ae.claims.tables import load_claims
from ae.recipe.load import load_recipe

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(ROOT.glob("recipes/*/tests/expected.yaml"))
KEYS = {"engines", "build", "run", "figures", "verdicts", "variants"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parents[1].name)
def test_what_is_expected_is_in_the_recipe(path: Path) -> None:
    name = path.parents[1].name
    said: dict[str, Any] = yaml.safe_load(path.read_text())
    recipe = load_recipe(ROOT, name)
    assert set(said) <= KEYS
    assert set(said["figures"]) <= set(recipe.figures)
    assert set(said["verdicts"]) <= {claim.id for claim in load_claims(ROOT, name)}
    for experiment, variants in said.get("variants", {}).items():
        assert set(variants) <= set(recipe.variants_of(experiment))
    for variable, value in said.get("build", {}).items():
        assert isinstance(value, str)
        assert f"ARG {variable}=" in (ROOT / "images" / name / "Dockerfile").read_text()
    assert all(isinstance(word, str) for word in said.get("run", []))


def test_every_native_recipe_says_what_is_expected() -> None:
    folders = [path.parent for path in ROOT.glob("recipes/*/recipe.yaml")]
    native = {one.name for one in folders if "native" in load_recipe(ROOT, one.name).lanes}
    assert native == {path.parents[1].name for path in FILES}

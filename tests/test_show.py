"""`ae list` and `ae show`: every recipe of this repository, and the toy by its values."""

from __future__ import annotations

from pathlib import Path

import pytest

from ae.claims.tables import load_claims
from ae.commands.show import list_text, show_text, whole_text
from ae.recipe.load import list_recipes, load_recipe
from tests.toy import make_toy

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", list_recipes(ROOT))
def test_a_recipe_fits_a_screen(name: str) -> None:
    recipe = load_recipe(ROOT, name)
    lines = show_text(recipe, load_claims(ROOT, name)).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    shown = "\n".join(lines)
    for experiment in recipe.plain_run()[1]:
        assert f"\n  {experiment} " in shown
    for variant in recipe.variants:
        assert f" {variant}:" in shown


def test_a_list_fits_80_columns() -> None:
    recipes = [load_recipe(ROOT, name) for name in list_recipes(ROOT)]
    lines = list_text(recipes).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) == 1 + sum(len(recipe.lanes) for recipe in recipes) + 2
    assert list_text([]) == "no recipe yet"


def test_the_toy_as_a_person_sees_it(tmp_path: Path) -> None:
    root = make_toy(tmp_path)
    recipe, claims = load_recipe(root, "toy"), load_claims(root, "toy")
    assert [line.split()[:2] for line in list_text([recipe]).splitlines()[1:3]] == [
        ["toy", "native"],
        ["toy", "upstream*"],
    ]
    lines = show_text(recipe, claims).splitlines()
    run = lines.index("`ae run toy`: 8 s, 6 MB, no GPU")
    assert lines[run + 1].split()[:6] == ["together", "no", "GPU", "2", "points", "4"]
    assert lines[run + 2].split()[:6] == ["apart", "no", "GPU", "4", "points", "4"]
    assert lines[run + 3].startswith("  by name (--experiment): noop, either, gpu_only, ")
    assert f"{len(claims)} claims by source: " in lines[-2]
    both = [recipe.model_copy(update={"lanes": {"native": recipe.lanes["native"]}})]
    assert "nobody" not in list_text(both)


def test_gpus_of_a_plain_run_are_the_most_that_any_point_asks_for(tmp_path: Path) -> None:
    root = make_toy(tmp_path)
    path = root / "recipes" / "toy" / "recipe.yaml"
    text = path.read_text().replace("\n    gpu: none\n", "\n    gpu: optional\n")
    for need, said in (
        ("{count: 1, min_memory: 3GB, why: x}", "1 GPU of 3 GB"),
        ("{count: 4, min_memory: 2GiB, why: x}", "up to 4 GPUs of 2.15 GB"),
    ):
        path.write_text(text.replace("\nneeds:\n", f"\nneeds:\n  gpus: {need}\n"))
        assert f"`ae run toy`: 8 s, 6 MB, {said}\n" in show_text(load_recipe(root, "toy"), [])


def test_all_of_it_is_the_recipe_in_its_own_words_and_every_claim(tmp_path: Path) -> None:
    root = make_toy(tmp_path)
    recipe, claims = load_recipe(root, "toy"), load_claims(root, "toy")
    text = whole_text(recipe, claims, root)
    assert text.startswith((root / "recipes/toy/recipe.yaml").read_text().rstrip())
    assert all(f"  {claim.id} " in text and claim.sentence in text for claim in claims)
    assert text.count("(not transcribed)") == sum(not claim.transcribed for claim in claims)

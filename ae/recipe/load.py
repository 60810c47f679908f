"""Where recipes are found, and how one is read and checked."""

from __future__ import annotations

import os
from pathlib import Path

from ae.errors import UsageError, nearest
from ae.recipe.models import Recipe
from ae.recipe.rules import check_recipe
from ae.recipe.yamlfile import read_yaml, validate


def load_recipe(root: Path, name: str) -> Recipe:
    """Read `recipes/<name>/recipe.yaml` below `root` and check all of it. Raises UsageError when
    there is no such recipe, RecipeError with file and line for the rest."""
    known = list_recipes(root)
    if name not in known:
        said = f"there is no recipe '{name}'; {nearest(name, known)}"
        raise UsageError(said, fix="see `ae list`")
    document = read_yaml(root / "recipes" / name / "recipe.yaml", root)
    recipe = validate(document, Recipe)
    images = [path.name for path in (root / "images").glob("*/")]
    check_recipe(recipe, document, folder=name, images=images)
    return recipe


def list_recipes(root: Path) -> list[str]:
    """The names of all recipes below `root`, sorted."""
    return sorted(path.parent.name for path in (root / "recipes").glob("*/recipe.yaml"))


def find_root() -> Path:
    """The folder that holds `recipes/` and `images/`: $AE_ROOT; else the nearest at or above the
    working folder; else the checkout that this package lies in. Raises UsageError."""
    named, checkout = os.environ.get("AE_ROOT"), Path(__file__).resolve().parents[2]
    try:
        here = Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the working folder is gone", fix="cd to one that is there") from error
    for folder in [Path(named).resolve()] if named else [here, *here.parents, checkout]:
        if (folder / "recipes").is_dir() and (folder / "images").is_dir():
            return folder
    said = f"AE_ROOT is {named}, which has" if named else f"at or above {here} there are"
    fix = "run in a checkout or loaded bundle, or set AE_ROOT"
    raise UsageError(f"{said} no recipes/ and images/", fix=fix)

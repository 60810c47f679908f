"""What `ae list`, `show` and `schema` print."""

from __future__ import annotations

from typing import Any

from ae.claims.judge import load_claims
from ae.commands.show import list_text, recipe_details, recipe_summary, show_text, whole_text
from ae.recipe.load import find_root, list_recipes, load_recipe
from ae.recipe.models import json_schema

__all__ = ["json_schema"]


def listed() -> tuple[list[dict[str, Any]], str]:
    """All recipes, as data and as text."""
    root = find_root()
    recipes = [load_recipe(root, name) for name in list_recipes(root)]
    return [recipe_summary(recipe) for recipe in recipes], list_text(recipes)


def shown(name: str, *, everything: bool) -> tuple[dict[str, Any], str]:
    """One recipe and its claims, as data and as text."""
    root = find_root()
    recipe, claims = load_recipe(root, name), load_claims(root, name)
    text = whole_text(recipe, claims, root) if everything else show_text(recipe, claims)
    return recipe_details(recipe, claims), text

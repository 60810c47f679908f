"""What `ae list`, `show` and `schema` print, and the words that a recipe brings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ae.claims.judge import load_claims
from ae.commands.show import list_text, recipe_details, recipe_summary, show_text, whole_text
from ae.errors import AeError
from ae.recipe.load import find_root, list_recipes, load_recipe
from ae.recipe.models import Recipe, json_schema

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


def names(start: str) -> list[str]:
    """The names of recipes that begin so, for the shell's completion."""
    return [name for name in list_recipes(find_root()) if name.startswith(start)]


def named(words: Sequence[str]) -> list[Recipe]:
    """The recipes among these words, as far as they can be read."""
    try:
        root = find_root()
        known = list_recipes(root)
        return [load_recipe(root, word) for word in dict.fromkeys(words) if word in known]
    except AeError:  # the command itself will say it
        return []


def own_options(words: Sequence[str]) -> dict[str, str]:
    """What a person may change of all the recipes among these words: name -> help."""
    found = [_described(recipe) for recipe in named(words)]
    first = found[0] if found else {}
    return {name: text for name, text in first.items() if all(name in each for each in found)}


def _described(recipe: Recipe) -> dict[str, str]:
    found = {
        name: f"{axis.help}: {', '.join(axis.values)}; several with commas"
        for name, axis in recipe.axes.items()
    }
    for name, about in recipe.parameters.items():
        default = about.value(quick=False)
        words = ",".join(default) if isinstance(default, tuple) else str(default)
        choices = f" ({', '.join(about.choices)})" if about.choices else ""
        found[name] = f"{about.help}{choices}; default {words or 'none'}"
    return found

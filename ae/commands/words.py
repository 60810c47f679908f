"""The words that recipes bring to the command line. Imports little: every command waits for it."""

from __future__ import annotations

from collections.abc import Sequence

from ae.errors import AeError
from ae.recipe.load import find_root, list_recipes, load_recipe
from ae.recipe.models import Recipe


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

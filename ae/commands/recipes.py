"""What `ae list`, `show`, `schema` and `doctor` print."""

from __future__ import annotations

from dataclasses import asdict
from shutil import get_terminal_size
from typing import Any

from ae.claims.judge import load_claims
from ae.commands.show import list_text, recipe_details, recipe_summary, show_text, whole_text
from ae.doctor.checks import checks_to_text, diagnose, exit_code
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


def diagnosed(name: str | None, engine: str | None) -> tuple[list[dict[str, Any]], str, int]:
    """What this machine can do, as data and as text, and the exit code."""
    root = find_root()
    checks = diagnose(root, load_recipe(root, name) if name else None, engine)
    width = max(80, min(120, get_terminal_size((100, 24)).columns))
    return [asdict(check) for check in checks], checks_to_text(checks, width), exit_code(checks)

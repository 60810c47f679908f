"""Loads the Python files of a recipe, `figures.py` and `parse.py`, by their path."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from inspect import getmembers, isfunction
from pathlib import Path
from types import ModuleType

from ae.errors import RecipeError, nearest


def load_code(recipe_dir: Path, name: str, *, fix: str = "restore it") -> ModuleType:
    """Load `recipe_dir/<name>.py` without touching sys.path.

    Raises RecipeError when it does not exist (with `fix`) or cannot be loaded.
    """
    path = recipe_dir / f"{name}.py"
    if not path.is_file():
        raise RecipeError(f"{path} does not exist", fix=fix)
    spec = importlib.util.spec_from_file_location(f"ae_{name}_of_{recipe_dir.name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for their own module there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise RecipeError(
            f"{path} cannot be loaded: {type(error).__name__}: {error}", fix="see --debug"
        ) from error
    return module


def function_of(module: ModuleType, name: str) -> Callable[..., object]:
    """Return a public function that the module itself defines. Raises RecipeError."""
    found: Callable[..., object] | None = vars(module).get(name)
    if callable(found) and not name.startswith("_"):
        return found
    own = [one for _, one in getmembers(module, isfunction) if one.__module__ == module.__name__]
    known = [one.__name__ for one in own if not one.__name__.startswith("_")]
    raise RecipeError(
        f"{module.__file__} has no function '{name}' that a recipe could name",
        fix=nearest(name, known),
    )

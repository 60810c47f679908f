"""`ae doctor`: what this machine can do."""

from __future__ import annotations

from dataclasses import asdict
from shutil import get_terminal_size

from ae.commands.options import AnyRecipe, AsJson, EngineName, print_data
from ae.doctor.checks import checks_to_text, diagnose, exit_code
from ae.recipe.load import find_root, load_recipe


def doctor(name: AnyRecipe = None, engine: EngineName = None, as_json: AsJson = False) -> int:
    """Check this machine: engine, GPUs, driver, limits, disk; each with a fix."""
    root = find_root()
    checks = diagnose(root, load_recipe(root, name) if name else None, engine)
    width = max(80, min(120, get_terminal_size((100, 24)).columns))
    print_data(as_json, [asdict(check) for check in checks], checks_to_text(checks, width))
    return exit_code(checks)

"""`ae doctor`: what of this machine is fit, and what a plain run would do here."""

from __future__ import annotations

from dataclasses import asdict, replace
from shutil import get_terminal_size
from typing import Any

from ae.commands.run import plan_for, settle
from ae.doctor.checks import checks_to_text, exit_code, judge
from ae.doctor.facts import Facts, gather
from ae.model import Machine, Plan
from ae.plan.planner import grouped
from ae.plan.selection import Selection
from ae.recipe.load import find_root, load_recipe


def diagnosed(name: str | None, engine: str | None) -> tuple[list[dict[str, Any]], str, int]:
    """What this machine can do, as data and as text, and the exit code."""
    checks = judge(look(name, engine))
    width = max(80, min(120, get_terminal_size((100, 24)).columns))
    return [asdict(check) for check in checks], checks_to_text(checks, width), exit_code(checks)


def look(name: str | None, engine: str | None) -> Facts:
    """The facts of this machine; with a recipe, what its plain run would be here, too."""
    root = find_root()
    if name is None:
        return gather(root, engine)
    recipe = load_recipe(root, name)
    lane, _ = recipe.plain_run()
    command = f"ae run {name}" + ("" if lane == "native" else f" --lane {lane}")

    def plan(machine: Machine) -> Plan:
        found = plan_for(settle(name, Selection(lane=lane), {}), machine)
        return replace(found, notes=tuple(grouped(found.notes, recipe.experiments)))

    return gather(root, engine, command, plan)

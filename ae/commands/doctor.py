"""`ae doctor`: what of this machine is fit, and what a plain run would do here."""

from __future__ import annotations

from dataclasses import asdict
from shutil import get_terminal_size

from ae.commands.asked import plan_for, settle
from ae.commands.options import AnyRecipe, AsJson, EngineName, print_data
from ae.doctor import Facts, checks_to_text, exit_code, gather, judge
from ae.model import Machine, Plan
from ae.plan.selection import Selection
from ae.recipe.load import find_root, load_recipe


def doctor(name: AnyRecipe = None, engine: EngineName = None, as_json: AsJson = False) -> int:
    """Check this machine: engine, GPUs, driver, limits, disk; each with a fix."""
    checks = judge(look(name, engine))
    width = max(80, min(120, get_terminal_size((100, 24)).columns))
    print_data(as_json, [asdict(check) for check in checks], checks_to_text(checks, width))
    return exit_code(checks)


def look(name: str | None, engine: str | None) -> Facts:
    """The facts of this machine; with a recipe, what its plain run would be here, too."""
    root = find_root()
    if name is None:
        return gather(root, engine)
    lane, _ = load_recipe(root, name).plain_run()
    command = f"ae run {name}" + ("" if lane == "native" else f" --lane {lane}")

    def plan(machine: Machine) -> Plan:
        return plan_for(settle(name, Selection(lane=lane), {}), machine)

    return gather(root, engine, command, plan)

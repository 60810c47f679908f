"""`ae doctor`, what of this machine is fit, and `ae shell`, a shell where points run."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict

from ae.commands.asked import choose_engine, plan_for, settle
from ae.commands.options import (
    AnyRecipe,
    AsJson,
    EngineName,
    ImageOption,
    RecipeName,
    SecretOption,
    pairs,
    print_data,
    screen_width,
)
from ae.doctor import Facts, checks_to_text, exit_code, gather, judge
from ae.errors import EnvironmentFault
from ae.images.content import BuildOptions
from ae.model import Machine, Plan
from ae.plan.selection import Selection
from ae.recipe.load import find_root, load_recipe
from ae.records.folder import results_dir
from ae.run.display import Display


def doctor(name: AnyRecipe = None, engine: EngineName = None, as_json: AsJson = False) -> int:
    """Check this machine: engine, GPUs, driver, limits, disk; each with a fix."""
    checks = judge(look(name, engine))
    print_data(as_json, [asdict(check) for check in checks], checks_to_text(checks, screen_width()))
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


def shell(
    name: RecipeName,
    engine: EngineName = None,
    image: ImageOption = None,
    secret: SecretOption = None,
) -> None:
    """Open a shell where a paper's points run: same image, GPUs, limits and mounts."""
    asked = settle(name, Selection(image_override=image), pairs(secret, "--secret"))
    chosen = choose_engine(asked, engine, BuildOptions())
    point = plan_for(asked, chosen.machine).points[0]
    if not chosen.has_image(point.image):
        chosen.prepare(point.image, Display(()))
    out = results_dir(asked.root) / "shell" / name
    out.mkdir(parents=True, exist_ok=True)
    argv, environment = chosen.shell(point, out, asked.secrets)
    print(f"shell of {name} on engine {chosen.name}; $AE_OUT is {out}", file=sys.stderr)
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        raise EnvironmentFault(
            f"{argv[0]} cannot be started: {error.strerror}", fix=f"install {argv[0]}"
        ) from error

"""`ae doctor`: what of this machine is fit; `ae shell`: a shell where points run; `ae clean`: what
dead launchers left, and not what a living one owns, or another's."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from ae.commands import options
from ae.commands.asked import choose_engine, plan_for, settle
from ae.commands.options import AnyRecipe, AsJson, EngineName, option, print_data, screen_width
from ae.daemon.connection import endpoint_of
from ae.doctor import Facts, checks_to_text, exit_code, gather, judge
from ae.engines import choose as engines
from ae.engines.base import Engine, Leftover
from ae.errors import EnvironmentFault
from ae.host.machine import cache_dir
from ae.images.content import BuildOptions, image_ref
from ae.images.environments import folder as environment_of
from ae.model import Flavour
from ae.plan.selection import Selection, parse_gpus
from ae.recipe.load import find_root, load_recipe
from ae.records.folder import RunStore, results_dir
from ae.run.display import Display


def doctor(name: AnyRecipe = None, engine: EngineName = None, as_json: AsJson = False) -> int:
    """Check this machine: engine, GPUs, driver, limits, disk; each with a fix."""
    checks = judge(look(name, engine))
    print_data(as_json, [one._asdict() for one in checks], checks_to_text(checks, screen_width()))
    return exit_code(checks)


def look(name: str | None, engine: str | None) -> Facts:
    """The facts of this machine; with a recipe, what its plain run would be here, too."""
    root = find_root()
    if name is None:
        return gather(root, engine)
    lane, _ = load_recipe(root, name).plain_run()
    plain = Selection(lane=lane)
    command = f"ae run {name}" + ("" if lane == "native" else f" --lane {lane}")
    command += f" --engine {engine}" if engine else ""
    return gather(root, engine, command, lambda here: plan_for(settle(name, plain, {}), here))


def shell(
    name: options.RecipeName,
    experiment: options.Experiments = None,
    gpus: options.Gpus = None,
    engine: EngineName = None,
    image: options.ImageOption = None,
    secret: options.SecretOption = None,
) -> None:
    """Open a shell where a paper's points run: same image, GPUs, limits and mounts."""
    names = tuple(experiment or ())
    wanted = Selection(experiments=names, gpus=parse_gpus(gpus), image_override=image)
    asked = settle(name, wanted, options.pairs(secret, "--secret"), engine)
    chosen = choose_engine(asked, BuildOptions())
    points = plan_for(asked, chosen.machine).points
    point = next((one for one in points if one.needs.gpus), points[0])
    if not chosen.has_image(point.image):
        chosen.prepare(point.image, Display(()))
    out = results_dir(asked.root) / "shell" / name
    out.mkdir(parents=True, exist_ok=True)
    argv, environment = chosen.shell(point, out, asked.secrets)
    print(f"shell of {name} on engine {chosen.name}; $AE_OUT is {out}", file=sys.stderr)
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        said = f"{argv[0]} cannot be started: {error.strerror}"
        raise EnvironmentFault(said, fix=f"install {argv[0]}") from error


def clean(
    environments: Annotated[
        bool, option("also Python environments that no source asks for", "--environments")
    ] = False,
    run: Annotated[str, option("of this run alone: its name or folder", value="RUN")] = "",
    dry_run: options.DryRun = False,
) -> None:
    """Remove what dead launchers left behind: containers, processes, jobs of Slurm."""
    old = old_environments(find_root()) if environments else []
    every = {engine: engine.available() for engine in map(engines.make, engines.NAMES)}
    usable = [engine for engine, said in every.items() if said.ok]
    found = clean_engines(usable, run=Path(run).name, dry_run=dry_run)
    verb = "would remove" if dry_run else "removed"
    for one in found:
        name = Path(one.id).name if one.kind == "job" else one.id[:12]
        print(f"{verb} {one.kind} {name} of run {one.run} ({one.engine})")
    for path in old:
        if not dry_run:
            shutil.rmtree(path)
        print(f"{verb} environment {path.name}")
    unasked = {engine.name: said.detail for engine, said in every.items() if not said.ok}
    for name, why in unasked.items():
        print(f"note: {name} was not asked: {why}", file=sys.stderr)
    socket = Path(endpoint_of().removeprefix("unix://"))
    if "docker" in unasked and (os.environ.get("DOCKER_HOST") or socket.exists()):
        said = "something may be left behind: Docker is set up here, and was not asked"
        raise EnvironmentFault(said, fix="see `ae doctor --engine docker`, then `ae clean` again")
    if run and not found:
        RunStore(results_dir(find_root())).find("*", run)  # or it is said that there is none
    if not found and not old:
        print("nothing is left behind")


def old_environments(root: Path) -> list[Path]:
    """Environments, and what they cached, of sources that this checkout does not hold any more."""
    images = [path.parent.name for path in (root / "images").glob("*/Dockerfile")]
    refs = (image_ref(root, name, flavour) for name in images for flavour in Flavour)
    current = {environment_of(ref).name + end for ref in refs for end in ("", ".cache")}
    there = sorted((cache_dir() / "envs").glob("*/"))
    return [path for path in there if path.name not in current]


def clean_engines(usable: Sequence[Engine], *, run: str = "", dry_run: bool) -> list[Leftover]:
    """Remove what no living launcher owns, of one run or of any; dry: only return it."""
    orphans = [(e, one) for e in usable for one in e.leftovers() if not one.owner_alive]
    found = [(engine, one) for engine, one in orphans if not run or one.run == run]
    for engine, leftover in [] if dry_run else found:
        engine.remove(leftover)
    return [leftover for _, leftover in found]

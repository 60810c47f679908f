"""`ae clean`: removes what dead launchers left; what a living one owns, or another's, stays."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from ae.commands.options import DryRun, option
from ae.engines import choose as select
from ae.engines.base import Engine, Leftover
from ae.host.machine import cache_dir
from ae.images.content import image_ref
from ae.images.environments import folder as environment_of
from ae.model import Flavour
from ae.recipe.load import find_root


def clean(
    environments: Annotated[
        bool, option("also Python environments that no source asks for", "--environments")
    ] = False,
    run: Annotated[str, option("of this run alone", value="NAME")] = "",
    dry_run: DryRun = False,
) -> None:
    """Remove what dead launchers left behind: containers and processes, nothing else."""
    every = [select.make(name) for name in select.NAMES]
    found = clean_engines([one for one in every if one.available().ok], run=run, dry_run=dry_run)
    old = old_environments(find_root()) if environments else []
    for path in [] if dry_run else old:
        shutil.rmtree(path)
    verb = "would remove" if dry_run else "removed"
    for one in found:
        print(f"{verb} {one.kind} {one.id[:12]} of run {one.run} ({one.engine})")
    for path in old:
        print(f"{verb} environment {path.name}")
    if not found and not old:
        print("nothing is left behind")


def old_environments(root: Path) -> list[Path]:
    """Environments, and what they cached, of sources that this checkout does not hold any more."""
    images = [path.parent.name for path in (root / "images").glob("*/requirements-*.txt")]
    places = [
        environment_of(image_ref(root, name, flavour)) for name in images for flavour in Flavour
    ]
    current = {name for place in places for name in (place.name, f"{place.name}.cache")}
    folder = cache_dir() / "envs"
    there = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in there if path.is_dir() and path.name not in current]


def clean_engines(engines: Sequence[Engine], *, run: str = "", dry_run: bool) -> list[Leftover]:
    """Remove what no living launcher owns, of one run or of any; dry: only return it."""
    orphans = [(e, one) for e in engines for one in e.leftovers() if not one.owner_alive]
    found = [(engine, one) for engine, one in orphans if not run or one.run == run]
    for engine, leftover in [] if dry_run else found:
        engine.remove(leftover)
    return [leftover for _, leftover in found]

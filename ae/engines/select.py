"""Picks the engine of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ae.engines.docker import DockerEngine
from ae.engines.local import LocalEngine
from ae.errors import EnvironmentFault, UsageError, nearest
from ae.model import Flavour

if TYPE_CHECKING:
    from ae.images import BuildOptions
    from ae.reaper import Reaper

NAMES = ("docker", "local")


def choose(
    name: str | None,
    flavour: Flavour,
    *,
    root: Path,
    reaper: Reaper | None = None,
    build: BuildOptions | None = None,
) -> DockerEngine | LocalEngine:
    """Return the engine `name`; with None, Docker where it can run this flavour, else local.

    Raises UsageError for an unknown name, EnvironmentFault when the engine asked for cannot run
    this flavour, or when none can.
    """
    if name is not None:
        engine = make(name, root=root, reaper=reaper, build=build)
        found = engine.supports(flavour)
        if not found.ok:
            raise EnvironmentFault(f"engine {name}: {found.detail}", fix=found.fix)
        return engine
    docker = make("docker", root=root, reaper=reaper, build=build)
    with_docker = docker.supports(flavour)
    if with_docker.ok:
        return docker
    local = make("local", root=root, reaper=reaper, build=build)
    found = local.supports(flavour)
    if not found.ok:
        raise EnvironmentFault(
            f"no engine can run flavour {flavour} here: docker: {with_docker.detail}; "
            f"local: {found.detail}",
            fix=with_docker.fix,
        )
    return local


def offline(name: str | None, root: Path) -> DockerEngine | LocalEngine:
    """Return an engine whose commands are only to be read; nothing is asked whether it is there."""
    return make(name or "docker", root=root)


def make(
    name: str,
    *,
    root: Path,
    reaper: Reaper | None = None,
    build: BuildOptions | None = None,
) -> DockerEngine | LocalEngine:
    """Return an engine by name, usable or not. Raises UsageError for an unknown name."""
    if name == "docker":
        return DockerEngine(reaper, build=build)
    if name == "local":
        return LocalEngine(root, reaper, build=build)
    raise UsageError(f"there is no engine '{name}'; {nearest(name, NAMES)}", fix="see `ae doctor`")

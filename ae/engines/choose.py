"""Picks the engine of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ae.engines.docker import DockerEngine
from ae.engines.local import LocalEngine
from ae.errors import EnvironmentFault, UsageError, nearest
from ae.model import Flavour

if TYPE_CHECKING:
    from ae.engines.podman import PodmanEngine
    from ae.host.watchdog import Reaper
    from ae.images.content import BuildOptions

NAMES = ("docker", "podman", "local")
AnyEngine: TypeAlias = "DockerEngine | PodmanEngine | LocalEngine"


def choose(
    name: str | None,
    flavour: Flavour,
    *,
    root: Path,
    reaper: Reaper | None = None,
    build: BuildOptions | None = None,
) -> AnyEngine:
    """Return the engine `name`; with None, docker, podman or local: the first that can run this.

    A podman that nobody asked for must first show that it starts a container: one that answers
    may still be unable to, and `local` works then.

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
    podman = _podman(reaper, build)
    with_podman = podman.supports(flavour)
    if with_podman.ok:
        with_podman = podman.starts()
    if with_podman.ok:
        return podman
    local = make("local", root=root, reaper=reaper, build=build)
    found = local.supports(flavour)
    if not found.ok:
        raise EnvironmentFault(
            f"no engine can run flavour {flavour} here: docker: {with_docker.detail}; "
            f"podman: {with_podman.detail}; local: {found.detail}",
            fix=with_docker.fix,
        )
    return local


def make(
    name: str,
    *,
    root: Path,
    reaper: Reaper | None = None,
    build: BuildOptions | None = None,
) -> AnyEngine:
    """Return an engine by name, usable or not. Raises UsageError for an unknown name."""
    if name == "docker":
        return DockerEngine(reaper, build=build)
    if name == "podman":
        return _podman(reaper, build)
    if name == "local":
        return LocalEngine(root, reaper, build=build)
    raise UsageError(f"there is no engine '{name}'; {nearest(name, NAMES)}", fix="see `ae doctor`")


def _podman(reaper: Reaper | None, build: BuildOptions | None) -> PodmanEngine:
    from ae.engines.podman import PodmanEngine  # a run on Docker never needs it

    return PodmanEngine(reaper, build=build)

"""Picks the engine of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ae.daemon.connection import endpoint_of, refuse_elsewhere
from ae.engines.base import Availability, Engine
from ae.engines.docker import DockerEngine
from ae.engines.local import LocalEngine
from ae.engines.podman import PodmanEngine
from ae.engines.slurm.engine import SlurmEngine
from ae.errors import EnvironmentFault, UsageError, nearest
from ae.images.content import BuildOptions

_KINDS: Sequence[type[Engine]] = (DockerEngine, PodmanEngine, LocalEngine, SlurmEngine)
_ENGINES = {kind.name: kind for kind in _KINDS}
NAMES = tuple(_ENGINES)


def choose(
    name: str | None, *, gpus: bool | None = None, build: BuildOptions | None = None
) -> Engine:
    """Return the engine `name`; with None, docker or local: the first that can.

    `gpus`: whether it must hand over GPUs; None: where its machine has any. Raises UsageError
    for an unknown name, EnvironmentFault when none can, and when DOCKER_HOST is another machine's
    and nobody named another engine.
    """
    refused: dict[str, Availability] = {}
    if name is None:
        refuse_elsewhere(endpoint_of())
    for each in ("docker", "local") if name is None else (name,):
        engine = make(each, build=build)
        found = engine.available()
        if found.ok and not found.facts["gpu_route"]:
            must = bool(engine.machine.gpus) if gpus is None else gpus
            why, fix = engine.no_gpus
            found = replace(found, ok=False, detail=why, fix=fix) if must else found
        if found.ok:
            return engine
        refused[each] = found
    why = "; ".join(f"{each}: {found.detail}" for each, found in refused.items())
    who = "no engine can run this here:" if name is None else "engine"
    raise EnvironmentFault(f"{who} {why}", fix=next(iter(refused.values())).fix)


def make(name: str, *, build: BuildOptions | None = None) -> Engine:
    """Return an engine by name, usable or not. Raises UsageError for an unknown name."""
    if name not in NAMES:
        hint = nearest(name, NAMES)
        raise UsageError(f"there is no engine '{name}'; {hint}", fix="see `ae doctor`")
    return _ENGINES[name](build=build)

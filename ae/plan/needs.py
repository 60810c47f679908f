"""What a point is given of all that its recipe needs. Pure."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ae.errors import EnvironmentFault
from ae.model import GpuRequest, Mount, RuntimeNeeds, Secret, Ulimit
from ae.recipe.models import Recipe
from ae.recipe.needs import Needs


def runtime_needs(needs: Needs, gpus: GpuRequest | None, root: Path) -> RuntimeNeeds:
    """The recipe's needs without their reasons. A relative volume starts at `root`."""
    return RuntimeNeeds(
        gpus=gpus,
        cap_add=tuple(need.value for need in needs.cap_add),
        ipc=needs.ipc.value if needs.ipc else None,
        shm_bytes=needs.shm_size.value if needs.shm_size else None,
        ulimits=tuple(Ulimit(name=u.name, soft=u.soft, hard=u.hard) for u in needs.ulimits),
        network=needs.network.value if needs.network else "none",
        mounts=tuple(
            Mount(source=root / v.source, target=v.target, read_only=v.read_only)
            for v in needs.volumes
        ),
        memory_bytes=needs.memory.value if needs.memory else None,
    )


def secrets_of(recipe: Recipe, experiment: str, given: Collection[str]) -> tuple[Secret, ...]:
    """The secrets an experiment gets. Raises EnvironmentFault for one that it cannot do without."""
    found = []
    for need in recipe.needs_of(experiment).secrets:
        secret = Secret(name=need.name, target=need.target, optional=need.optional)
        if need.name in given:
            found.append(secret)
        elif not need.optional:
            raise EnvironmentFault(
                f"{experiment} needs the secret '{need.name}' ({need.why})",
                fix=f"give its file: --secret {need.name}=FILE, or {secret.variable}=FILE",
            )
    return tuple(found)

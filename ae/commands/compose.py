"""A recipe's needs as a compose service, for compose/workbench.yaml. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ae.plan.needs import runtime_needs
from ae.recipe.models import Recipe

HEADER = "# Written by `ae show {name} --compose`; what `ae run {name}` gives a container.\n"


def compose_text(recipe: Recipe, lane: str = "native") -> str:
    """The file compose/needs/<recipe>.yaml: a service `needs` to be extended.

    GPUs are left to the service that extends it: a compose file cannot ask whether there are any.
    """
    text = yaml.safe_dump({"services": {"needs": _service(recipe, lane)}}, sort_keys=False)
    return HEADER.format(name=recipe.name) + str(text)


def _service(recipe: Recipe, lane: str) -> dict[str, Any]:
    needs = runtime_needs(recipe.needs, None, Path("../.."))  # from compose/needs
    image = recipe.image_of(lane) if lane in recipe.lanes else recipe.image
    service: dict[str, Any] = {
        "image": f"ae/{image}:${{FLAVOUR:-cpu}}",
        "pull_policy": "never",
        "network_mode": needs.network,
    }
    if needs.cap_add:
        service["cap_add"] = list(needs.cap_add)
    if needs.ulimits:
        service["ulimits"] = {u.name: {"soft": u.soft, "hard": u.hard} for u in needs.ulimits}
    if needs.ipc is not None:
        service["ipc"] = needs.ipc
    if needs.shm_bytes is not None and needs.ipc != "host":
        service["shm_size"] = needs.shm_bytes
    if needs.memory_bytes is not None:
        service["mem_limit"] = service["memswap_limit"] = needs.memory_bytes
    if needs.mounts:
        service["volumes"] = [
            f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else "")
            for mount in needs.mounts
        ]
    return service

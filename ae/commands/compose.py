"""A recipe's needs as a compose service, for compose/workbench.yaml. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ae.plan.points import runtime_needs
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
        "cap_add": list(needs.cap_add),
        "ulimits": {u.name: {"soft": u.soft, "hard": u.hard} for u in needs.ulimits},
        "ipc": needs.ipc,
        "shm_size": None if needs.ipc == "host" else needs.shm_bytes,
        "mem_limit": needs.memory_bytes,
        "memswap_limit": needs.memory_bytes,
        "volumes": [f"{m.source}:{m.target}{':ro' if m.read_only else ''}" for m in needs.mounts],
    }
    return {key: value for key, value in service.items() if value}

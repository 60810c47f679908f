"""GPUs by the names that CDI specs give them (Container Device Interface)."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from ae.errors import EnvironmentFault
from ae.model import GpuRequest

CDI_KIND = "nvidia.com/gpu"
ALL = f"{CDI_KIND}=all"
RENEW = "make the CDI spec again: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"


def cdi_names(request: GpuRequest, known: Collection[str] | None) -> tuple[str, ...]:
    """Return the CDI names of a request's GPUs: by UUID or number, as the spec has them.

    `known` None: nobody was asked which names there are. A spec that has nothing but `all` (as on
    WSL) gives all: that these are the GPUs asked for is seen inside. Raises EnvironmentFault.
    """
    found: list[str] = []
    unknown: list[str] = []
    for device in request.devices:
        words = [str(device.index)] if device.index >= 0 else []
        # Nothing renumbers a UUID. A name that nobody was asked about: numbers are in every spec.
        words = [*words, device.uuid] if known is None else [device.uuid, *words]
        names = [f"{CDI_KIND}={word}" for word in words if word]
        name = next((name for name in names if known is None or name in known), None)
        (unknown if name is None else found).append(name or names[-1])
    if unknown and set(known or ()) == {ALL}:
        return (ALL,)
    if unknown:
        raise EnvironmentFault(
            f"there is no CDI device {', '.join(unknown)}; there are {', '.join(known or ())}",
            fix=f"pick another GPU (--gpus device=0), or {RENEW}",
        )
    return tuple(found)


def read_cdi_devices(*folders: str) -> dict[str, frozenset[str]]:
    """The NVIDIA GPUs in the CDI specs of folders by name, e.g. `nvidia.com/gpu=0`, each with the
    device nodes that a container sees of it."""
    found: dict[str, frozenset[str]] = {}
    for path in (path for folder in folders for path in sorted(Path(folder).glob("*.*"))):
        if path.suffix not in (".json", ".yaml", ".yml"):
            continue
        try:
            spec = yaml.safe_load(path.read_text())  # JSON is YAML, too
        except (OSError, ValueError, yaml.YAMLError):
            continue  # engines ignore a broken one, too
        if isinstance(spec, dict) and spec.get("kind") == CDI_KIND:
            for one in spec.get("devices") or []:
                if isinstance(one, dict) and "name" in one:
                    found[f"{CDI_KIND}={one['name']}"] = _nodes(spec) | _nodes(one)
    return found


def _nodes(part: dict[str, Any]) -> frozenset[str]:
    nodes = (part.get("containerEdits") or {}).get("deviceNodes") or []
    return frozenset(str(node["path"]) for node in nodes if "path" in node)

"""Reads `podman inspect`: the same facts as Docker's, in other shapes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ae.engines.spec import ContainerSpec, dropped

_NEVER = "0001-01-01"


def as_docker(
    inspected: Mapping[str, Any],
    spec: ContainerSpec,
    devices: Mapping[str, frozenset[str]],
) -> dict[str, Any]:
    """Return what podman says of an initialised container in the shape of Docker's inspect.

    `devices`: the device nodes of each CDI name. podman keeps no request, but shows what it came
    to: a GPU counts as granted when all its nodes are there.
    """
    host = dict(inspected.get("HostConfig") or {})
    host["Ulimits"] = [
        {**one, "Name": str(one.get("Name", "")).lower().removeprefix("rlimit_")}
        for one in host.get("Ulimits") or []
    ]
    # An IPC namespace of its own is `shareable` to podman, also when `private` was asked for.
    if spec.needs.ipc == "private" and host.get("IpcMode") == "shareable":
        host["IpcMode"] = "private"
    # A capability that an ordinary user in the container would not have is not granted.
    effective = set(inspected.get("EffectiveCaps") or [])
    host["CapAdd"] = [cap for cap in host.get("CapAdd") or [] if cap in effective]
    nodes = {str(one.get("PathInContainer")) for one in host.get("Devices") or []}
    asked = spec.gpus.devices if spec.gpus else ()
    granted = [name for name in asked if name in devices and devices[name] <= nodes]
    if granted:
        host["DeviceRequests"] = [{"Driver": "cdi", "DeviceIDs": granted}]
    return {**inspected, "HostConfig": host}


def dropped_by_podman(
    spec: ContainerSpec, inspected: Mapping[str, Any], *, rootless: bool
) -> tuple[list[str], str]:
    """What is missing in a container (in Docker's shape), and how to get it."""
    missing = dropped(spec, inspected)
    fix = "use --engine docker, or a newer podman; see docs/engines.md"
    if any(word.startswith("Memory") for word in missing) and rootless:
        fix = (
            "an ordinary user may limit memory where systemd hands him the controller (cgroup v2, "
            "Delegate=memory); else run podman as root, or use --engine docker"
        )
    elif any(word.startswith("GPUs") for word in missing):
        fix = "make the CDI specs anew: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
    return missing, fix


def has_started(inspected: Mapping[str, Any]) -> bool:
    """Whether the workload was ever started."""
    stamp = str((inspected.get("State") or {}).get("StartedAt", _NEVER))
    return not stamp.startswith(_NEVER)

"""podman's words: its inspect in Docker's, the options that it needs on top, its errors in ours."""

from __future__ import annotations

import os
import re
import resource
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ae.daemon.cdi import RENEW
from ae.engines.spec import ContainerSpec
from ae.errors import EnvironmentFault

# Where podman looks for its init program, and static ones that serve as well.
_HELPERS = "/usr/libexec/podman:/usr/local/libexec/podman:/usr/lib/podman:/usr/libexec/catatonit"
STATIC_INITS = ("tini-static", "docker-init")


def as_docker(
    made: Mapping[str, Any], spec: ContainerSpec, devices: Mapping[str, frozenset[str]]
) -> dict[str, Any]:
    """Return what podman says of an initialised container in the words of Docker's inspect.

    `devices`: the device nodes of each CDI name. podman keeps no request, but shows what it came
    to: a GPU counts as granted when all its nodes are there.
    """
    host = dict(made.get("HostConfig") or {})
    for limit in (limits := [dict(one) for one in host.get("Ulimits") or []]):
        limit["Name"] = str(limit["Name"]).lower().removeprefix("rlimit_")
    host["Ulimits"] = limits
    # An IPC namespace of its own is `shareable` to podman, also when `private` was asked for.
    if spec.needs.ipc == "private" and host.get("IpcMode") == "shareable":
        host["IpcMode"] = "private"
    if spec.userns == "keep-id" and host.get("UsernsMode") == "private":
        host["UsernsMode"] = "keep-id"
    # What is in effect, and what could ever be: podman names each capability that is dropped.
    host["CapAdd"] = list(made.get("EffectiveCaps") or [])
    bound = {cap.removeprefix("CAP_") for cap in made.get("BoundingCaps") or []}
    host["CapDrop"] = ["ALL"] if bound <= set(spec.needs.cap_add) else []
    nodes = {str(one.get("PathInContainer")) for one in host.get("Devices") or []}
    asked = spec.gpus.devices if spec.gpus else ()
    granted = [name for name in asked if name in devices and devices[name] <= nodes]
    host["DeviceRequests"] = [{"Driver": "cdi", "DeviceIDs": granted}] if granted else []
    return {**made, "HostConfig": host}


def init_program(*names: str) -> str | None:
    """An init program for containers: it reaps children and passes TERM on."""
    path = f"{_HELPERS}:{os.environ.get('PATH', os.defpath)}"
    return next((found for name in names if (found := shutil.which(name, path=path))), None)


def limit_words(given: Iterable[str]) -> list[str]:
    """Options for the limits that podman would else set above what the caller may have.

    `given`: limits that are asked for anyway.
    """
    # podman caps its own number of processes at the kernel's largest id, and can give no more.
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    own = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    number = most if own == resource.RLIM_INFINITY else min(own, most)
    limits = {"nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[1], "nproc": number}
    return [
        word
        for name, value in limits.items()
        if name not in given
        for word in ("--ulimit", f"{name}={value}:{value}")
    ]


def fault_of(text: str) -> EnvironmentFault:
    """What podman refused, with the fix where the cause is known."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("Error")] or lines or ["no reason given"]
    said = errors[-1].removeprefix("Error: ")
    if logged := re.search(r'msg="(.*)"', said):
        said = logged[1]
    for layer in ("runc create failed: ", "container process: "):  # which say nothing
        said = said.rpartition(layer)[2]
    fixes = (fix for words, fix in _FIXES if re.search(words, text.lower()))
    return EnvironmentFault(f"podman refused: {said[:300]}", fix=next(fixes))


LOAD = "build it where Docker is, then: docker save IMAGE | podman load"
_FIXES = (
    ("unresolvable cdi device|failed to inject devices", RENEW),
    (r"nvidia\.com/gpu=", "use a podman that is built with CDI, or --engine docker"),
    ("container-init binary|catatonit", "install the package catatonit, or tini"),
    ("cgroups in hybrid mode", 'write runtime = "runc" below [engine] in containers.conf'),
    ("rlimit", "raise the caller's own hard limit (ulimit -H), or use --engine docker"),
    ("new[ug]idmap|insufficient|subuid|user namespace", "install uidmap, then: sudo usermod "
     "--add-subuids 100000-165535 --add-subgids 100000-165535 $USER; podman system migrate"),
    ("no space left on device", "free some: podman system df, podman image prune"),
    ("no such image|not known|manifest unknown|short-name", LOAD + ", or --image NAME"),
    ("statfs", "check the volumes of the recipe"),
    ("unauthorized|authentication required", "podman login REGISTRY"),
    ("http response to https", "name it in registries.conf with insecure = true"),
    ("connection refused|no such host|timeout|registry", "check the name and the network"),
    ("", "try it by hand: podman info"),
)  # fmt: skip

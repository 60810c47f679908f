"""The engine `podman`, by its command line: no daemon, as root or as an ordinary user.

Its Docker-compatible socket will not do: see docs/engines.md. A container is created, initialised
(its namespaces, limits and devices are there, its program is not started yet), compared with what
was asked, started with its output attached, and removed.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ae.daemon.cdi import RENEW, cdi_names, read_cdi_devices
from ae.daemon.faults import refused
from ae.engines.base import Availability, Sink
from ae.engines.containers import ContainerEngine
from ae.engines.spec import ContainerSpec, GpuGrant
from ae.errors import EnvironmentFault
from ae.host import processes
from ae.images import registry
from ae.images.lockfile import locked
from ae.model import GpuRequest, ImageRef

# Rootless storage without id-mapped mounts copies an image once for each user: minutes.
CREATE_TIMEOUT_S = 1800
_CDI_DIRS = ("/etc/cdi", "/var/run/cdi")
_LOCAL = "localhost/"  # where podman puts names without a registry; Docker's own mean docker.io
_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+)(:\d+)?/")


class PodmanEngine(ContainerEngine):
    """Runs points in containers of the podman on PATH; storage and runtime are as it is set up."""

    name = title = "podman"
    no_gpus = (
        "podman finds no CDI spec for NVIDIA GPUs",
        f"install the Container Toolkit, {RENEW}",
    )
    dropped_fix = (
        "an ordinary user gets limits only with cgroup v2 and a delegated controller: else use "
        "podman as root, or --engine docker; see docs/engines.md"
    )

    @cached_property
    def info(self) -> dict[str, Any]:
        """What `podman info` says. Raises EnvironmentFault when podman cannot be used."""
        if shutil.which("podman") is None:
            raise EnvironmentFault("there is no podman on PATH", fix="install the package podman")
        info: dict[str, Any] = json.loads(self.do("info", "--format", "json"))
        if info["host"].get("serviceIsRemote"):
            raise EnvironmentFault(
                "podman is set to talk to a service elsewhere, where folders cannot be mounted",
                fix="unset CONTAINER_HOST, or choose a local one: podman system connection",
            )
        return info

    @property
    def rootless(self) -> bool:
        """Whether it runs as an ordinary user, in a user namespace."""
        return bool(self.info["host"]["security"]["rootless"])

    @cached_property
    def cdi_devices(self) -> dict[str, frozenset[str]]:
        """GPUs by CDI name, each with the device nodes that a container sees of it."""
        return read_cdi_devices(*_CDI_DIRS)

    def _answer(self) -> Availability:
        info, who = self.info, "rootless" if self.rootless else "as root"
        version, route = info["version"]["Version"], "cdi" if self.cdi_devices else ""
        facts = {
            "endpoint": f"podman {who}", "version": version, "gpu_route": route,
            "root": info["store"]["graphRoot"],
        }  # fmt: skip
        detail = f"podman {version} {who}, {'CDI' if route else 'no GPU support'}"
        return Availability(ok=True, detail=detail, facts=facts)

    def prepare(self, image: ImageRef, sink: Sink) -> None:
        """Pull what a person named, and the locked image where there is a registry. podman builds
        none: its layers would not be those of our Dockerfiles' builder. Raises EnvironmentFault."""
        reference = self._published(image)
        # As Docker does it: a registry on this machine needs no TLS.
        plain = ("--tls-verify=false",) if _LOOPBACK.match(reference) else ()
        registry.transfer(self.name, "pull", reference, sink, self._environment(), *plain)
        if image.override is None:
            self.do("tag", reference, _LOCAL + image.reference)

    def named(self, image: ImageRef) -> str:
        return image.reference if self.has_image(image) else self._published(image)

    def _published(self, image: ImageRef) -> str:
        """What an image is pulled as. Raises EnvironmentFault."""
        entry, place = locked(image), registry.place(image.root)
        if image.override is not None:
            return image.reference
        if entry is None or place is None:
            raise EnvironmentFault(
                f"podman has no image {image.reference} that is built from this tree",
                fix="build it where Docker is, then: docker save IMAGE | podman load",
            )
        return f"{place}/{image.name}@{entry.digest}"

    def _image(self, image: ImageRef) -> dict[str, Any] | None:
        entry = locked(image)
        names = [entry.image_id.removeprefix("sha256:")] if entry else []
        names += [] if image.override else [_LOCAL + image.reference]
        found = (self.inspect("image", name) for name in (*names, image.reference))
        return next((one for one in found if one is not None), None)

    # -- how a container is asked for, made and removed ----------------------------------------

    def _grant(self, request: GpuRequest, *, ask: bool) -> GpuGrant:
        known = tuple(self.cdi_devices) if ask else None
        return GpuGrant(route="cdi", devices=cdi_names(request, known))

    def _fitted(self, spec: ContainerSpec) -> ContainerSpec:
        if not self.rootless:
            return spec
        limited = "pids" in self.info["host"].get("cgroupControllers", ())
        spec = replace(spec, user=self.caller, userns="keep-id")
        return spec if limited else replace(spec, pids=None)

    def _create(self, spec: ContainerSpec) -> dict[str, Any]:
        # The launcher keeps the output; a log of podman's own would be a second copy of it. And
        # `rm --force` kills at once.
        options = ("--pull", "never", "--log-driver", "none", "--stop-timeout", "0")
        self.do(*self._line(spec, "create", *options)[1:], timeout_s=CREATE_TIMEOUT_S)
        # podman's monitor would leave a file `oom` where it was started.
        with tempfile.TemporaryDirectory(prefix="ae-podman-") as folder:
            argv = [self.name, "init", spec.name]
            done = processes.run(argv, timeout_s=CREATE_TIMEOUT_S, cwd=Path(folder))
        made = self.inspect("container", spec.name)
        if done.returncode != 0 or made is None:
            raise refused(self.name, done.stderr)
        return as_docker(made, spec, self.cdi_devices if spec.gpus else {})

    def inspect(self, kind: Literal["image", "container"], name: str) -> dict[str, Any] | None:
        done = self.call(kind, "inspect", name)
        if done.returncode == 0:
            found: dict[str, Any] = json.loads(done.stdout)[0]
            return found | {"Id": f"sha256:{found['Id'].removeprefix('sha256:')}"}
        if re.search("no such|not known", done.stderr.lower()):
            return None
        raise refused(self.name, done.stderr)

    def remove_container(self, name: str) -> None:
        done = self.call("rm", "--force", "--volumes", name)
        if done.returncode != 0 and "no such" not in done.stderr.lower():
            raise refused(self.name, done.stderr)

    def _line(self, spec: ContainerSpec, *words: str) -> tuple[str, ...]:
        if not spec.name:  # to be read
            keep = "keep-id" if os.geteuid() != 0 else ""
            return super()._line(replace(spec, userns=keep), *words)
        # Where podman's defaults differ from Docker's and would change what is measured.
        own = [*limit_words([limit.name for limit in spec.needs.ulimits]), "--http-proxy=false"]
        if spec.pids is None:
            own += ["--pids-limit", "-1"]
        if self.info["host"]["security"]["selinuxEnabled"]:
            own += ["--security-opt", "label=disable"]  # relabelling would change the folders
        spec = replace(spec, image=spec.image.removeprefix("sha256:"))  # a name could mean several
        return super()._line(spec, *words, *own)


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
    host["Runtime"] = made.get("OCIRuntime", "")
    return {**made, "HostConfig": host}


def limit_words(given: Iterable[str]) -> list[str]:
    """Options for the limits that podman would else set above what the caller may have.

    `given`: limits that are asked for anyway.
    """
    # podman caps its own number of processes at the kernel's largest id, and can give no more.
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    own = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    number = most if own == resource.RLIM_INFINITY else min(own, most)
    limits = {"nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[1], "nproc": number}
    others = [f"{name}={value}:{value}" for name, value in limits.items() if name not in given]
    return [word for limit in others for word in ("--ulimit", limit)]

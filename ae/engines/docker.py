"""The engine `docker`: containers of this machine's Docker daemon."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ae.daemon.cdi import RENEW, cdi_names
from ae.daemon.connection import Daemon, connect, endpoint_of
from ae.engines.base import OUT_DIR, Availability, Sink
from ae.engines.containers import ContainerEngine
from ae.engines.spec import ContainerSpec, GpuGrant
from ae.errors import EnvironmentFault
from ae.host import signals
from ae.images import registry
from ae.images.build import build
from ae.images.lockfile import locked
from ae.model import GpuRequest, ImageRef, RuntimeNeeds


class DockerEngine(ContainerEngine):
    """Runs points in containers of a Docker daemon; connects when first needed."""

    name, title = "docker", "Docker Engine"
    no_gpus = (
        "Docker has no way to hand GPUs to containers: neither a CDI spec nor the NVIDIA runtime",
        f"install the NVIDIA Container Toolkit, then {RENEW}, and restart the daemon",
    )
    dropped_fix = "use a Docker Engine of version 25 or later; see `ae doctor`"

    @cached_property
    def daemon(self) -> Daemon:
        """The daemon. Raises EnvironmentFault when it cannot be used."""
        return connect(endpoint_of())

    def _answer(self) -> Availability:
        daemon, route = self.daemon, self.daemon.gpu_route()
        version = str(daemon.info.get("ServerVersion", ""))
        if shutil.which("docker") is None:
            said = "there is no docker client on PATH"
            raise EnvironmentFault(said, fix="install the package docker-cli")
        names = {"cdi": "CDI", "nvidia": "NVIDIA runtime", "": "no GPU support"}
        facts = {
            "endpoint": daemon.endpoint, "version": version, "gpu_route": route,
            "root": str(daemon.info.get("DockerRootDir", "")),
        }  # fmt: skip
        detail = f"Docker Engine {version} at {daemon.endpoint}, {names[route]}"
        return Availability(ok=True, detail=detail, facts=facts)

    def prepare(self, image: ImageRef, sink: Sink) -> None:
        """Pull what a person named, and the locked image where there is a registry; else build.

        Raises EnvironmentFault when that cannot be done.
        """
        entry, place = locked(image), registry.place(image.root)
        if image.override is not None:
            registry.transfer("docker", "pull", image.reference, sink, self.daemon.environment)
        elif entry is not None and place is not None:
            registry.pull(self.daemon, image, entry, place, sink)
        elif self._build is not None:
            build(self.daemon, image, sink, self._build)
        else:
            registry.built(self.daemon, image)

    def close(self) -> None:
        if daemon := self.__dict__.pop("daemon", None):
            daemon.close()

    # -- how a container is asked for, made and removed ----------------------------------------

    def _image(self, image: ImageRef) -> dict[str, Any] | None:
        entry = locked(image)
        found = registry.find(self.daemon, entry) if entry else None
        return found or self.daemon.image(image.reference)

    def _grant(self, request: GpuRequest, *, ask: bool) -> GpuGrant:
        route = self.daemon.gpu_route() if ask else "nvidia"
        if route == "nvidia":
            return GpuGrant(route=route, devices=tuple(one.name for one in request.devices))
        return GpuGrant(route=route, devices=cdi_names(request, self.daemon.cdi_devices))

    def _fitted(self, spec: ContainerSpec) -> ContainerSpec:
        user = spec.user
        if self.daemon.has("rootless"):  # root inside is the caller outside
            user = "0:0"
        elif spec.needs.cap_add:  # a capability has no effect for an ordinary user
            user = f"0:{self.caller.partition(':')[2]}"
        return replace(spec, user=user, userns="host" if self.daemon.has("userns") else "")

    def _create(self, spec: ContainerSpec) -> dict[str, Any]:
        options = ("--pull", "never", "--log-driver", "local")
        with signals.shielded():
            self.do(*self._line(spec, "create", *options)[1:])
        return self.inspect("container", spec.name) or {}

    def inspect(self, kind: Literal["image", "container"], name: str) -> dict[str, Any] | None:
        return self.daemon.ask(f"/{kind}s/{name}/json") or None

    def remove_container(self, name: str) -> None:
        try:
            self.daemon.ask(f"/containers/{name}?force=1&v=1", "DELETE")
        except EnvironmentFault as fault:
            if "is already in progress" not in fault.message:  # somebody else removes it
                raise

    def _environment(self) -> dict[str, str]:
        return self.daemon.environment

    @contextmanager
    def _lent(self, out: Path, spec: ContainerSpec, sink: Sink) -> Iterator[ContainerSpec]:
        """As everywhere; where the point is root inside and we are not, by way of the group."""
        if os.geteuid() == 0 or self.daemon.has("rootless") or not spec.user.startswith("0:"):
            with super()._lent(out, spec, sink) as fitting:
                yield fitting
            return
        out.chmod(out.stat().st_mode | 0o070)
        try:
            yield spec
        finally:
            # What root wrote is given to the caller from inside: outside we may not.
            argv = ("chown", "-R", self.caller, OUT_DIR)
            mounts = tuple(mount for mount in spec.mounts if mount.target == OUT_DIR)
            name, needs = f"{spec.name}-chown", RuntimeNeeds(cap_add=("CHOWN",))
            given = replace(spec, name=name, argv=argv, needs=needs, mounts=mounts, gpus=None)
            with signals.shielded():
                self._performed(given, sink, 300)

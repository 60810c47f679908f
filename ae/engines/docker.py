"""The engine `docker`: containers of this machine's Docker daemon."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ae.daemon.cdi import cdi_names
from ae.daemon.connection import NO_ROUTE, Daemon, connect, endpoint_of
from ae.daemon.faults import faults
from ae.engines.base import GRACE_S, OUT_DIR, Availability, Outcome, Sink
from ae.engines.containers import ContainerEngine
from ae.engines.output import LastWords, classify, follow
from ae.engines.spec import (
    ContainerSpec,
    GpuGrant,
    honoured,
    seconds_between,
    to_api,
    to_argv,
)
from ae.errors import EnvironmentFault
from ae.host import owner, signals
from ae.host.watchdog import Reaper
from ae.images import registry, settings
from ae.images.build import build
from ae.images.content import BuildOptions, client_environment, find_client
from ae.images.lockfile import locked
from ae.model import GpuRequest, ImageRef, RuntimeNeeds, Status


class DockerEngine(ContainerEngine):
    """Runs points in containers of a Docker daemon; connects when first needed."""

    name = "docker"
    no_gpus = NO_ROUTE
    dropped_fix = "use a Docker Engine of version 25 or later; see `ae doctor`"

    def __init__(
        self,
        reaper: Reaper | None = None,
        *,
        build: BuildOptions | None = None,
        endpoint: str | None = None,
        user: str | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        super().__init__(reaper, build=build, user=user, grace_s=grace_s)
        self.endpoint = endpoint or endpoint_of()

    @cached_property
    def daemon(self) -> Daemon:
        """The daemon. Raises EnvironmentFault when it cannot be used."""
        return connect(self.endpoint)

    @property
    def _reached(self) -> str:
        return self.endpoint

    def available(self) -> Availability:
        try:
            daemon = self.daemon
        except EnvironmentFault as fault:
            return Availability(ok=False, detail=fault.message, fix=fault.fix)
        route = daemon.gpu_route()
        names = {"cdi": "CDI", "nvidia": "NVIDIA runtime", "": "no GPU support"}
        return Availability(
            ok=True,
            detail=f"Docker Engine {daemon.version} at {daemon.endpoint}, {names[route]}",
            facts={
                "endpoint": daemon.endpoint,
                "version": daemon.version,
                "api": daemon.control.api_version,
                "gpu_route": route,
                "storage": str(daemon.info.get("Driver", "")),
                "root": str(daemon.info.get("DockerRootDir", "")),
            },
        )

    def prepare(self, image: ImageRef, sink: Sink) -> None:
        """Pull what a person named, and the locked image where there is a registry; else build.

        Raises EnvironmentFault when that cannot be done.
        """
        from docker.utils import parse_repository_tag

        entry, place = locked(image), settings.registry()
        if image.override is not None:
            repository, tag = parse_repository_tag(image.reference)
            registry.fetch(self.daemon, repository, tag or "latest", sink)
        elif entry is not None and place is not None:
            registry.pull(self.daemon, image, entry, place, sink)
        elif self._build is not None:
            build(image.source.parent.parent, image, sink, self._build, endpoint=self.endpoint)
        else:
            raise EnvironmentFault(
                f"the image {image.reference} is not there, or not built from this tree",
                fix=f"ae build {image.name} --flavour {image.flavour}",
            )

    def close(self) -> None:
        if daemon := self.__dict__.pop("daemon", None):
            daemon.close()

    # -- how a container is asked for, made and removed ----------------------------------------

    def _image(self, image: ImageRef) -> dict[str, Any] | None:
        entry = locked(image)
        found = registry.find(self.daemon, image, entry) if entry else None
        return found or self.daemon.image(image.reference)

    def _grant(self, request: GpuRequest, *, ask: bool) -> GpuGrant:
        route = self.daemon.gpu_route() if ask else "nvidia"
        if not route:
            raise EnvironmentFault(NO_ROUTE[0], fix=NO_ROUTE[1])
        if route == "nvidia":
            return GpuGrant(route=route, devices=tuple(one.name for one in request.devices))
        return GpuGrant(route=route, devices=cdi_names(request, self.daemon.cdi_devices()))

    def _fitted(self, spec: ContainerSpec) -> ContainerSpec:
        user = spec.user
        if self.daemon.rootless:  # root inside is the caller outside
            user = "0:0"
        elif spec.needs.cap_add:  # a capability has no effect for an ordinary user
            user = f"0:{self._caller.partition(':')[2]}"
        return replace(spec, user=user, userns="host" if self.daemon.remaps_users else "")

    def _create(self, spec: ContainerSpec) -> dict[str, Any]:
        control = self.daemon.control
        with faults(self.endpoint):
            with signals.shielded():
                control.create_container_from_config(to_api(spec), spec.name)  # type: ignore[no-untyped-call]
            made: dict[str, Any] = control.inspect_container(spec.name)
        return made

    def _follow(
        self, spec: ContainerSpec, made: dict[str, Any], sink: Sink, timeout_s: float
    ) -> Outcome:
        words = LastWords(sink)
        with faults(self.endpoint):
            ended = follow(self.daemon, spec.name, words, timeout_s, self._grace_s)
        if ended.container is None:
            return Outcome(
                status=Status.FAILED,
                exit_code=137,
                seconds=ended.seconds,
                reason="its container was killed and removed by somebody else",
            )
        state = ended.container["State"]
        status, reason = classify(
            int(state["ExitCode"]),
            oom=bool(state.get("OOMKilled")),
            timed_out=ended.timed_out,
            timeout_s=timeout_s,
            last_words=words.last,
        )
        return Outcome(
            status=status,
            exit_code=int(state["ExitCode"]),
            seconds=seconds_between(state["StartedAt"], state["FinishedAt"]),
            reason=reason,
            image_id=str(ended.container.get("Image", "")),
            honoured={
                "engine": f"Docker Engine {self.daemon.version}",
                "endpoint": self.endpoint,
                "gpu_route": spec.gpus.route if spec.gpus else "none",
                **honoured(ended.container),
            },
        )

    def _remove(self, name: str) -> None:
        from docker.errors import APIError, NotFound

        with faults(self.endpoint):
            try:
                self.daemon.control.remove_container(name, force=True, v=True)
            except NotFound:
                return
            except APIError as error:
                if error.status_code != 409:  # 409: it is being removed already
                    raise

    def _rows(self) -> Iterable[tuple[str, Mapping[str, str]]]:
        with faults(self.endpoint):
            found = self.daemon.control.containers(all=True, filters={"label": [owner.RUN]})
        return [(one["Id"], one.get("Labels") or {}) for one in found]

    def _line(self, spec: ContainerSpec, options: tuple[str, ...]) -> tuple[str, ...]:
        client = "docker"
        if spec.name:  # not to be read, but to be run
            client = find_client(self.endpoint)
        return to_argv(spec, (client, "run", *options, "--rm", "--init"))

    def _environment(self) -> dict[str, str]:
        return client_environment(self.endpoint)

    @contextmanager
    def _lent(self, out: Path, spec: ContainerSpec, sink: Sink) -> Iterator[ContainerSpec]:
        """As everywhere; where the point is root inside and we are not, by way of the group."""
        if os.geteuid() == 0 or self.daemon.rootless or not spec.user.startswith("0:"):
            with super()._lent(out, spec, sink) as fitting:
                yield fitting
            return
        out.chmod(out.stat().st_mode | 0o070)
        try:
            yield spec
        except BaseException:
            with signals.shielded(), suppress(EnvironmentFault):
                self._hand_over(spec, sink)
            raise
        self._hand_over(spec, sink)

    def _hand_over(self, spec: ContainerSpec, sink: Sink) -> None:
        """Give what root wrote to the caller, from inside: outside we may not."""
        argv = ("chown", "-R", self._caller, OUT_DIR)
        mounts = tuple(mount for mount in spec.mounts if mount.target == OUT_DIR)
        name, needs = f"{spec.name}-chown", RuntimeNeeds(cap_add=("CHOWN",))
        given = replace(spec, name=name, argv=argv, needs=needs, mounts=mounts, gpus=None)
        self._performed(given, sink, 300)

"""The engine `docker`: a point is a container, checked against what was asked, always removed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ae.daemon.cdi import NO_ROUTE, choose_cdi
from ae.daemon.connection import Daemon, connect, endpoint_of, faults, looks_far
from ae.engines.base import Availability, Job, Leftover, Outcome, Sink
from ae.engines.exits import LastWords, classify
from ae.engines.secrets import held, plain_mounts, sent_files
from ae.engines.spec import (
    ContainerSpec,
    GpuGrant,
    dropped,
    honoured,
    spec_of,
    to_api,
    to_argv,
)
from ae.engines.wording import borrowed, container_name, seconds_between, split_reference
from ae.errors import EnvironmentFault
from ae.host import owner, signals
from ae.host.machine import require_disk
from ae.images import settings
from ae.images.lockfile import locked
from ae.model import Flavour, GpuRequest, ImageRef, Point, Status

if TYPE_CHECKING:
    from ae.engines.far import FarFolders
    from ae.host.watchdog import Reaper
    from ae.images.content import BuildOptions

GRACE_S = 10.0  # between TERM and KILL


class DockerEngine:
    """Runs points in containers of a Docker daemon; connects when first needed."""

    name = "docker"

    def __init__(
        self,
        reaper: Reaper | None = None,
        *,
        build: BuildOptions | None = None,
        endpoint: str | None = None,
        user: str | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        """`build` None: images are used as they are, and a missing one is an EnvironmentFault."""
        self._reaper = reaper
        self._build = build
        self._user = user or f"{os.getuid()}:{os.getgid()}"
        self._grace_s = grace_s
        self._sees_files: bool | None = None  # not asked yet
        self.endpoint = endpoint or endpoint_of()

    @cached_property
    def daemon(self) -> Daemon:
        """The daemon. Raises EnvironmentFault when it cannot be used."""
        return connect(self.endpoint)

    def available(self) -> Availability:
        """Whether the daemon answers."""
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
                **({"machine": daemon.host} if looks_far(daemon.endpoint) else {}),
                "root": str(daemon.info.get("DockerRootDir", "")) if daemon.is_local else "",
            },
        )

    def supports(self, flavour: Flavour) -> Availability:
        """Whether images of this flavour can run: `cuda` needs a way to hand GPUs over."""
        found = self.available()
        if not found.ok or flavour is Flavour.CPU or found.facts["gpu_route"]:
            return found
        return replace(found, ok=False, detail=NO_ROUTE[0], fix=NO_ROUTE[1])

    def has_image(self, image: ImageRef) -> bool:
        """Whether the image that is to run is there: the locked one where it can be had, else one
        that is built from what the tree holds now."""
        found = self._resolve(image)
        if found is None or image.override is not None:
            return found is not None
        if _labels(found).get("ae.content") != image.content:
            return False
        entry = locked(image)
        return entry is None or entry.names(found) or settings.registry() is None

    def prepare(self, image: ImageRef, sink: Sink) -> None:
        """Pull what a person named, and the locked image where there is a registry; else build.

        Raises EnvironmentFault when that cannot be done.
        """
        if image.override is not None:
            self.pull(image.reference, sink)
            return
        entry, place = locked(image), settings.registry()
        if entry is not None and place is not None:
            from ae.images.registry import pull

            pull(self.daemon, image, entry, place, sink)
            return
        if self._build is None:
            raise EnvironmentFault(
                f"the image {image.reference} is not there, or not built from this tree",
                fix=f"ae build {image.name} --flavour {image.flavour}",
            )
        from ae.images.build import build

        build(image.source.parent.parent, image, sink, self._build, endpoint=self.endpoint)

    def pull(self, reference: str, sink: Sink) -> None:
        """Fetch an image from its registry. Raises EnvironmentFault when that fails half-way."""
        repository, tag = split_reference(reference)
        with faults(self.endpoint):
            # The low-level stream: it says when a pull breaks in the middle.
            for event in self.daemon.patient.pull(repository, tag=tag, stream=True, decode=True):
                if "error" in event:
                    raise EnvironmentFault(
                        f"pulling {reference} failed: {event['error']}",
                        fix="check the name, the registry, and `docker login`",
                    )
                if event.get("status") and not event.get("progressDetail"):
                    layer = f"{event['id']}: " if event.get("id") else ""
                    sink.line("stdout", f"{layer}{event['status']}")

    def run(self, job: Job, sink: Sink, timeout_s: float) -> Outcome:
        """Run a job in a container; every way to end is an Outcome, see the engine contract."""
        require_disk(job.out, job.point.disk_bytes, f"point {job.point.id}")
        name = container_name(job.point, secrets.token_hex(4))
        spec = self._spec(job, name, self._grant(job.point.needs.gpus))
        facts = self._image_facts(job.point.image, spec.image)
        if self._is_far(job, spec):
            outcome = self._run_far(spec, job, sink, timeout_s)
        else:
            with held(job, spec.user, self._reaper) as mounts:
                spec = replace(spec, mounts=(*spec.mounts, *mounts))
                with self._created(spec, sink) as inspected:
                    self._check(spec, inspected)
                    outcome = self._follow(spec, sink, timeout_s)
            if self._gives_root(job):
                self._hand_over(job, sink)
        return replace(outcome, honoured={**outcome.honoured, "image": facts})

    def leftovers(self) -> list[Leftover]:
        """Containers and volumes that carry our label, of living launchers too."""
        with faults(self.endpoint):
            wanted = {"label": [owner.RUN]}
            containers = self.daemon.control.containers(all=True, filters=wanted)
            volumes = self.daemon.control.volumes(filters=wanted).get("Volumes") or []
        found: list[tuple[Literal["container", "volume"], str, dict[str, str]]] = []
        found += [("container", one["Id"], one.get("Labels") or {}) for one in containers]
        found += [("volume", one["Name"], one.get("Labels") or {}) for one in volumes]
        return [
            Leftover(
                engine=self.name,
                kind=kind,
                id=name,
                run=labels.get(owner.RUN, ""),
                owner_alive=owner.alive(labels),
            )
            for kind, name, labels in found
        ]

    def remove(self, leftover: Leftover) -> None:
        """Remove a container or volume; one that has gone already is fine."""
        if leftover.kind == "volume":
            from docker.errors import NotFound

            with faults(self.endpoint):
                try:
                    self.daemon.control.remove_volume(leftover.id)
                except NotFound:
                    return
        else:
            self._remove(leftover.id)

    def equivalent(self, job: Job) -> tuple[str, ...]:
        """The `docker run` line for a job. Asks the daemon nothing: `--dry-run` needs none."""
        spec = self._plain_spec(job)
        return to_argv(replace(spec, mounts=(*spec.mounts, *plain_mounts(job))))

    def shell(
        self, point: Point, out: Path, files: Mapping[str, Path] | None = None
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Command and environment of a shell on this terminal, with a run's GPUs and folders."""
        from ae.images.content import client_environment, find_client

        point = replace(point, argv=("sh", "-i"))
        job = Job(point=point, out=out.resolve(), labels={}, secrets=files or {})
        spec = self._spec(job, "", self._grant(point.needs.gpus))
        if self._is_far(job, spec):
            raise EnvironmentFault(
                f"the daemon at {self.endpoint} does not see the folders of this machine",
                fix="open the shell on its own machine, or use a daemon here",
            )
        words = to_argv(replace(spec, mounts=(*spec.mounts, *plain_mounts(job))))
        client = find_client(self.endpoint)
        argv = (client, "run", "--interactive", "--tty", *words[2:])
        return argv, client_environment(self.endpoint)

    def close(self) -> None:
        """Close the connections; the engine connects again when it is used again."""
        if far := self.__dict__.pop("_far", None):
            far.close()
        if daemon := self.__dict__.pop("daemon", None):
            daemon.close()

    # -- a daemon on another machine ---------------------------------------------------------

    @cached_property
    def _far(self) -> FarFolders:
        from ae.engines.far import FarFolders

        return FarFolders(self.daemon, self._reaper)

    def _is_far(self, job: Job, spec: ContainerSpec) -> bool:
        """Whether the daemon does not see this machine's files; asked once."""
        if self._sees_files is None:
            from ae.engines.far import sees

            self._sees_files = sees(self.daemon, job.out, spec.image, spec.labels)
        return not self._sees_files

    def _run_far(self, asked: ContainerSpec, job: Job, sink: Sink, timeout_s: float) -> Outcome:
        """Like `run`, with inputs sent and outputs fetched as archives, however the job ends."""
        from ae.engines.far import judged

        with self._far.laid_out(asked, job, sink) as spec, self._created(spec, sink) as inspected:
            self._check(spec, inspected)
            self._far.fill(spec, asked, sent_files(job, spec.user))
            try:
                outcome = self._follow(spec, sink, timeout_s)
            except BaseException:
                with signals.shielded():
                    if wrong := self._far.fetch(spec, job):
                        sink.line("stderr", f"ae: {wrong}")
                raise
            return judged(outcome, self._far.fetch(spec, job))

    # -- one container ---------------------------------------------------------------------

    def _check(self, spec: ContainerSpec, inspected: dict[str, Any]) -> None:
        """Raise EnvironmentFault when the daemon dropped what the point needs."""
        if missing := dropped(spec, inspected):
            raise EnvironmentFault(
                f"the engine at {self.endpoint} dropped what the point needs: "
                + ", ".join(missing),
                fix="use a Docker Engine of version 25 or later; see `ae doctor`",
            )

    @contextmanager
    def _created(self, spec: ContainerSpec, sink: Sink) -> Iterator[dict[str, Any]]:
        """Create the container, yield what the daemon made of it, and remove it whatever comes."""
        control = self.daemon.control
        if self._reaper:
            # Before it exists: a launcher killed during creation leaves nothing either.
            self._reaper.watch_container(self.endpoint, spec.name)
        try:
            with faults(self.endpoint):
                with signals.shielded():
                    control.create_container_from_config(  # type: ignore[no-untyped-call]
                        to_api(spec), spec.name
                    )
                inspected: dict[str, Any] = control.inspect_container(spec.name)
            yield inspected
        finally:
            with signals.shielded():
                try:
                    self._remove(spec.name)
                except EnvironmentFault as fault:  # must not hide why we are here
                    sink.line(
                        "stderr", f"ae: {spec.name} may be left, for `ae clean`: {fault.message}"
                    )
                else:
                    if self._reaper:
                        self._reaper.done(spec.name)

    def _follow(self, spec: ContainerSpec, sink: Sink, timeout_s: float) -> Outcome:
        """Start a created container and wait for its end, or for the deadline."""
        from ae.engines.following import follow

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
            honoured=self._facts(spec, ended.container),
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

    def _facts(self, spec: ContainerSpec, inspected: Mapping[str, Any]) -> dict[str, object]:
        return {
            "engine": f"Docker Engine {self.daemon.version}",
            "endpoint": self.endpoint,
            "gpu_route": spec.gpus.route if spec.gpus else "none",
            **honoured(inspected),
        }

    def _image_facts(self, image: ImageRef, found_id: str) -> dict[str, object]:
        """What ran, for the record: repository digests, and whether it is the locked image."""
        found = self.daemon.image(found_id) or {"Id": found_id}
        entry = locked(image)
        facts: dict[str, object] = {"digests": sorted(found.get("RepoDigests") or [])}
        return facts if entry is None else facts | {"locked": entry.names(found)}

    # -- what a container is made from -------------------------------------------------------

    def _spec(self, job: Job, name: str, grant: GpuGrant | None) -> ContainerSpec:
        reference = job.point.image.reference
        image = self._resolve(job.point.image)
        if image is None:
            raise EnvironmentFault(
                f"the image {reference} is not there",
                fix=f"ae build {job.point.image.name} --flavour {job.point.image.flavour}",
            )
        root = self.daemon.rootless or self._gives_root(job)
        return spec_of(
            job,
            name=name,
            labels=owner.stamp(job.labels),
            user="0:0" if root else self._user,
            gpus=grant,
            binds=borrowed(reference, _labels(image)),
            userns="host" if self.daemon.remaps_users else "",
            image=str(image["Id"]),  # by id: a tag may be moved at any time
        )

    def _plain_spec(self, job: Job) -> ContainerSpec:
        request = job.point.needs.gpus
        grant = None
        if request is not None:
            grant = GpuGrant(route="nvidia", devices=request.devices, count=request.count)
        user = "0:0" if self._gives_root(job) else self._user
        return spec_of(job, name="", labels={}, user=user, gpus=grant)

    def _grant(self, request: GpuRequest | None) -> GpuGrant | None:
        if request is None:
            return None
        route = self.daemon.gpu_route()
        if not route:
            raise EnvironmentFault(NO_ROUTE[0], fix=NO_ROUTE[1])
        if route == "nvidia":
            return GpuGrant(route=route, devices=request.devices, count=request.count)
        return GpuGrant(route=route, devices=choose_cdi(request, self.daemon.cdi_devices()))

    def _gives_root(self, job: Job) -> bool:
        """A capability has no effect for an ordinary user: such a point runs as root inside."""
        return bool(job.point.needs.cap_add) and not self._user.startswith("0:")

    def _hand_over(self, job: Job, sink: Sink) -> None:
        """Give what root wrote to the caller, from inside: outside we may not."""
        if self.daemon.rootless:
            return
        needs = replace(job.point.needs, gpus=None, cap_add=(), memory_bytes=None, mounts=())
        argv = ("chown", "-R", self._user, "/ae/out")
        point = replace(job.point, argv=argv, needs=needs)
        spec = replace(
            self._spec(replace(job, point=point), f"ae-chown-{secrets.token_hex(4)}", None),
            user="0:0",
        )
        with self._created(spec, sink):
            self._follow(spec, sink, 300)

    def _resolve(self, image: ImageRef) -> dict[str, Any] | None:
        """The image that is to run: the locked one if it is here, else what the tag names."""
        entry = locked(image)
        if entry is not None:
            from ae.images.registry import find

            if found := find(self.daemon, image, entry):
                return found
        return self.daemon.image(image.reference)


def _labels(image: dict[str, Any]) -> dict[str, str]:
    return dict((image.get("Config") or {}).get("Labels") or {})

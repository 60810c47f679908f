"""The engine `podman`, by its command line: no daemon, as root or as an ordinary user.

A container is created, initialised (its namespaces, limits and devices are there, its program is
not started yet), compared with what was asked, started with its output attached, and removed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ae.daemon.cdi import choose_cdi
from ae.engines import podman_images
from ae.engines.base import Availability, Job, Leftover, Outcome, Sink
from ae.engines.exits import LastWords, classify
from ae.engines.podman_client import (
    CREATE_TIMEOUT_S,
    Podman,
    connect,
    fault_of,
    init_program,
    init_words,
    limit_words,
)
from ae.engines.podman_inspect import as_docker, dropped_by_podman, has_started
from ae.engines.secrets import held, plain_mounts
from ae.engines.spec import ContainerSpec, GpuGrant, honoured, spec_of, to_argv
from ae.engines.wording import borrowed, container_name, seconds_between
from ae.errors import EnvironmentFault
from ae.host import owner, processes, signals
from ae.host.machine import oom_kills, require_disk
from ae.images import settings
from ae.images.lockfile import locked
from ae.model import Flavour, GpuRequest, ImageRef, Point

if TYPE_CHECKING:
    from ae.host.watchdog import Reaper
    from ae.images.content import BuildOptions

GRACE_S = 10.0  # between TERM and KILL
_NO_GPUS = (
    "podman finds no CDI spec for NVIDIA GPUs",
    "install the NVIDIA Container Toolkit, then: sudo nvidia-ctk cdi generate "
    "--output=/etc/cdi/nvidia.yaml",
)


class PodmanEngine:
    """Runs points in containers of the podman on PATH; storage and runtime are as it is set up."""

    name = "podman"

    def __init__(
        self,
        reaper: Reaper | None = None,
        *,
        build: BuildOptions | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        """`build` None: images are used as they are, and a missing one is an EnvironmentFault."""
        self._reaper = reaper
        self._build = build
        self._grace_s = grace_s

    @cached_property
    def podman(self) -> Podman:
        """The program. Raises EnvironmentFault when it cannot be used."""
        return connect()

    def available(self) -> Availability:
        """Whether podman answers; `starts` shows whether a container really starts."""
        try:
            podman = self.podman
        except EnvironmentFault as fault:
            return Availability(ok=False, detail=fault.message, fix=fault.fix)
        who = "rootless" if podman.rootless else "as root"
        route = "cdi" if podman.cdi_devices else ""
        return Availability(
            ok=True,
            detail=f"podman {podman.version} {who}, {'CDI' if route else 'no GPU support'}",
            facts={
                "endpoint": f"podman {who}",
                "version": podman.version,
                "gpu_route": route,
                "storage": podman.storage,
                "root": str(podman.graph_root),
            },
        )

    def supports(self, flavour: Flavour) -> Availability:
        """Whether images of this flavour can run: `cuda` needs a CDI spec."""
        found = self.available()
        if not found.ok or flavour is Flavour.CPU or found.facts["gpu_route"]:
            return found
        return replace(found, ok=False, detail=_NO_GPUS[0], fix=_NO_GPUS[1])

    def starts(self) -> Availability:
        """Whether a container really starts: an init program alone in an empty root, half a second.

        A podman that answers may still lack user ids, or a runtime that knows the control groups.
        """
        found = self.available()
        program = init_program()
        if not found.ok or program is None:
            fix = found.fix or "install the package catatonit, or tini"
            return replace(found, ok=False, detail=found.detail or "no init program", fix=fix)
        with tempfile.TemporaryDirectory(prefix="ae-podman-") as folder:
            root = Path(folder)
            root.chmod(0o755)
            for name in ("proc", "sys", "dev", "etc", "run", "tmp"):  # mount points
                (root / name).mkdir()
            shutil.copy2(program, root / "program")
            words = ["run", "--rm", "--network", "none", "--log-driver", "none", *limit_words()]
            words += ["--rootfs", folder, "/program", "--version"]
            try:
                self.podman.do(*words)
            except EnvironmentFault as fault:
                return replace(found, ok=False, detail=fault.message, fix=fault.fix)
        return found

    def has_image(self, image: ImageRef) -> bool:
        """Whether the image that is to run is there, locked or built from this tree."""
        return podman_images.is_ready(self.podman, image)

    def prepare(self, image: ImageRef, sink: Sink) -> None:
        """Pull what a person named, and the locked image where there is a registry; else copy ours
        from Docker, or build it.

        Where a Docker Engine answers, it builds, and podman gets the same image. Raises
        EnvironmentFault when the image cannot be had.
        """
        if image.override is not None:
            podman_images.pull(self.podman, image.reference, sink)
            return
        entry, place = locked(image), settings.registry()
        if entry is not None and place is not None:
            podman_images.pull_locked(self.podman, image, entry, place, sink)
            return
        from ae.engines.docker import DockerEngine

        docker = DockerEngine(build=self._build)
        try:
            answers = docker.available().ok
            if answers and (self._build is not None or docker.has_image(image)):
                if not docker.has_image(image):
                    docker.prepare(image, sink)
                podman_images.copy_from_docker(self.podman, docker, image, sink)
                return
        finally:
            docker.close()
        if self._build is None:
            raise EnvironmentFault(
                f"podman has no image {image.reference} that is built from this tree",
                fix="run without --no-build once",
            )
        root = image.source.parent.parent
        podman_images.build(self.podman, root, image, sink, self._build)

    def run(self, job: Job, sink: Sink, timeout_s: float) -> Outcome:
        """Run a job in a container; every way to end is an Outcome, see the engine contract."""
        require_disk(job.out, job.point.disk_bytes, f"point {job.point.id}")
        name = container_name(job.point, secrets.token_hex(4))
        spec = self._spec(job, name, self._grant(job.point.needs.gpus))
        with (
            held(job, _user(), self._reaper) as mounts,
            tempfile.TemporaryDirectory(prefix="ae-podman-", ignore_cleanup_errors=True) as monitor,
        ):
            spec = replace(spec, mounts=(*spec.mounts, *mounts))
            with self._created(spec, Path(monitor), sink) as inspected:
                missing, fix = dropped_by_podman(spec, inspected, rootless=self.podman.rootless)
                if missing:
                    raise EnvironmentFault(
                        f"podman dropped what the point needs: {', '.join(missing)}", fix=fix
                    )
                outcome = self._follow(spec, inspected, Path(monitor), sink, timeout_s)
        image = podman_images.facts(self.podman, job.point.image, spec.image)
        return replace(outcome, honoured={**outcome.honoured, "image": image})

    def leftovers(self) -> list[Leftover]:
        """Containers and volumes that carry our label, of living launchers too."""
        wanted = ("--filter", f"label={owner.RUN}")
        containers = self.podman.rows("ps", "--all", *wanted)
        volumes = self.podman.rows("volume", "ls", *wanted)
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
        self._remove(leftover.kind, leftover.id)

    def equivalent(self, job: Job) -> tuple[str, ...]:
        """The `podman run` line for a job. Asks nothing: `--dry-run` needs no podman."""
        request = job.point.needs.gpus
        grant = None
        if request is not None:
            grant = GpuGrant(route="cdi", devices=choose_cdi(request, None))
        spec = spec_of(
            job,
            name="",
            labels={},
            user=_user(),
            gpus=grant,
            userns="keep-id" if os.geteuid() != 0 else "",
        )
        spec = replace(spec, mounts=(*spec.mounts, *plain_mounts(job)))
        return to_argv(spec, ("podman", "run", "--rm", "--init"))

    def shell(
        self, point: Point, out: Path, files: Mapping[str, Path] | None = None
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Command and environment of a shell on this terminal, with a run's GPUs and folders."""
        point = replace(point, argv=("sh", "-i"))
        job = Job(point=point, out=out.resolve(), labels={}, secrets=files or {})
        spec = self._spec(job, "", self._grant(point.needs.gpus))
        spec = replace(spec, mounts=(*spec.mounts, *plain_mounts(job)))
        head = (self.podman.path, "run", "--interactive", "--tty", "--rm", *init_words())
        return to_argv(spec, head, self._extra(spec)), dict(os.environ)

    # -- one container ---------------------------------------------------------------------

    @contextmanager
    def _created(self, spec: ContainerSpec, monitor: Path, sink: Sink) -> Iterator[dict[str, Any]]:
        """Create and initialise a container, yield what podman made of it, in Docker's shape, and
        remove it whatever comes. Its monitor works in the folder `monitor`."""
        if self._reaper:
            # Before it exists: a launcher killed during creation leaves nothing either.
            self._reaper.watch_container(f"podman:{self.podman.path}", spec.name)
        try:
            self.podman.do(*self._create_words(spec), timeout_s=CREATE_TIMEOUT_S)
            self.podman.do("init", spec.name, timeout_s=CREATE_TIMEOUT_S, cwd=monitor)
            inspected = self.podman.inspect("container", spec.name)
            if inspected is None:
                raise EnvironmentFault(
                    f"the container {spec.name} was removed before it ran",
                    fix="look for a program that prunes containers: podman container prune",
                )
            yield as_docker(inspected, spec, self.podman.cdi_devices if spec.gpus else {})
        finally:
            with signals.shielded():
                try:
                    self._remove("container", spec.name)
                except EnvironmentFault as fault:  # must not hide why we are here
                    sink.line("stderr", f"ae: {spec.name} may be left: {fault.message}")
                else:
                    if self._reaper:
                        self._reaper.done(spec.name)

    def _follow(
        self,
        spec: ContainerSpec,
        inspected: dict[str, Any],
        monitor: Path,
        sink: Sink,
        timeout_s: float,
    ) -> Outcome:
        """Start an initialised container and wait for its end, or for the deadline."""
        words = LastWords(sink)
        kills = oom_kills()
        # The client passes TERM on to the container; whoever is deaf to it is killed by `_ended`.
        client = processes.stream(
            [self.podman.path, "--log-level", "error", "start", "--attach", spec.name],
            words.line,
            timeout_s=timeout_s,
            grace_s=self._grace_s,
        )
        ended = self._ended(spec.name, timed_out=client.timed_out)
        if ended is None:  # somebody has removed it
            code, seconds = (client.returncode if client.returncode > 0 else 137), client.seconds
        elif not has_started(ended):
            raise fault_of(words.last)
        else:
            state = ended["State"]
            code = int(state["ExitCode"])
            seconds = seconds_between(state["StartedAt"], state["FinishedAt"])
        flagged = (monitor / "oom").exists()  # what the monitor leaves, and not every podman reads
        flagged |= ended is not None and bool(ended["State"].get("OOMKilled"))
        status, reason = classify(
            code,
            # Where the monitor cannot see it, the kernel counts what it has killed.
            oom=flagged or (code == 137 and oom_kills() > kills),
            timed_out=client.timed_out,
            timeout_s=timeout_s,
            last_words=words.last,
        )
        return Outcome(
            status=status,
            exit_code=code,
            seconds=seconds,
            reason=reason,
            image_id=f"sha256:{inspected['Image'].removeprefix('sha256:')}",
            honoured=self._facts(spec, inspected),
        )

    def _ended(self, name: str, *, timed_out: bool) -> dict[str, Any] | None:
        """What podman says of a container whose client has ended; None: it has been removed.

        One that still runs is killed; unless the deadline is why, that is an EnvironmentFault.
        """
        found = self.podman.inspect("container", name)
        if found is None or not found["State"].get("Running"):
            return found
        self.podman.call("kill", "--signal", "KILL", name)
        self.podman.call("wait", name)
        if not timed_out:
            raise EnvironmentFault(
                f"podman's client ended while the container {name} was running",
                fix="see whether somebody has killed it; then run again",
            )
        return self.podman.inspect("container", name)

    def _remove(self, kind: str, name: str) -> None:
        verb = ("volume", "rm", "--force") if kind == "volume" else ("rm", "--force", "--volumes")
        done = self.podman.call(*verb, name)
        exists = ("volume", "exists") if kind == "volume" else ("container", "exists")
        if done.returncode != 0 and self.podman.call(*exists, name).returncode != 1:
            raise fault_of(done.stderr)

    def _facts(self, spec: ContainerSpec, inspected: dict[str, Any]) -> dict[str, object]:
        facts: dict[str, object] = {
            "engine": f"podman {self.podman.version}",
            "endpoint": self.available().facts["endpoint"],
            "gpu_route": spec.gpus.route if spec.gpus else "none",
            "runtime": inspected.get("OCIRuntime", ""),
            **honoured(inspected),
        }
        if spec.userns:
            facts["UsernsMode"] = spec.userns  # capabilities hold in that namespace only
        return facts

    # -- what a container is made from -------------------------------------------------------

    def _create_words(self, spec: ContainerSpec) -> tuple[str, ...]:
        words = ["--name", spec.name, "--pull", "never"]
        for key, value in spec.labels.items():
            words += ["--label", f"{key}={value}"]
        # The launcher keeps the output; a log of podman's own would be a second copy of it.
        words += ["--log-driver", "none"]
        words += ["--stop-timeout", "0"]  # `rm --force` kills at once
        return to_argv(spec, ("create", *init_words()), (*words, *self._extra(spec)))

    def _extra(self, spec: ContainerSpec) -> tuple[str, ...]:
        """Where podman's defaults differ from Docker's and would change what is measured."""
        words = limit_words([limit.name for limit in spec.needs.ulimits])
        words += ["--pids-limit", "-1"]  # else 2048, which a large host's thread pools reach
        words += ["--http-proxy=false"]  # else the caller's proxy settings appear inside
        if self.podman.selinux:
            words += ["--security-opt", "label=disable"]  # relabelling would change the folders
        return tuple(words)

    def _spec(self, job: Job, name: str, grant: GpuGrant | None) -> ContainerSpec:
        image = job.point.image
        found = podman_images.find(self.podman, image)
        if found is None:
            raise EnvironmentFault(
                f"podman has no image {image.reference}",
                fix=f"copy it from Docker: docker save {image.reference} | podman load",
            )
        return spec_of(
            job,
            name=name,
            labels=owner.stamp(job.labels),
            user=_user(),
            gpus=grant,
            binds=borrowed(image.reference, found.get("Labels") or {}),
            userns="keep-id" if self.podman.rootless else "",
            image=found["Id"].removeprefix("sha256:"),  # a name could mean several
        )

    def _grant(self, request: GpuRequest | None) -> GpuGrant | None:
        if request is None:
            return None
        devices = tuple(self.podman.cdi_devices)
        if not devices:
            raise EnvironmentFault(_NO_GPUS[0], fix=_NO_GPUS[1])
        return GpuGrant(route="cdi", devices=choose_cdi(request, devices))


def _user() -> str:
    return f"{os.getuid()}:{os.getgid()}"

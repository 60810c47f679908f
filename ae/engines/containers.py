"""What engines of containers share: a point is a container, checked against what was asked, always
removed, and its outputs are the caller's. The client on PATH, docker or podman, does it."""

from __future__ import annotations

import json
import os
import secrets
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ae.daemon.faults import refused
from ae.engines import spec as container
from ae.engines.base import OUT_DIR, Engine, Job, Leftover, Outcome, Shell, Sink
from ae.engines.output import Kept, LastWords, classify
from ae.engines.secrets import mounts_of
from ae.engines.spec import ContainerSpec, GpuGrant, honoured, seconds_between
from ae.errors import EnvironmentFault
from ae.host import owner, processes, signals
from ae.host.machine import oom_kills, require_disk
from ae.images import registry
from ae.images.content import labels, labels_of
from ae.images.lockfile import locked
from ae.model import GpuRequest, ImageRef, Point

CONTROL_TIMEOUT_S = 60  # an answer that late means that it hangs
_LOOK_S = 120.0  # nvidia-smi wakes a driver without persistence mode


class ContainerEngine(Engine):
    """Runs points in containers by the client on PATH that has the engine's name."""

    title: str  # as the record says it, with the version
    dropped_fix: str

    @cached_property
    def _looked(self) -> set[tuple[str, GpuGrant | None]]:
        """The grants that have been seen inside."""
        return set()

    @abstractmethod
    def _image(self, image: ImageRef) -> dict[str, Any] | None:
        """The image that is to run: the locked one if it is here, else what the tag names."""

    @abstractmethod
    def _grant(self, request: GpuRequest, *, ask: bool) -> GpuGrant:
        """The names of a request's GPUs; without `ask` nobody is asked whether they are there."""

    @abstractmethod
    def _fitted(self, spec: ContainerSpec) -> ContainerSpec:
        """The same with what depends on the engine: who is who, and which limits there are."""

    @abstractmethod
    def _create(self, spec: ContainerSpec) -> dict[str, Any]:
        """Create a container; what the engine made of it, in the words of Docker's inspect."""

    @abstractmethod
    def inspect(self, kind: Literal["image", "container"], name: str) -> dict[str, Any] | None:
        """What the engine says of an image or a container; None: there is none of that name."""

    @abstractmethod
    def remove_container(self, name: str) -> None:
        """Remove a container; one that has gone already, or is going, is fine."""

    def _line(self, spec: ContainerSpec, *words: str) -> tuple[str, ...]:
        """The command line that runs (`words` begin with `run`) or creates a container."""
        return container.to_argv(spec, (self.name, *words, "--init"))

    # -- the contract --------------------------------------------------------------------------

    def has_image(self, image: ImageRef) -> bool:
        """Whether the image that is to run is there: the locked one where it can be had, else one
        that is built from what the tree holds now."""
        found = self._image(image)
        if found is None or image.override is not None:
            return found is not None
        entry = locked(image)
        there = entry is None or entry.names(found) or registry.place(image.root) is None
        return there and labels_of(found).get("ae.content") == image.content

    def run(self, job: Job, sink: Sink, timeout_s: float) -> Outcome:
        require_disk(job.out, job.point.disk_bytes, f"point {job.point.id}")
        image = self.needed(job.point.image)
        spec = self._spec(job, image, secrets.token_hex(4))
        if (request := job.point.needs.gpus) and (spec.image, spec.gpus) not in self._looked:
            self._look_inside(spec, request)
            self._looked.add((spec.image, spec.gpus))
        with self._lent(job.out, spec, sink) as spec:
            outcome = self._performed(spec, sink, timeout_s)
        entry = locked(job.point.image)
        facts: dict[str, object] = {"digests": sorted(image.get("RepoDigests") or [])}
        facts |= {"locked": entry.names(image)} if entry else {}
        return replace(outcome, honoured={**outcome.honoured, "image": facts})

    def made_from(self, image: ImageRef) -> str | None:
        options = [f"--filter=label={key}={word}" for key, word in labels(image).items()]
        found = self.do("images", "--all", "--quiet", "--no-trunc", *options).split()
        return found[0] if found else None

    def leftovers(self) -> list[Leftover]:
        """Containers that carry our label, of living launchers too."""
        words = ("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={owner.RUN}")
        names = self.do(*words).split()
        # One may be gone by now: of the others it tells all the same.
        found = json.loads(self.call("container", "inspect", *names).stdout) if names else []
        return [Leftover.of(self.name, "container", one["Id"], labels_of(one)) for one in found]

    def remove(self, leftover: Leftover) -> None:
        self.remove_container(leftover.id)

    def equivalent(self, job: Job) -> tuple[str, ...]:
        needs = job.point.needs
        grant = self._grant(needs.gpus, ask=False) if needs.gpus else None
        user = "0:0" if needs.cap_add else self.caller
        if needs.cap_add:  # root has no way into the caller's folder without; `run` lends it
            needs = replace(needs, cap_add=(*needs.cap_add, "DAC_OVERRIDE"))
        job = replace(job, point=replace(job.point, needs=needs))
        spec = container.spec_of(job, name="", labels={}, user=user, gpus=grant)
        return self._line(spec, "run", "--rm")

    def shell(self, point: Point, out: Path, files: Mapping[str, Path] | None = None) -> Shell:
        terminal = sys.stdin.isatty()
        labels = {owner.RUN: "shell", owner.RECIPE: point.recipe}
        point = replace(point, argv=("sh", "-i") if terminal else ("sh",))
        job = Job(point=point, out=out.resolve(), labels=labels, secrets=files or {})
        spec = self._spec(job, self.needed(point.image), f"shell-{secrets.token_hex(4)}")
        if spec.user == container.ORDINARY:  # nobody is left to give the folder back
            spec = replace(spec, user=self.caller)
        tty = ("--tty",) if terminal else ()
        return self._line(spec, "run", "--interactive", *tty, "--rm"), self._environment()

    # -- the client ------------------------------------------------------------------------------

    def call(self, *words: str, timeout_s: float = CONTROL_TIMEOUT_S) -> processes.Completed:
        """Run the client to its end; any exit code is a result."""
        return processes.run([self.name, *words], timeout_s=timeout_s, env=self._environment())

    def do(self, *words: str, timeout_s: float = CONTROL_TIMEOUT_S) -> str:
        """Run the client and return what it printed. Raises EnvironmentFault."""
        done = self.call(*words, timeout_s=timeout_s)
        if done.returncode != 0:
            raise refused(self.name, done.stderr)
        return done.stdout

    def _environment(self) -> dict[str, str]:
        return dict(os.environ)

    # -- one container ---------------------------------------------------------------------------

    def needed(self, image: ImageRef) -> dict[str, Any]:
        """The image that is to run. Raises EnvironmentFault without it."""
        if (found := self._image(image)) is None:
            said = f"{self.name} has no image {image.reference}"
            raise EnvironmentFault(said, fix=f"ae build {image.name} --flavour {image.flavour}")
        return found

    def _spec(self, job: Job, image: dict[str, Any], token: str) -> ContainerSpec:
        user, request = self.caller, job.point.needs.gpus
        if os.geteuid() == 0 and user == "0:0":
            # A file that is somebody's alone can only be read by him.
            given = [mount.source.stat() for mount in mounts_of(job)]
            private = (f"{s.st_uid}:{s.st_gid}" for s in given if not s.st_mode & 0o004)
            user = next(private, container.ORDINARY)
        return self._fitted(
            container.spec_of(
                job,
                name=container.container_name(job.point, token),
                labels=owner.stamp(job.labels),
                user=user,
                gpus=self._grant(request, ask=True) if request else None,
                binds=container.borrowed(job.point.image.reference, labels_of(image)),
                image=str(image["Id"]),  # by id: a tag may be moved at any time
            )
        )

    def _look_inside(self, spec: ContainerSpec, request: GpuRequest) -> None:
        """Raise EnvironmentFault unless the GPUs that a container was granted are there inside."""
        mounts = tuple(mount for mount in spec.mounts if mount.target != OUT_DIR)
        argv = ("sh", "-c", "ls /dev/nvidia[0-9]* 2>/dev/null; nvidia-smi -L || :")
        look = replace(spec, name=f"{spec.name}-look", argv=argv, mounts=mounts)
        seen = Kept()
        self._performed(look, seen, _LOOK_S)
        container.check_inside(request, seen)

    def _performed(self, spec: ContainerSpec, sink: Sink, timeout_s: float) -> Outcome:
        """Run a container to its end and remove it whatever comes."""
        try:
            made = self._create(spec)
            if missing := container.dropped(spec, made):
                said = f"{self.name} dropped what the point needs: {', '.join(missing)}"
                raise EnvironmentFault(said, fix=self.dropped_fix)
            return self._follow(spec, made, sink, timeout_s)
        finally:
            with signals.shielded():
                try:
                    self.remove_container(spec.name)
                except EnvironmentFault as fault:  # must not hide why we are here
                    left = f"ae: {spec.name} may be left, for `ae clean`: {fault.message}"
                    sink.line("stderr", left)

    def _follow(
        self, spec: ContainerSpec, made: dict[str, Any], sink: Sink, timeout_s: float
    ) -> Outcome:
        """Start a created container and wait for its end, or for the deadline."""
        words, kills = LastWords(sink), oom_kills()
        client = processes.stream(
            [self.name, "--log-level", "error", "start", "--attach", spec.name], words.line,
            timeout_s=timeout_s, env=self._environment(), grace_s=self.grace_s,
            tell=lambda: self._tell(spec.name),
        )  # fmt: skip
        ended = self.inspect("container", spec.name)
        state = ended["State"] if ended else {}
        if state.get("Running") and not client.timed_out:
            said = f"the client of {self.name} ended while the container {spec.name} was running"
            raise EnvironmentFault(said, fix="see whether somebody has killed it; then run again")
        if ended is None or state.get("Running"):  # somebody has removed it, or it is deaf
            code, seconds = (client.returncode if client.returncode > 0 else 137), client.seconds
        elif state["StartedAt"].startswith("0001-01-01"):
            raise refused(self.name, words.last)
        else:
            code = int(state["ExitCode"])
            seconds = seconds_between(state["StartedAt"], state["FinishedAt"])
        status, reason = classify(
            code,
            # Where the engine cannot see it, the kernel counts what it has killed.
            oom=bool(state.get("OOMKilled")) or (code == 137 and oom_kills() > kills),
            timed_out=client.timed_out,
            timeout_s=timeout_s,
            last_words=words.last,
        )
        about = self.available().facts
        facts: dict[str, object] = {
            "engine": f"{self.title} {about['version']}", "endpoint": about["endpoint"],
            "gpu_route": spec.gpus.route if spec.gpus else "none", **honoured(made),
        }  # fmt: skip
        return Outcome(
            status=status, exit_code=code, seconds=seconds, reason=reason, honoured=facts,
            image_id=f"sha256:{made['Image'].removeprefix('sha256:')}",
        )  # fmt: skip

    def _tell(self, name: str) -> None:
        # Not its client: since Docker 27 that ends with the TERM, passed on or not.
        with suppress(EnvironmentFault):
            self.call("kill", "--signal", "TERM", name, timeout_s=self.grace_s)

    @contextmanager
    def _lent(self, out: Path, spec: ContainerSpec, sink: Sink) -> Iterator[ContainerSpec]:
        """Let the container's user write to the out folder, and give all in it to the caller after.

        Only a launcher that is root can; on a disk where even root may not, the point is root's.
        """
        found = out.stat()
        if os.geteuid() != 0 or spec.user == f"{found.st_uid}:{found.st_gid}":
            yield spec
            return
        try:
            os.chown(out, *map(int, spec.user.split(":")))
        except OSError:
            yield replace(spec, user=self.caller)
            return
        try:
            yield spec
        finally:
            with signals.shielded():
                for path in (out, *out.rglob("*")):
                    os.chown(path, *map(int, self.caller.split(":")), follow_symlinks=False)

"""The engine `podman`, by its command line: no daemon, as root or as an ordinary user.

Its Docker-compatible socket will not do: see docs/engines.md. A container is created, initialised
(its namespaces, limits and devices are there, its program is not started yet), compared with what
was asked, started with its output attached, and removed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ae.daemon.cdi import RENEW, cdi_names, read_cdi_devices
from ae.engines.base import Availability, Outcome, Sink
from ae.engines.containers import ContainerEngine, labels_of
from ae.engines.output import LastWords, classify
from ae.engines.podman_words import (
    LOAD,
    STATIC_INITS,
    as_docker,
    fault_of,
    init_program,
    limit_words,
)
from ae.engines.spec import ContainerSpec, GpuGrant, honoured, seconds_between, to_argv
from ae.errors import EnvironmentFault
from ae.host import owner, processes
from ae.host.machine import oom_kills
from ae.images import settings
from ae.images.lockfile import locked
from ae.model import GpuRequest, ImageRef

CONTROL_TIMEOUT_S = 60
# Rootless storage without id-mapped mounts copies an image once for each user: minutes.
CREATE_TIMEOUT_S = 1800
_CDI_DIRS = ("/etc/cdi", "/var/run/cdi")  # podman's own where it has no option for them
_LOCAL = "localhost/"  # where podman puts names without a registry; Docker's own mean docker.io
_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+)(:\d+)?/")


class PodmanEngine(ContainerEngine):
    """Runs points in containers of the podman on PATH; storage and runtime are as it is set up."""

    name = "podman"
    no_gpus = (
        "podman finds no CDI spec for NVIDIA GPUs",
        f"install the Container Toolkit, {RENEW}",
    )
    _monitor = Path("/nonexistent")
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
        usage = self.call("--help").stdout
        line = next((line for line in usage.splitlines() if "--cdi-spec-dir" in line), "")
        named = re.search(r"\(default \[(.+)\]\)", line)
        folders = re.split(r"[,\s]+", named[1]) if named else _CDI_DIRS
        return {k: v for one in folders for k, v in read_cdi_devices(Path(one)).items()}

    @property
    def _reached(self) -> str:
        return f"podman:{shutil.which('podman')}"

    def available(self) -> Availability:
        try:
            info = self.info
        except EnvironmentFault as fault:
            return Availability(ok=False, detail=fault.message, fix=fault.fix)
        who = "rootless" if self.rootless else "as root"
        version, route = info["version"]["Version"], "cdi" if self.cdi_devices else ""
        return Availability(
            ok=True,
            detail=f"podman {version} {who}, {'CDI' if route else 'no GPU support'}",
            facts={
                "endpoint": f"podman {who}",
                "version": version,
                "gpu_route": route,
                "storage": info["store"]["graphDriverName"],
                "root": info["store"]["graphRoot"],
            },
        )

    def starts(self) -> Availability:
        """An init program alone in an empty root, half a second: a podman that answers may still
        lack user ids, or a runtime that knows the control groups."""
        found = self.available()
        init = init_program("catatonit", *STATIC_INITS)
        if not found.ok or init is None:
            fix = found.fix or "install the package catatonit, or tini"
            return replace(found, ok=False, detail=found.detail or "no init program", fix=fix)
        with tempfile.TemporaryDirectory(prefix="ae-podman-") as folder:
            Path(folder).chmod(0o755)
            for name in ("proc", "sys", "dev", "etc", "run", "tmp"):  # mount points
                (Path(folder) / name).mkdir()
            shutil.copy2(init, Path(folder) / "program")
            words = ["run", "--rm", "--network", "none", "--log-driver", "none", *limit_words(())]
            try:
                self.do(*words, "--rootfs", folder, "/program", "--version")
            except EnvironmentFault as fault:
                return replace(found, ok=False, detail=fault.message, fix=fault.fix)
        return found

    def prepare(self, image: ImageRef, sink: Sink) -> None:
        """Pull what a person named, and the locked image where there is a registry. podman builds
        none: its layers would not be those of our Dockerfiles' builder. Raises EnvironmentFault."""
        if image.override is not None:
            self._pull(image.reference, sink)
            return
        entry, place = locked(image), settings.registry()
        if entry is None or place is None:
            raise EnvironmentFault(
                f"podman has no image {image.reference} that is built from this tree", fix=LOAD
            )
        reference = f"{place}/{image.name}@{entry.digest}"
        self._pull(reference, sink)
        found = self.inspect("image", reference) or {"Id": ""}
        if not entry.names(found) or labels_of(found).get("ae.content") != image.content:
            raise EnvironmentFault(
                f"{reference} is not the image that images/lock.yaml means",
                fix="the lock file and the registry disagree: push again from these sources",
            )
        self.do("tag", reference, _LOCAL + image.reference)

    def call(self, *words: str, timeout_s: float = CONTROL_TIMEOUT_S) -> processes.Completed:
        """Run a podman command to its end; any exit code is a result."""
        return processes.run(["podman", *words], timeout_s=timeout_s)

    def do(self, *words: str, timeout_s: float = CONTROL_TIMEOUT_S) -> str:
        """Run a podman command and return what it printed. Raises EnvironmentFault."""
        done = self.call(*words, timeout_s=timeout_s)
        if done.returncode != 0:
            raise fault_of(done.stderr)
        return done.stdout

    def inspect(self, kind: Literal["image", "container"], name: str) -> dict[str, Any] | None:
        """What podman says of an image or a container; None: there is none of that name."""
        done = self.call(kind, "inspect", name)
        if done.returncode != 0:
            if self.call(kind, "exists", name).returncode == 1:
                return None
            raise fault_of(done.stderr)
        found: dict[str, Any] = json.loads(done.stdout)[0]
        return found | {"Id": f"sha256:{found['Id'].removeprefix('sha256:')}"}  # as Docker says it

    # -- images --------------------------------------------------------------------------------

    def _image(self, image: ImageRef) -> dict[str, Any] | None:
        entry = locked(image)
        names = [entry.image_id.removeprefix("sha256:")] if entry else []
        names += [] if image.override else [_LOCAL + image.reference]
        found = (self.inspect("image", name) for name in (*names, image.reference))
        return next((one for one in found if one is not None), None)

    def _pull(self, reference: str, sink: Sink) -> None:
        said: list[str] = []

        def on_line(stream: Literal["stdout", "stderr"], text: str) -> None:
            said.append(text)
            sink.line("stdout", text)  # podman writes its progress to standard error

        # As Docker does it: a registry on this machine needs no TLS.
        words = ["--tls-verify=false"] if _LOOPBACK.match(reference) else []
        if processes.stream(["podman", "pull", *words, reference], on_line).returncode != 0:
            fault = fault_of("\n".join(said))
            raise EnvironmentFault(f"pulling {reference} failed: {fault.message}", fix=fault.fix)

    # -- how a container is asked for, made and removed ----------------------------------------

    def _grant(self, request: GpuRequest, *, ask: bool) -> GpuGrant:
        known = tuple(self.cdi_devices) if ask else None
        if known == ():
            raise EnvironmentFault(self.no_gpus[0], fix=self.no_gpus[1])
        return GpuGrant(route="cdi", devices=cdi_names(request, known))

    def _fitted(self, spec: ContainerSpec) -> ContainerSpec:
        if not self.rootless:
            return spec
        limited = "pids" in self.info["host"].get("cgroupControllers", ())
        spec = replace(spec, user=self._caller, userns="keep-id")
        return spec if limited else replace(spec, pids=None)

    def _create(self, spec: ContainerSpec) -> dict[str, Any]:
        # The launcher keeps the output; a log of podman's own would be a second copy of it. And
        # `rm --force` kills at once.
        options = ("--pull", "never", "--log-driver", "none", "--stop-timeout", "0")
        self.do(*self._line(spec, options)[1:], timeout_s=CREATE_TIMEOUT_S)
        # podman's monitor leaves a file `oom` where it was started.
        self._monitor = Path(tempfile.mkdtemp(prefix="ae-podman-"))
        argv = ["podman", "init", spec.name]
        done = processes.run(argv, timeout_s=CREATE_TIMEOUT_S, cwd=self._monitor)
        if done.returncode != 0:
            raise fault_of(done.stderr)
        made = self.inspect("container", spec.name)
        if made is None:
            raise EnvironmentFault(
                f"the container {spec.name} was removed before it ran",
                fix="look for a program that prunes containers: podman container prune",
            )
        return as_docker(made, spec, self.cdi_devices if spec.gpus else {})

    def _follow(
        self, spec: ContainerSpec, made: dict[str, Any], sink: Sink, timeout_s: float
    ) -> Outcome:
        words, kills = LastWords(sink), oom_kills()
        # The client passes TERM on to the container; one that ignores it is killed by `_ended`.
        client = processes.stream(
            ["podman", "--log-level", "error", "start", "--attach", spec.name],
            words.line,
            timeout_s=timeout_s,
            grace_s=self._grace_s,
        )
        ended = self._ended(spec.name, timed_out=client.timed_out)
        state = ended["State"] if ended else {}
        if ended is None:  # somebody has removed it
            code, seconds = (client.returncode if client.returncode > 0 else 137), client.seconds
        elif state["StartedAt"].startswith("0001-01-01"):
            raise fault_of(words.last)
        else:
            code = int(state["ExitCode"])
            seconds = seconds_between(state["StartedAt"], state["FinishedAt"])
        status, reason = classify(
            code,
            # Where podman's monitor cannot see it, the kernel counts what it has killed.
            oom=bool(state.get("OOMKilled"))
            or (self._monitor / "oom").exists()
            or (code == 137 and oom_kills() > kills),
            timed_out=client.timed_out,
            timeout_s=timeout_s,
            last_words=words.last,
        )
        facts: dict[str, object] = {
            "engine": f"podman {self.info['version']['Version']}",
            "endpoint": f"podman {'rootless' if self.rootless else 'as root'}",
            "gpu_route": spec.gpus.route if spec.gpus else "none",
            "runtime": made.get("OCIRuntime", ""),
            # Capabilities hold in that namespace only.
            **({"UsernsMode": spec.userns} if spec.userns else {}),
            **honoured(made),
        }
        image = f"sha256:{made['Image'].removeprefix('sha256:')}"
        return Outcome(
            status=status, exit_code=code, seconds=seconds, reason=reason, image_id=image,
            honoured=facts,
        )  # fmt: skip

    def _ended(self, name: str, *, timed_out: bool) -> dict[str, Any] | None:
        """What podman says of a container whose client has ended; None: it has been removed.

        One that still runs is killed; unless the deadline is why, that is an EnvironmentFault.
        """
        found = self.inspect("container", name)
        if found is None or not found["State"].get("Running"):
            return found
        self.call("kill", "--signal", "KILL", name)
        self.call("wait", name)
        if not timed_out:
            raise EnvironmentFault(
                f"podman's client ended while the container {name} was running",
                fix="see whether somebody has killed it; then run again",
            )
        return self.inspect("container", name)

    def _remove(self, name: str) -> None:
        shutil.rmtree(self._monitor, ignore_errors=True)
        done = self.call("rm", "--force", "--volumes", name)
        if done.returncode != 0 and self.call("container", "exists", name).returncode != 1:
            raise fault_of(done.stderr)

    def _rows(self) -> Iterable[tuple[str, Mapping[str, str]]]:
        said = self.do("ps", "--all", "--filter", f"label={owner.RUN}", "--format", "json")
        return [(one["Id"], one.get("Labels") or {}) for one in json.loads(said or "[]") or []]

    def _line(self, spec: ContainerSpec, options: tuple[str, ...]) -> tuple[str, ...]:
        if not spec.name:  # to be read
            keep = "keep-id" if os.geteuid() != 0 else ""
            return to_argv(
                replace(spec, userns=keep), ("podman", "run", *options, "--rm", "--init")
            )
        verb = ("run", "--rm") if "--interactive" in options else ("create",)
        init = "" if init_program("catatonit") else init_program(*STATIC_INITS)
        # Where podman's defaults differ from Docker's and would change what is measured.
        extra = [*limit_words([limit.name for limit in spec.needs.ulimits]), "--http-proxy=false"]
        if spec.pids is None:
            extra += ["--pids-limit", "-1"]
        if self.info["host"]["security"]["selinuxEnabled"]:
            extra += ["--security-opt", "label=disable"]  # relabelling would change the folders
        head = ("podman", *verb, *options, "--init", *(("--init-path", init) if init else ()))
        spec = replace(spec, image=spec.image.removeprefix("sha256:"))  # a name could mean several
        return to_argv(spec, head, extra)

"""A daemon on another machine: whether it is one, what it has, and a point's folders there."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ae.daemon.connection import Daemon, faults, told_far
from ae.engines import transfer
from ae.engines.archives import ArchiveFault
from ae.engines.base import OUT_DIR, Job, Outcome, Sink
from ae.engines.spec import ContainerSpec
from ae.errors import EnvironmentFault
from ae.host import signals
from ae.model import Machine, Mount, Status
from ae.plan.gpus import unknown_gpu

if TYPE_CHECKING:
    from ae.engines.transfer import SentFile
    from ae.host.watchdog import Reaper


def sees(daemon: Daemon, folder: Path, image: str, labels: Mapping[str, str]) -> bool:
    """Whether the daemon sees this machine's files: it is asked for a container with `folder`.

    The container is never started. `folder` must have a name that only this machine knows; `image`
    must be there. AE_DOCKER_REMOTE=1 (or 0) answers instead.
    """
    from docker.errors import APIError, NotFound

    if (told := told_far()) is not None:
        return not told
    if daemon.endpoint.startswith("unix://") and daemon.host == socket.gethostname():
        return True
    name = f"ae-sees-{secrets.token_hex(4)}"
    mount = {"Type": "bind", "Source": str(folder), "Target": "/ae/out", "ReadOnly": True}
    body = {"Image": image, "Cmd": ["-"], "Labels": dict(labels), "HostConfig": {"Mounts": [mount]}}
    with faults(daemon.endpoint), signals.shielded():
        try:
            daemon.control.create_container_from_config(body, name)  # type: ignore[no-untyped-call]
        except APIError as error:
            if "bind source path does not exist" in str(error.explanation):
                return False
            raise
        finally:
            with suppress(NotFound):
                daemon.control.remove_container(name, force=True, v=True)
    return True


def machine_of(daemon: Daemon, wanted: tuple[str, ...] | int | None) -> Machine:
    """What the planner may know of a daemon's machine.

    GPUs are those that the daemon lists as CDI devices; where it lists none that can be seen from
    here, those that a person asked for (`wanted`). Nothing but their number is known.
    """
    words = [name.rpartition("=")[2] for name in daemon.cdi_devices() or ()]
    listed = [word for word in words if word.isdigit()]
    if not listed and words:  # only `all`, or only by UUID: there is at least one
        listed = ["0"]
    if isinstance(wanted, tuple):
        listed = [*wanted, *(word for word in listed if word not in wanted)]
    elif wanted and not words:
        listed = [str(index) for index in range(wanted)]
    return Machine(
        gpus=tuple(unknown_gpu(word) for word in listed),
        cpus=int(daemon.info.get("NCPU") or 1),
        memory_gib=int(daemon.info.get("MemTotal") or 0) / 2**30,
    )


class FarFolders:
    """The folders of points on a daemon's machine. Inputs are sent once and serve all points."""

    def __init__(self, daemon: Daemon, reaper: Reaper | None) -> None:
        self._daemon = daemon
        self._reaper = reaper
        self._inputs: dict[Path, str] = {}  # folder here -> volume there

    @contextmanager
    def laid_out(self, spec: ContainerSpec, job: Job, sink: Sink) -> Iterator[ContainerSpec]:
        """Yield the container with volumes in place of folders; the outputs' volume goes after."""
        labels = spec.labels
        volumes = {OUT_DIR: f"{spec.name}-out"}
        for mount in self._folders(spec):
            if mount.source not in self._inputs:
                self._inputs[mount.source] = self._send(mount.source, spec, sink)
            volumes[mount.target] = self._inputs[mount.source]
        files = {mount.target for mount in self._files(spec)}
        mounts = tuple(mount for mount in spec.mounts if mount.target not in files)
        self._make(volumes[OUT_DIR], labels)
        try:
            yield replace(spec, mounts=mounts, volumes=volumes)
        finally:
            with signals.shielded():
                self._remove(volumes[OUT_DIR], sink)

    def fill(self, spec: ContainerSpec, whole: ContainerSpec, sent: Sequence[SentFile]) -> None:
        """Put single files into a container made from `spec`, and give its user the out folder."""
        uid, gid = (int(word) for word in spec.user.split(":"))
        files = [
            transfer.SentFile(mount.source, mount.target, 0o444, 0, 0)
            for mount in self._files(whole)
        ]
        with faults(self._daemon.endpoint):
            transfer.open_to(self._daemon.control, spec.name, OUT_DIR, uid, gid)
            for file in [*files, *sent]:
                transfer.send_file(self._daemon.control, spec.name, file)

    def fetch(self, spec: ContainerSpec, job: Job) -> str:
        """Fetch the outputs of a container that has ended; return what is wrong with them."""
        try:
            with faults(self._daemon.endpoint):
                transfer.fetch(self._daemon.control, spec.name, job.out, job.point.disk_bytes)
        except ArchiveFault as fault:
            return f"{fault.message}; {fault.fix}" if "launcher" in fault.message else fault.message
        except EnvironmentFault as fault:
            return f"the outputs could not be fetched: {fault.message}"
        return ""

    def close(self) -> None:
        """Remove the inputs."""
        for volume in self._inputs.values():
            self._remove(volume, None)
        self._inputs.clear()

    def _folders(self, spec: ContainerSpec) -> list[Mount]:
        found = []
        for mount in spec.mounts:
            if mount.target == OUT_DIR or mount.source.is_file():
                continue
            if not mount.read_only:
                raise EnvironmentFault(
                    f"the point writes to {mount.source}, and the daemon at "
                    f"{self._daemon.endpoint} is on another machine ({self._daemon.host})",
                    fix="run it with a daemon on this machine; only $AE_OUT travels back",
                )
            if not mount.source.is_dir():
                raise EnvironmentFault(
                    f"{mount.source}, which the container sees as {mount.target}, is not there",
                    fix="fetch or make it first; see the recipe's volumes",
                )
            found.append(mount)
        return found

    def _files(self, spec: ContainerSpec) -> list[Mount]:
        return [m for m in spec.mounts if m.target != OUT_DIR and m.source.is_file()]

    def _send(self, source: Path, spec: ContainerSpec, sink: Sink) -> str:
        """Send a folder into a volume of its own, through a container that is never started."""
        volume = f"{spec.name}-in-{len(self._inputs)}"
        sink.line("stderr", f"ae: sending {source.name} to {self._daemon.host}")
        self._make(volume, spec.labels)
        carrier = f"{volume}-carrier"
        mount = {"Type": "volume", "Source": volume, "Target": "/in"}
        body = {
            "Image": spec.image,
            "Cmd": ["-"],
            "Labels": dict(spec.labels),
            "HostConfig": {"Mounts": [mount | {"VolumeOptions": {"NoCopy": True}}]},
        }
        if self._reaper:
            self._reaper.watch_container(self._daemon.endpoint, carrier)
        try:
            with faults(self._daemon.endpoint):
                with signals.shielded():
                    self._daemon.control.create_container_from_config(  # type: ignore[no-untyped-call]
                        body, carrier
                    )
                transfer.send_folder(self._daemon.patient, carrier, source, "/in")
        except BaseException:
            self._drop_carrier(carrier)
            self._remove(volume, sink)
            raise
        self._drop_carrier(carrier)
        return volume

    def _drop_carrier(self, carrier: str) -> None:
        from docker.errors import NotFound

        with signals.shielded(), faults(self._daemon.endpoint), suppress(NotFound):
            self._daemon.control.remove_container(carrier, force=True)
        if self._reaper:
            self._reaper.done(carrier)

    def _make(self, volume: str, labels: Mapping[str, str]) -> None:
        if self._reaper:
            self._reaper.watch_volume(self._daemon.endpoint, volume)
        with faults(self._daemon.endpoint), signals.shielded():
            transfer.make_volume(self._daemon.control, volume, labels)

    def _remove(self, volume: str, sink: Sink | None) -> None:
        from docker.errors import NotFound

        try:
            with faults(self._daemon.endpoint), suppress(NotFound):
                self._daemon.control.remove_volume(volume, force=True)
        except EnvironmentFault as fault:  # must not hide why we are here; `ae clean` finds it
            if sink:
                sink.line("stderr", f"ae: {volume} may be left, for `ae clean`: {fault.message}")
            return
        if self._reaper:
            self._reaper.done(volume)


def judged(outcome: Outcome, wrong: str) -> Outcome:
    """The outcome of a point whose outputs have, or have not, come home."""
    if not wrong:
        return outcome
    if outcome.status is Status.DONE:
        return replace(outcome, status=Status.FAILED, reason=wrong)
    return replace(outcome, reason=f"{outcome.reason}; and {wrong}")

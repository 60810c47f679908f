"""The connection to this machine's Docker daemon: where it is, and what it can do."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ae.daemon.cdi import CDI_KIND, RENEW, read_cdi_devices
from ae.daemon.faults import api_fault, faults, unreachable
from ae.errors import EnvironmentFault
from ae.host import processes

if TYPE_CHECKING:
    from docker.api import APIClient

__all__ = ["Daemon", "api_fault", "connect", "endpoint_of", "faults", "probe"]
DEFAULT_SOCKET = "unix:///var/run/docker.sock"
PING_TIMEOUT_S = 10
CONTROL_TIMEOUT_S = 60  # the daemon may be busy, but an answer that late means that it hangs
# The daemon tells of a pull or push several times a second, but waits for ever for a registry that
# keeps the connection and says nothing. Unpacking and storing a large layer may take minutes.
SILENCE_S = 600.0
NO_ROUTE = (
    "the Docker daemon has no way to hand GPUs to containers: no CDI spec and no NVIDIA runtime",
    f"install the NVIDIA Container Toolkit, then {RENEW}, and restart the daemon",
)
_TRANSFER = re.compile(r"/images/(create$|.+/push$)")


@dataclass(frozen=True)
class Daemon:
    """A daemon that answers. `control` has a short timeout, `patient` none (attach, wait)."""

    endpoint: str
    control: APIClient
    patient: APIClient
    version: str
    info: Mapping[str, Any] = field(repr=False)

    @property
    def rootless(self) -> bool:
        """Whether root in a container is the caller outside."""
        return any("rootless" in option for option in self.info.get("SecurityOptions") or [])

    @property
    def remaps_users(self) -> bool:
        """Whether user ids in containers are others outside (`userns-remap`)."""
        return any("userns" in option for option in self.info.get("SecurityOptions") or [])

    def close(self) -> None:
        """Close both clients' connections."""
        self.control.close()
        self.patient.close()

    def image(self, reference: str) -> dict[str, Any] | None:
        """What the daemon says of an image; None when it has none of that name or id."""
        from docker.errors import NotFound

        with faults(self.endpoint):
            try:
                found: dict[str, Any] = self.control.inspect_image(reference)  # type: ignore[no-untyped-call]
            except NotFound:
                return None
        return found

    def cdi_devices(self) -> tuple[str, ...]:
        """Names of the GPUs that CDI specs offer: as the daemon lists them, else as specs do."""
        found = [str(one.get("ID", "")) for one in self.info.get("DiscoveredDevices") or []]
        names = [name for name in found if name.startswith(f"{CDI_KIND}=")]
        folders = [] if names else self.info.get("CDISpecDirs") or []
        return (*names, *(name for one in folders for name in read_cdi_devices(Path(one))))

    def gpu_route(self) -> str:
        """How GPUs are asked for: `cdi`, `nvidia`, or nothing where the daemon offers neither."""
        if self.cdi_devices():
            return "cdi"
        return "nvidia" if "nvidia" in (self.info.get("Runtimes") or {}) else ""


def endpoint_of(environment: Mapping[str, str] = os.environ) -> str:
    """Where the daemon is: DOCKER_HOST, else the docker context, else the default socket."""
    if host := environment.get("DOCKER_HOST"):
        return host
    argv = ["docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"]
    try:
        said = processes.run(argv, timeout_s=PING_TIMEOUT_S, env=environment).stdout
    except processes.ProcessFault:  # no client
        return DEFAULT_SOCKET
    return said.strip() or DEFAULT_SOCKET


def refuse_elsewhere(endpoint: str) -> None:
    """Raise EnvironmentFault for a daemon that is not reached by a socket of this machine."""
    if not endpoint.startswith("unix://"):
        raise EnvironmentFault(
            f"the daemon at {endpoint} is not on this machine, and `ae` runs where its engine is",
            fix="run it there: ssh HOST ae run ..., with DOCKER_HOST unset; or --engine local here",
        )


def probe(endpoint: str) -> None:
    """Raise EnvironmentFault when nothing answers at an endpoint. Takes a millisecond, or
    PING_TIMEOUT_S where somebody listens and says nothing."""
    refuse_elsewhere(endpoint)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PING_TIMEOUT_S)
            connection.connect(endpoint.removeprefix("unix://"))
            connection.sendall(b"GET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n")
            connection.recv(1)
    except OSError as error:
        raise unreachable(endpoint, error) from error


def connect(endpoint: str) -> Daemon:
    """Return the daemon at an endpoint. Raises EnvironmentFault when it cannot be used."""
    probe(endpoint)
    from docker.api import APIClient

    class Client(APIClient):
        """A pull or push that falls silent for SILENCE_S is a time-out."""

        def post(self, url: str | bytes, *words: Any, **named: Any) -> Any:
            if named.get("timeout") is None and _TRANSFER.search(str(url)):
                named["timeout"] = SILENCE_S
            return super().post(url, *words, **named)

    with faults(endpoint):
        control = Client(base_url=endpoint, version="auto", timeout=CONTROL_TIMEOUT_S)
        for_ever: Any = None  # which docker-py takes, and does not say so
        patient = Client(base_url=endpoint, version=control.api_version, timeout=for_ever)
        info = control.info()
    return Daemon(endpoint, control, patient, str(info.get("ServerVersion", "")), info)

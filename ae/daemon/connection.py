"""The connection to this machine's Docker daemon: where it is, and what it can do."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ae.daemon.cdi import CDI_KIND, read_cdi_devices
from ae.daemon.faults import broken, faults, refused
from ae.errors import EnvironmentFault
from ae.host import processes

if TYPE_CHECKING:
    from docker.api import APIClient

DEFAULT_SOCKET = "unix:///var/run/docker.sock"
PING_TIMEOUT_S = 20  # until it says what it is
CONTROL_TIMEOUT_S = 60  # the daemon may be busy, but an answer that late means that it hangs


@dataclass(frozen=True)
class Daemon:
    """A daemon of this machine. What is asked most is asked by hand: to import docker-py takes as
    long as to start a container."""

    endpoint: str

    @cached_property
    def info(self) -> Mapping[str, Any]:
        """What it says of itself. Raises EnvironmentFault when it cannot be used."""
        return self.ask("/info", timeout_s=PING_TIMEOUT_S) or {}

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which a docker client talks to this daemon and no other."""
        own = {key: value for key, value in os.environ.items() if key != "DOCKER_CONTEXT"}
        return own | {"DOCKER_HOST": self.endpoint, "DOCKER_BUILDKIT": "1"}

    @cached_property
    def client(self) -> APIClient:
        """docker-py, for what changes or carries images. It waits as long as that takes."""
        from docker.api import APIClient

        for_ever: Any = None  # which docker-py takes, and does not say so
        with faults(self.endpoint):
            return APIClient(base_url=self.endpoint, version="auto", timeout=for_ever)

    def has(self, word: str) -> bool:
        """Whether it is `rootless` (root in a container is the caller outside), or has a `userns`
        of its own (user ids in containers are others outside)."""
        return any(word in option for option in self.info.get("SecurityOptions") or [])

    def close(self) -> None:
        """Close the client's connections."""
        if client := vars(self).pop("client", None):
            client.close()

    def ask(self, path: str, method: str = "GET", *, timeout_s: float = CONTROL_TIMEOUT_S) -> Any:
        """The daemon's answer, as JSON; None: there is no such thing. Raises EnvironmentFault."""
        try:
            with probe(self.endpoint) as connection, connection.makefile("rb") as answer:
                connection.settimeout(timeout_s)
                connection.sendall(f"{method} {path} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
                head, _, body = answer.read().partition(b"\r\n\r\n")  # 1.0: ends with the answer
            status, said = int(head.split()[1]), json.loads(body or b"{}")
        except (OSError, ValueError, IndexError) as error:
            raise broken(self.endpoint, error) from error
        if status >= 400 and status != 404:
            raise refused("docker", str(said.get("message", "")))
        return None if status == 404 else said

    def image(self, reference: str) -> dict[str, Any] | None:
        """What the daemon says of an image; None when it has none of that name or id."""
        return self.ask(f"/images/{reference}/json") or None

    @cached_property
    def cdi_devices(self) -> tuple[str, ...]:
        """Names of the GPUs that CDI specs offer: as the daemon lists them, else as specs do."""
        found = [str(one.get("ID", "")) for one in self.info.get("DiscoveredDevices") or []]
        names = [name for name in found if name.startswith(f"{CDI_KIND}=")]
        return tuple(names or read_cdi_devices(*(self.info.get("CDISpecDirs") or [])))

    def gpu_route(self) -> str:
        """How GPUs are asked for: `cdi`, `nvidia`, or nothing where the daemon offers neither."""
        if self.cdi_devices:
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
        said = f"'{endpoint}' is no socket of this machine, and `ae` runs where its engine is"
        fix = "here: DOCKER_HOST=unix:///PATH, or --engine local; elsewhere: ssh HOST ae run ..."
        raise EnvironmentFault(said, fix=fix)


def probe(endpoint: str) -> socket.socket:
    """A connection to the daemon. Raises EnvironmentFault when nobody listens there."""
    refuse_elsewhere(endpoint)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(PING_TIMEOUT_S)
        connection.connect(endpoint.removeprefix("unix://"))
    except OSError as error:
        connection.close()
        said = f"no Docker daemon runs at {endpoint}: {error.strerror or error}"
        fix = "start it (sudo systemctl start docker) or set DOCKER_HOST"
        if isinstance(error, PermissionError):
            said = f"you may not talk to the Docker daemon at {endpoint} (permission denied)"
            fix = "join the group docker and log in again, or use rootless Docker"
        raise EnvironmentFault(said, fix=f"{fix}; or ae run --engine local") from error
    return connection


def connect(endpoint: str) -> Daemon:
    """Return the daemon at an endpoint. Raises EnvironmentFault when it cannot be used."""
    daemon = Daemon(endpoint)
    _ = daemon.info
    return daemon

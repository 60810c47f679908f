"""The connection to a Docker daemon: where it is, what it can do, and its errors in our words."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ae.engines.spec import CDI_KIND
from ae.errors import EnvironmentFault

if TYPE_CHECKING:
    from docker.api import APIClient
    from docker.tls import TLSConfig

    from ae.engines.tunnel import Tunnel

DEFAULT_SOCKET = "unix:///var/run/docker.sock"
PING_TIMEOUT_S = 10
CONTROL_TIMEOUT_S = 60  # the daemon may be busy, but an answer that late means that it hangs


@dataclass(frozen=True)
class Daemon:
    """A daemon that answers. `control` has a short timeout, `patient` none (attach, wait)."""

    endpoint: str
    control: APIClient
    patient: APIClient
    version: str
    info: Mapping[str, Any] = field(repr=False)
    tunnel: Tunnel | None = None  # where the endpoint is behind ssh

    @property
    def is_local(self) -> bool:
        """Whether the daemon is reached through this machine's files, and is not said to be far."""
        return self.endpoint.startswith("unix://") and told_far() is not True

    @property
    def host(self) -> str:
        """The name of the daemon's machine."""
        return str(self.info.get("Name", ""))

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
        if self.tunnel:
            self.tunnel.close()

    def image(self, reference: str) -> dict[str, Any] | None:
        """What the daemon says of an image; None when it has none of that name or id."""
        from docker.errors import NotFound

        with faults(self.endpoint):
            try:
                found: dict[str, Any] = self.control.inspect_image(reference)  # type: ignore[no-untyped-call]
            except NotFound:
                return None
        return found

    def cdi_devices(self) -> tuple[str, ...] | None:
        """Names of the GPUs that CDI specs offer; None where they cannot be known from here."""
        directories = self.info.get("CDISpecDirs") or []
        if not directories:
            return ()
        found = [str(one.get("ID", "")) for one in self.info.get("DiscoveredDevices") or []]
        names = [name for name in found if name.startswith(f"{CDI_KIND}=")]
        if names:
            return tuple(names)
        if not self.is_local:
            return None
        return tuple(name for folder in directories for name in read_cdi_names(Path(folder)))

    def gpu_route(self) -> str:
        """How GPUs are asked for: `cdi`, `nvidia`, or nothing where the daemon offers neither."""
        names = self.cdi_devices()
        if names:
            return "cdi"
        if "nvidia" in (self.info.get("Runtimes") or {}):
            return "nvidia"
        return "cdi" if names is None else ""


def endpoint_of(environment: Mapping[str, str] = os.environ) -> str:
    """Where the daemon is: DOCKER_HOST, else the docker context, else the default socket."""
    if environment.get("DOCKER_HOST"):
        return environment["DOCKER_HOST"]
    context = _context(environment)
    return context[0] if context else DEFAULT_SOCKET


def tls_folder(endpoint: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Where `ca.pem`, `cert.pem` and `key.pem` for a TCP endpoint lie; None: it has no TLS.

    $DOCKER_CERT_PATH (or ~/.docker) under $DOCKER_TLS_VERIFY, else the docker context's own.
    """
    if not endpoint.startswith("tcp://"):
        return None
    if environment.get("DOCKER_HOST"):
        if not environment.get("DOCKER_TLS_VERIFY"):
            return None
        return Path(environment.get("DOCKER_CERT_PATH") or _docker_folder(environment))
    context = _context(environment)
    if context and context[0] == endpoint and context[1].is_dir():
        return context[1]
    return None


def told_far(environment: Mapping[str, str] = os.environ) -> bool | None:
    """What AE_DOCKER_REMOTE says: the daemon is on another machine (1), or not (0); None: unset."""
    word = environment.get("AE_DOCKER_REMOTE", "")
    return None if word not in ("0", "1") else word == "1"


def looks_far(endpoint: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a daemon runs on another machine, as far as its address tells."""
    if (told := told_far(environment)) is not None:
        return told
    if endpoint.startswith("tcp://"):
        host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
        return host not in ("", "localhost", "::1") and not host.startswith("127.")
    return endpoint.startswith("ssh://")


def _docker_folder(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("DOCKER_CONFIG") or Path.home() / ".docker")


def _context(environment: Mapping[str, str]) -> tuple[str, Path] | None:
    """The endpoint of the docker context in use, and where its certificates would lie."""
    folder = _docker_folder(environment)
    try:
        current = environment.get("DOCKER_CONTEXT") or json.loads(
            (folder / "config.json").read_text()
        ).get("currentContext")
        if current and current != "default":
            for meta in (folder / "contexts" / "meta").glob("*/meta.json"):
                data = json.loads(meta.read_text())
                if data.get("Name") == current:
                    endpoint = str(data["Endpoints"]["docker"]["Host"])
                    return endpoint, folder / "contexts" / "tls" / meta.parent.name / "docker"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # no context, or none that can be read: the default, as the client itself does
    return None


def probe(endpoint: str) -> None:
    """Raise EnvironmentFault when nothing answers at a local endpoint. Takes a millisecond, or
    PING_TIMEOUT_S where somebody listens and says nothing."""
    if not endpoint.startswith("unix://"):
        return
    path = endpoint.removeprefix("unix://")
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PING_TIMEOUT_S)
            connection.connect(path)
            connection.sendall(b"GET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n")
            connection.recv(1)
    except OSError as error:
        raise _unreachable(endpoint, error) from error


def connect(endpoint: str) -> Daemon:
    """Return the daemon at an endpoint. Raises EnvironmentFault when it cannot be used."""
    probe(endpoint)
    if not endpoint.startswith("ssh://"):
        return _connected(endpoint, None)
    from ae.engines.tunnel import Tunnel

    tunnel = Tunnel(endpoint)
    try:
        return _connected(endpoint, tunnel)
    except EnvironmentFault as fault:
        said = tunnel.last_words()
        tunnel.close()
        raise EnvironmentFault(
            f"no Docker daemon answers at {endpoint}: {said or fault.message}",
            fix="try it by hand: ssh must log in without a question, and docker be installed "
            "there (ssh HOST docker version)",
        ) from fault
    except BaseException:
        tunnel.close()
        raise


def _connected(endpoint: str, tunnel: Tunnel | None) -> Daemon:
    from ae.daemon.client import Client

    how: dict[str, Any] = {"base_url": endpoint, "tls": _tls(endpoint) or False}
    if tunnel:  # no address: the connections are made by ssh
        how |= {"base_url": "unix:///dialled", "dial": tunnel.dial}
    with faults(endpoint):
        control = Client(version="auto", timeout=CONTROL_TIMEOUT_S, **how)
        patient = Client(version=control.api_version, timeout=None, **how)  # None: wait for ever
        info = control.info()
    return Daemon(endpoint, control, patient, str(info.get("ServerVersion", "")), info, tunnel)


@contextmanager
def faults(endpoint: str) -> Iterator[None]:
    """Turn errors of the transport and of the daemon into EnvironmentFault, in one sentence."""
    from docker.errors import APIError, DockerException
    from requests.exceptions import ChunkedEncodingError, ConnectionError, RequestException
    from urllib3.exceptions import HTTPError, ProtocolError

    try:
        yield
    except APIError as error:
        raise api_fault(error) from error
    except (DockerException, RequestException, HTTPError) as error:  # streams raise urllib3's own
        cause = _system_error(error)
        if cause is not None:
            raise _unreachable(endpoint, cause) from error
        if isinstance(error, ConnectionError | ChunkedEncodingError | ProtocolError):
            raise EnvironmentFault(
                f"the connection to the Docker daemon at {endpoint} broke: {_first_line(error)}",
                fix="see whether the daemon still runs; what it has left is removed by `ae clean`",
            ) from error
        raise EnvironmentFault(
            f"the Docker daemon at {endpoint} did not answer as it should: {_first_line(error)}",
            fix="look at the daemon's log, and at DOCKER_HOST",
        ) from error


def api_fault(error: Exception) -> EnvironmentFault:
    """What the daemon refused, with the fix where the cause is known."""
    text = str(getattr(error, "explanation", "") or error)
    lower = text.lower()
    for words, sentence, fix in _KNOWN:
        if words in lower:
            return EnvironmentFault(f"{sentence} ({_first_line(text)})", fix=fix)
    return EnvironmentFault(f"Docker refused: {_first_line(text)}", fix="look at the daemon's log")


_KNOWN = (
    (
        "no such image",
        "the image is not there",
        "build it with `ae build`, or name one with --image",
    ),
    (
        "unresolvable cdi devices",
        "the daemon's CDI specs do not know that GPU",
        "make them anew: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    ),
    (
        "could not select device driver",
        "the daemon cannot hand GPUs to containers",
        "install the NVIDIA Container Toolkit, then: nvidia-ctk runtime configure "
        "--runtime=docker, and restart the daemon",
    ),
    (
        "bind source path does not exist",
        "a folder that the container is to see is not on the daemon's machine",
        "use a daemon on this machine, and check the volumes of the recipe",
    ),
    (
        "docker-init",
        "Docker's init program cannot be put into this image",
        "its /sbin must be a folder that can be written to, not a link into a read-only one",
    ),
    (
        "error setting rlimit",
        "the Docker daemon may not raise a limit (ulimit) that the recipe needs",
        "give the daemon the limit itself: LimitMEMLOCK=infinity in its systemd unit",
    ),
    (
        "no space left on device",
        "the disk of the Docker daemon is full",
        "free some: docker system df, docker builder prune",
    ),
    (
        "permission denied while trying to connect",
        "you may not talk to the Docker daemon",
        "join the group docker and log in again, or use rootless Docker, or --engine local",
    ),
)


def read_cdi_names(folder: Path) -> list[str]:
    """Names of the NVIDIA GPUs in the CDI specs of a folder, e.g. `nvidia.com/gpu=0`."""
    return list(read_cdi_devices(folder))


def read_cdi_devices(folder: Path) -> dict[str, frozenset[str]]:
    """The same, each with the device nodes that a container sees of it."""
    found: dict[str, frozenset[str]] = {}
    for path in sorted(folder.glob("*")) if folder.is_dir() else []:
        spec = _read_spec(path) if path.suffix in (".json", ".yaml", ".yml") else None
        if isinstance(spec, dict) and spec.get("kind") == CDI_KIND:
            devices = [one for one in spec.get("devices") or [] if isinstance(one, dict)]
            found |= {
                f"{CDI_KIND}={one['name']}": _cdi_nodes(spec) | _cdi_nodes(one)
                for one in devices
                if "name" in one
            }
    return found


def _cdi_nodes(part: dict[str, Any]) -> frozenset[str]:
    nodes = (part.get("containerEdits") or {}).get("deviceNodes") or []
    return frozenset(str(node["path"]) for node in nodes if "path" in node)


def _read_spec(path: Path) -> object:
    """A CDI spec; None for one that is broken, which the daemon ignores too."""
    try:
        text = path.read_text()
        if CDI_KIND not in text:
            return None
        if path.suffix == ".json":
            data: object = json.loads(text)
            return data
    except (OSError, ValueError):
        return None
    import yaml  # only where it is needed: it takes a tenth of what a run may take

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None


def _tls(endpoint: str) -> TLSConfig | None:
    folder = tls_folder(endpoint)
    if folder is None:
        return None
    from docker.errors import TLSParameterError
    from docker.tls import TLSConfig

    try:
        return TLSConfig(
            client_cert=(str(folder / "cert.pem"), str(folder / "key.pem")),
            ca_cert=str(folder / "ca.pem"),
            verify=True,
        )
    except TLSParameterError as error:
        raise EnvironmentFault(
            f"the certificates for {endpoint} are not in {folder}",
            fix="it must hold ca.pem, cert.pem and key.pem; see DOCKER_CERT_PATH",
        ) from error


def _unreachable(endpoint: str, error: OSError) -> EnvironmentFault:
    import ssl

    if isinstance(error, ssl.SSLError):
        return EnvironmentFault(
            f"no secure connection to the Docker daemon at {endpoint}: {error.strerror or error}",
            fix="check the certificates (ca.pem, cert.pem, key.pem) in DOCKER_CERT_PATH",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return EnvironmentFault(
            f"you may not talk to the Docker daemon at {endpoint} (permission denied)",
            fix="join the group docker and log in again, or use rootless Docker, or --engine local",
        )
    if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
        return EnvironmentFault(
            f"no Docker daemon runs at {endpoint}",
            fix="start it (sudo systemctl start docker), set DOCKER_HOST, or use --engine local",
        )
    return EnvironmentFault(
        f"the Docker daemon at {endpoint} does not answer: {error.strerror or error}",
        fix="check DOCKER_HOST and the daemon's log, or use --engine local",
    )


def _system_error(error: BaseException | None) -> OSError | None:
    """The operating system's error below the layers of the HTTP library."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno is not None:
            return error
        inner = [one for one in error.args if isinstance(one, BaseException)]
        error = error.__cause__ or (inner[0] if inner else None) or error.__context__
    return None


def _first_line(error: object) -> str:
    line = (str(error).strip().splitlines() or ["no reason given"])[0]
    return line.rpartition("runc create failed: ")[2][:300]  # the layers above it say nothing

"""Errors of Docker's daemon and of the way to it, in our words."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from ae.daemon.cdi import RENEW
from ae.errors import EnvironmentFault


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
            raise unreachable(endpoint, cause) from error
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


def unreachable(endpoint: str, error: OSError) -> EnvironmentFault:
    """Nobody answers at an endpoint, or not to us."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return EnvironmentFault(
            f"you may not talk to the Docker daemon at {endpoint} (permission denied)", fix=_JOIN
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


_JOIN = "join the group docker and log in again, or use rootless Docker, or --engine local"
_KNOWN = (
    (
        "no such image",
        "the image is not there",
        "build it with `ae build`, or name one with --image",
    ),
    ("unresolvable cdi devices", "the daemon's CDI specs do not know that GPU", RENEW),
    (
        "could not select device driver",
        "the daemon cannot hand GPUs to containers",
        "install the NVIDIA Container Toolkit, then: nvidia-ctk runtime configure "
        "--runtime=docker, and restart the daemon",
    ),
    (
        "bind source path does not exist",
        "a folder that the container is to see is not where the daemon looks for it",
        "use a daemon of this machine that sees its files, and check the volumes of the recipe",
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
        _JOIN,
    ),
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

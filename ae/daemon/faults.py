"""Errors of Docker's daemon, of podman and of the way to them, in our words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ae.daemon.cdi import RENEW
from ae.errors import EnvironmentFault


@contextmanager
def faults(endpoint: str) -> Iterator[None]:
    """Turn errors of the transport and of the daemon into EnvironmentFault, in one sentence."""
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except APIError as error:
        raise refused("docker", str(error.explanation or error)) from error
    except (DockerException, RequestException, HTTPError) as error:  # streams raise urllib3's own
        raise broken(endpoint, error) from error


def broken(endpoint: str, error: Exception) -> EnvironmentFault:
    """The daemon did not answer, or not in full."""
    return EnvironmentFault(
        f"the connection to the Docker daemon at {endpoint} broke: {str(error)[:300]}",
        fix="see whether the daemon still runs; what it has left is removed by `ae clean`",
    )


def refused(program: str, text: str) -> EnvironmentFault:
    """What `docker` or `podman` refused, with the fix where the cause is known."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    said = next((line for line in lines if line.startswith("Error")), lines[0])
    if logged := re.search(r'msg="(.*)"', said):
        said = logged[1]
    for layer in _LAYERS:
        said = said.rpartition(layer)[2]
    who = "the Docker daemon" if program == "docker" else program
    by_hand = f"try it by hand: {program} info"
    fix = next((fix for words, fix in _FIXES if re.search(words, text.lower())), by_hand)
    return EnvironmentFault(f"{who} refused: {said[:300]}", fix=fix)


# Which say nothing.
_LAYERS = ("Error: ", "Error response from daemon: ", "runc create failed: ", "container process: ")
_FIXES = (
    ("cannot connect to the docker|error during connect", "see whether the daemon still runs; "
     "what it has left is removed by `ae clean`"),
    ("unresolvable cdi device|failed to inject devices", RENEW),
    ("could not select device driver", "install the NVIDIA Container Toolkit, then: "
     "nvidia-ctk runtime configure --runtime=docker, and restart the daemon"),
    (r"nvidia\.com/gpu=", "use a podman that is built with CDI, or --engine docker"),
    ("container-init binary|catatonit", "install the package catatonit, or name "
     "another init in containers.conf: init_path below [engine]"),
    ("docker-init", "the image's /sbin must be a folder that can be written to, not a link"),
    ("cgroups in hybrid mode", 'write runtime = "runc" below [engine] in containers.conf'),
    ("rlimit", "raise the hard limit (ulimit -H; LimitMEMLOCK=infinity in the daemon's unit)"),
    ("new[ug]idmap|insufficient|subuid|user namespace", "install uidmap, then: sudo usermod "
     "--add-subuids 100000-165535 --add-subgids 100000-165535 $USER; podman system migrate"),
    ("no space left on device", "free some: docker or podman system df, image prune"),
    ("no such image|not known|manifest unknown|short-name", "build it where Docker is (for podman, "
     "then: docker save IMAGE | podman load), or name another with --image"),
    ("statfs|bind source path", "use a daemon of this machine, and check the recipe's volumes"),
)  # fmt: skip

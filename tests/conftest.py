"""A guard against tests that reach a daemon or the network unmarked, and the real Docker Engine."""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

IN_CI = os.environ.get("CI") == "true"
BASE_IMAGE = "ae/base:cpu"
_DAEMONS = ("docker.sock", "podman.sock", "containerd.sock", "buildkitd.sock")


class Reached(AssertionError):
    """An unmarked test has opened a connection that only a marked one may open."""


@pytest.fixture(autouse=True)
def _guard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail every test without the marker `docker` that connects to a daemon or the network.

    It fails even when the code under test swallows the error. Child processes find no daemon, and
    without the marker `slurm` no cluster: `ae clean` would remove what another worker's test left.
    """
    if not request.node.get_closest_marker("slurm"):
        monkeypatch.setenv("SLURM_CONF", os.devnull)  # a file that is not there is waited for
    if request.node.get_closest_marker("docker"):
        yield
        return
    reached: list[str] = []
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex

    def check(sock: socket.socket, address: Any) -> None:
        if sock.family == socket.AF_UNIX and not os.path.exists(address):
            return  # nobody is there
        if forbidden(sock.family, address):
            reached.append(repr(address))
            raise Reached(f"this test connects to {address!r}; mark it `docker`, or do not")

    def guarded_connect(self: socket.socket, address: Any) -> None:
        check(self, address)
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        check(self, address)
        return connect_ex(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/of-unmarked-tests.sock")
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    monkeypatch.setenv("CONTAINERS_CONF", "/nonexistent/of-unmarked-tests.conf")  # podman refuses
    yield
    if reached:
        pytest.fail(f"an unmarked test reached {', '.join(reached)}")


def forbidden(family: int, address: Any) -> bool:
    """Whether only a marked test may connect there."""
    if family == socket.AF_UNIX:
        name = os.fsdecode(address) if isinstance(address, bytes) else str(address)
        return Path(name).name in _DAEMONS
    if family in (socket.AF_INET, socket.AF_INET6):
        host = str(address[0])
        if host in ("", "localhost"):
            return False
        try:
            return not ipaddress.ip_address(host).is_loopback
        except ValueError:
            return True
    return False


@pytest.fixture(scope="session")
def docker_endpoint() -> str:
    """Where a real Docker Engine with the base image answers. In CI a missing one is a failure."""
    endpoint = os.environ.get("AE_TEST_DOCKER_HOST") or os.environ.get("DOCKER_HOST")
    if not endpoint:
        return missing("neither AE_TEST_DOCKER_HOST nor DOCKER_HOST is set; .ci/engine.sh env")
    from ae.daemon.connection import connect
    from ae.errors import EnvironmentFault

    try:
        daemon = connect(endpoint)
    except EnvironmentFault as fault:
        return missing(fault.message)
    there = daemon.client.images(BASE_IMAGE)
    daemon.close()
    if not there:
        return missing(f"{endpoint} has no image {BASE_IMAGE}; .ci/engine.sh start")
    return endpoint


@pytest.fixture
def docker_host(docker_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The endpoint, with DOCKER_HOST set to it for the code under test and its children."""
    monkeypatch.setenv("DOCKER_HOST", docker_endpoint)
    return docker_endpoint


@pytest.fixture(scope="session")
def podman_runtime() -> str:
    """The line of containers.conf with which podman starts a container; CI must have one."""
    from tests.engines import podman_home

    with _podman_folder() as folder, pytest.MonkeyPatch.context() as patch:
        try:
            return podman_home.find_runtime(folder, patch)
        except RuntimeError as error:
            return missing(str(error), "podman")


@pytest.fixture(scope="session")
def podman_storage(docker_endpoint: str, podman_runtime: str) -> Iterator[dict[str, str]]:
    """Variables of a podman with storage of its own and the base image."""
    from tests.engines import podman_home

    images = podman_home.load_image(docker_endpoint, BASE_IMAGE, podman_runtime)
    with _podman_folder() as folder:
        yield podman_home.write(folder, images=images / "graph", runtime=podman_runtime)


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results in which a real Slurm (.ci/slurm.sh) has shown what a node has."""
    if not os.environ.get("AE_TEST_SLURM"):
        return Path(missing("AE_TEST_SLURM is not set; .ci/slurm.sh start, env", "Slurm"))
    from ae.engines.slurm.engine import SlurmEngine

    folder = tmp_path_factory.mktemp("slurm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AE_RESULTS", str(folder))
        patch.setenv("AE_SLURM_POLL_S", "1")
        assert len(SlurmEngine().machine.gpus) == 2
    return folder


@pytest.fixture
def slurm(slurm_cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cluster, which points run on as plain processes of this Python."""
    monkeypatch.setenv("AE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("AE_SLURM_POLL_S", "1")
    monkeypatch.setenv("AE_SLURM_RUNTIME", os.environ.get("AE_TEST_SLURM_RUNTIME", "none"))
    monkeypatch.setenv("AE_LOCAL_PYTHON", sys.executable)
    shutil.copytree(slurm_cluster / "slurm", tmp_path / "results/slurm")
    return Path(os.environ["AE_TEST_SLURM"])


@contextmanager
def _podman_folder() -> Iterator[Path]:
    """A folder with a short path, because sockets lie below it."""
    folder = Path(tempfile.mkdtemp(prefix="aep", dir="/tmp"))
    try:
        yield folder
    finally:
        # podman keeps its storage mounted on itself.
        for mounted in (folder / "graph/overlay", folder / "graph"):
            subprocess.run(["umount", "--lazy", mounted], capture_output=True, check=False)
        shutil.rmtree(folder)


@pytest.fixture
def podman(podman_storage: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The same, set for the code under test and its children."""
    for key, value in podman_storage.items():
        monkeypatch.setenv(key, value)
    return podman_storage


# What a bundle holds is written by Python's own safe extraction; `ae` says so where it lacks it.
# In CI it must be there: without it these tests run, and fail.
safe_tar = pytest.mark.skipif(
    not IN_CI and not hasattr(tarfile, "data_filter"),
    reason="tarfile has no data_filter: Python 3.11.4 or later",
)


def missing(why: str, what: str = "Docker Engine") -> str:
    """Skip a test whose real part is not here; in CI, fail it."""
    if IN_CI:
        pytest.fail(f"CI needs a real {what}: {why}", pytrace=False)
    pytest.skip(why)

"""What the tests in this folder share: a daemon that they may stop, and podman's GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import BASE_IMAGE
from tests.real.acting import Launch
from tests.real.machine import OwnDaemon

CDI = Path("/run/cdi")  # which podman reads, and which is empty again after a boot


@pytest.fixture(autouse=True)
def _launches_end() -> Iterator[None]:
    """A test that fails leaves no command running, and no pipe for a later test to trip over."""
    yield
    while Launch.started:
        Launch.started.pop().close()


@pytest.fixture(scope="session")
def own_daemon(docker_endpoint: str) -> Iterator[OwnDaemon]:
    """A Docker daemon that tests may stop and kill."""
    daemon = OwnDaemon()
    try:
        daemon.start()
        daemon.take_image(docker_endpoint, BASE_IMAGE)
        yield daemon
    finally:
        daemon.close()


@pytest.fixture(scope="session")
def gpu() -> Iterator[str]:
    """A GPU that is none: inside a container a program and a variable show that it was granted.

    Its node is /dev/null: podman as an ordinary user takes no node from another place."""
    if not os.access(CDI if CDI.exists() else CDI.parent, os.W_OK):
        pytest.skip(f"podman reads CDI specs from {CDI}, which only root may write")
    name = f"ae-test-{os.getpid()}"
    program = CDI / f"{name}.sh"
    mount = {"hostPath": str(program), "containerPath": "/nvidia/nvidia-smi"}
    edits = {
        "env": [f"AE_FAKE_GPU={name}", "PATH=/nvidia:/usr/local/bin:/usr/bin:/bin"],
        "deviceNodes": [{"path": "/dev/null"}],
        "mounts": [mount | {"options": ["ro", "bind"]}],
    }
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": name, "containerEdits": edits}],
    }
    CDI.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\necho 'GPU 0: Fake (UUID: {name})'\n")
    program.chmod(0o755)
    path = CDI / f"{name}.json"
    path.write_text(json.dumps(spec))
    yield name
    path.unlink()
    program.unlink()

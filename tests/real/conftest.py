"""What the tests in this folder share: a daemon on another machine, and podman's GPU."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import BASE_IMAGE, IN_CI
from tests.real.machine import FarMachine

CDI = Path("/run/cdi")  # which podman reads, and which is empty again after a boot


@pytest.fixture(scope="session")
def far_machine(
    docker_endpoint: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FarMachine]:
    """A machine whose daemon does not see what tests write. In CI a missing one is a failure."""
    for program in ("/usr/sbin/dockerd", "/usr/sbin/sshd", "unshare", "openssl"):
        if shutil.which(program) is None:
            why = f"there is no {program}"
            if IN_CI:
                pytest.fail(why, pytrace=False)
            pytest.skip(why)
    machine = FarMachine(hidden=tmp_path_factory.getbasetemp(), tls=True)
    try:
        machine.start()
        machine.take_image(docker_endpoint, BASE_IMAGE)
        yield machine
    finally:
        machine.close()


@pytest.fixture(scope="session")
def gpu() -> Iterator[str]:
    """A GPU that is none: inside a container a variable shows whether it was granted."""
    if not os.access(CDI if CDI.exists() else CDI.parent, os.W_OK):
        pytest.skip(f"podman reads CDI specs from {CDI}, which only root may write")
    name = f"ae-test-{os.getpid()}"
    edits = {"env": [f"AE_FAKE_GPU={name}"], "deviceNodes": [{"path": "/dev/null"}]}
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": name, "containerEdits": edits}],
    }
    CDI.mkdir(exist_ok=True)
    path = CDI / f"{name}.json"
    path.write_text(json.dumps(spec))
    yield name
    path.unlink()

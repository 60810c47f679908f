"""A daemon on another machine, for the tests in this folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.conftest import BASE_IMAGE, IN_CI
from tests.containers.machine import FarMachine


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

"""The guard of conftest.py: what an unmarked test may reach."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ae.engines.slurm.engine import SlurmEngine
from tests.conftest import Reached, forbidden


@pytest.mark.parametrize(
    ("family", "address", "expected"),
    [
        (socket.AF_INET, ("127.0.0.1", 80), False),
        (socket.AF_INET, ("localhost", 80), False),
        (socket.AF_INET, ("192.0.2.1", 80), True),
        (socket.AF_INET, ("example.org", 80), True),
        (socket.AF_INET6, ("::1", 80, 0, 0), False),
        (socket.AF_INET6, ("2001:db8::1", 80, 0, 0), True),
        (socket.AF_UNIX, "/var/run/docker.sock", True),
        (socket.AF_UNIX, b"/run/podman/podman.sock", True),
        (socket.AF_UNIX, "/tmp/own.sock", False),
    ],
)
def test_what_is_forbidden(family: int, address: object, expected: bool) -> None:
    assert forbidden(family, address) is expected


def test_unmarked_code_finds_no_daemon() -> None:
    assert "nonexistent" in os.environ["DOCKER_HOST"]


def test_unmarked_code_finds_no_cluster() -> None:
    """Another worker's tests have jobs there that `ae clean` would take for a dead launcher's."""
    assert not SlurmEngine().available().ok


pytest_plugins = ["pytester"]


def test_a_swallowed_connection_still_fails(pytester: pytest.Pytester) -> None:
    """The guard itself, run over a test that reaches out and hides it."""
    guard = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
    (pytester.path / "conftest.py").write_text(guard, encoding="utf-8")
    pytester.makepyfile(
        """
        import socket

        def test_reaches():
            try:
                with socket.socket() as sock:
                    sock.connect(("192.0.2.1", 9))
            except AssertionError:
                pass

        def test_does_not():
            pass
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*an unmarked test reached*192.0.2.1*"])
    assert issubclass(Reached, AssertionError)

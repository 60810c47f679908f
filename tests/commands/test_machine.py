"""`ae clean` on this checkout and its papers; what it removes of a run: tests/real."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ae.errors import ExitCode
from ae.images import environments
from ae.images.content import image_ref
from ae.model import Flavour
from tests.calling import Ae, caller

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ae(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ae:
    monkeypatch.setenv("AE_ROOT", str(ROOT))
    monkeypatch.setenv("AE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return caller(capsys)


def test_old_environments_beside_those_of_this_checkout(ae: Ae) -> None:
    now = environments.folder(image_ref(ROOT, "dlrm", Flavour.CPU))
    old = now.with_name("dlrm-cpu-0123456789ab")
    for path in (now, old, Path(f"{now}.cache"), Path(f"{old}.cache")):
        path.mkdir(parents=True)
    _, out, err = ae("clean", "--environments", "--dry-run")
    said = [line for line in out.splitlines() if "environment" in line]
    assert said == [f"would remove environment {old.name}{end}" for end in ("", ".cache")], err


def test_docker_that_could_not_be_asked(ae: Ae, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    code, out, err = ae("clean", "--dry-run")
    assert code == ExitCode.ENVIRONMENT
    assert "nothing is left behind" not in out
    assert "note: docker was not asked: the daemon at tcp://127.0.0.1:1 is not on this" in err


def test_a_daemon_that_has_died(ae: Ae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket is still there; nobody has set DOCKER_HOST."""
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("PATH", "")  # no client that has a context of its own
    monkeypatch.setattr("ae.daemon.connection.DEFAULT_SOCKET", f"unix://{tmp_path}/daemon")
    with socket.socket(socket.AF_UNIX) as died:
        died.bind(str(tmp_path / "daemon"))
    code, out, _ = ae("clean", "--dry-run")
    assert (code, "nothing is left behind" in out) == (ExitCode.ENVIRONMENT, False)

"""`ae clean` on this checkout and its papers; what it removes of a run: tests/real."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ae.errors import ExitCode
from ae.host import owner
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
    assert "note: docker was not asked: 'tcp://127.0.0.1:1' is no socket of this machine" in err


def test_a_daemon_that_has_died(ae: Ae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket is still there; nobody has set DOCKER_HOST."""
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("PATH", "")  # no client that has a context of its own
    monkeypatch.setattr("ae.daemon.connection.DEFAULT_SOCKET", f"unix://{tmp_path}/daemon")
    with socket.socket(socket.AF_UNIX) as died:
        died.bind(str(tmp_path / "daemon"))
    code, out, _ = ae("clean", "--dry-run")
    assert (code, "nothing is left behind" in out) == (ExitCode.ENVIRONMENT, False)


def test_a_run_that_nobody_knows(ae: Ae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ae wait` and `ae cancel` say it, unless something is left that carries its name."""
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("ae.daemon.connection.DEFAULT_SOCKET", f"unix://{tmp_path}/none")
    name = f"run-of-{tmp_path.name}"
    code, out, err = ae("clean", "--run", name, "--dry-run")
    assert (code, out) == (ExitCode.USAGE, "")
    assert f"error: '{name}' is no run" in err
    stamp = owner.to_environment(owner.stamp({owner.RUN: name}) | {owner.STARTED: "before"})
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        env={owner.ENVIRONMENT: stamp},
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as left:
        assert left.stdout is not None
        left.stdout.readline()  # from here on /proc shows its own environment
        for word in (name, str(tmp_path / name)):
            code, out, _ = ae("clean", "--run", word, "--dry-run")
            assert (code, out) == (0, f"would remove process {left.pid} of run {name} (local)\n")
        left.kill()

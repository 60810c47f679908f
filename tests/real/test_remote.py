"""Points on a daemon that does not see this machine's files: over ssh, over TLS, by context."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ae.daemon.connection import connect, endpoint_of
from ae.engines import far, tunnel
from ae.engines.docker import DockerEngine
from ae.errors import EnvironmentFault
from ae.host import signals
from ae.model import Mount, RuntimeNeeds, Status
from tests.engines.acts import Lines, make_job
from tests.real.acting import ae_run, gone, make_root
from tests.real.machine import NAME, FarMachine

pytestmark = pytest.mark.docker

MEGABYTE = 10**6


@pytest.fixture
def engine(far_machine: FarMachine) -> Iterator[DockerEngine]:
    made = DockerEngine(endpoint=far_machine.endpoint, grace_s=1.0)
    yield made
    made.close()
    assert left_on(far_machine) == []


@pytest.fixture(scope="module")
def ssh(far_machine: FarMachine) -> str:
    return far_machine.start_ssh()


@pytest.fixture
def by_ssh(ssh: str, far_machine: FarMachine, monkeypatch: pytest.MonkeyPatch) -> str:
    """The endpoint, with an `ssh` on PATH that knows the machine."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(far_machine.ssh_path))
    monkeypatch.setenv("PATH", f"{far_machine.ssh_path}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_HOST", ssh)
    return ssh


def left_on(machine: FarMachine) -> list[str]:
    """Containers and volumes there."""
    return [
        *machine.docker("ps", "-aq").stdout.split(),
        *machine.docker("volume", "ls", "-q").stdout.split(),
    ]


def ssh_processes(machine: FarMachine) -> list[str]:
    mark = f"{machine.home}/ssh_config".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = entry.read_bytes()
            if mark in words and b"ssh\0" in words:
                found.append(words.replace(b"\0", b" ").decode())
    return found


def login_sockets() -> list[str]:
    return [path.name for path in tunnel._socket_folder().iterdir() if path.is_socket()]


def sh(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


def test_it_is_found_out_who_sees_our_files(
    docker_host: str, far_machine: FarMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = connect(far_machine.endpoint), connect(docker_host)
    try:
        assert there.host == NAME
        assert not far.sees(there, tmp_path, "ae/base:cpu", {})
        assert far.sees(here, tmp_path, "ae/base:cpu", {})
        monkeypatch.setattr("socket.gethostname", lambda: "another")  # so that it is asked
        assert far.sees(here, tmp_path, "ae/base:cpu", {})
        monkeypatch.setenv("AE_DOCKER_REMOTE", "1")
        assert not far.sees(here, tmp_path, "ae/base:cpu", {})
    finally:
        there.close()
        here.close()


def test_outputs_come_home(engine: DockerEngine, tmp_path: Path) -> None:
    script = (
        "mkdir -p $AE_OUT/a/b; echo deep >$AE_OUT/a/b/file; ln -s b/file $AE_OUT/a/link; "
        "head -c 3000000 /dev/zero >$AE_OUT/large; echo out; echo err >&2"
    )
    lines = Lines()
    job = make_job(tmp_path, argv=sh(script), disk_bytes=10 * MEGABYTE)
    outcome = engine.run(job, lines, 60)
    assert (outcome.status, outcome.reason) == (Status.DONE, "")
    assert lines.of("stdout") == ["out"]
    assert "digests" in dict(outcome.honoured["image"])  # type: ignore[call-overload]
    assert (tmp_path / "a/link").read_text() == "deep\n"
    assert (tmp_path / "large").stat().st_size == 3_000_000
    assert {path.stat().st_uid for path in tmp_path.rglob("*")} == {os.getuid()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "large"]


def test_another_users_outputs_are_that_users(far_machine: FarMachine, tmp_path: Path) -> None:
    """The volume is root's; the container's user must be able to write to it."""
    engine = DockerEngine(endpoint=far_machine.endpoint, user="12345:12346")
    lines = Lines()
    job = make_job(tmp_path, argv=sh("id -u; echo 1 >$AE_OUT/f"), disk_bytes=MEGABYTE)
    assert engine.run(job, lines, 60).status is Status.DONE
    assert lines.of("stdout") == ["12345"]
    assert (tmp_path / "f").read_text() == "1\n"
    engine.close()


def test_inputs_are_sent_once_and_cannot_be_changed(
    far_machine: FarMachine, engine: DockerEngine, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    (data / "deep" / ("long" * 40)).mkdir(parents=True)
    (data / "deep" / ("long" * 40) / "file").write_text("words")
    (data / "tool").write_text("#!/bin/sh\necho ran\n")
    (data / "tool").chmod(0o700)
    (data / "link").symlink_to("deep")
    (tmp_path / "single").write_text("alone")
    needs = RuntimeNeeds(
        mounts=(
            Mount(source=data, target="/data"),
            Mount(source=tmp_path / "single", target="/etc/single"),
        )
    )
    script = "cat /data/link/*/file /etc/single; /data/tool; touch /data/new"
    for number in range(2):
        lines = Lines()
        out = tmp_path / f"out{number}"
        job = make_job(out, argv=sh(script), needs=needs, disk_bytes=MEGABYTE)
        outcome = engine.run(job, lines, 60)
        assert lines.of("stdout") == ["wordsaloneran"]
        assert "Read-only file system" in outcome.reason
        sending = [line for line in lines.of("stderr") if line.startswith("ae: sending")]
        assert len(sending) == (1 if number == 0 else 0)
    assert len(left_on(far_machine)) == 1  # the input, until the engine is closed


def test_inputs_that_cannot_travel(engine: DockerEngine, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    written = RuntimeNeeds(mounts=(Mount(source=data, target="/data", read_only=False),))
    job = make_job(tmp_path / "1", "print:x", needs=written)
    with pytest.raises(EnvironmentFault, match="is on another machine"):
        engine.run(job, Lines(), 60)
    os.mkfifo(data / "pipe")
    needs = RuntimeNeeds(mounts=(Mount(source=data, target="/data"),))
    with pytest.raises(EnvironmentFault, match="pipe is no file, folder or link"):
        engine.run(make_job(tmp_path / "2", "print:x", needs=needs), Lines(), 60)
    absent = RuntimeNeeds(mounts=(Mount(source=tmp_path / "no", target="/data"),))
    with pytest.raises(EnvironmentFault, match="is not there"):
        engine.run(make_job(tmp_path / "3", "print:x", needs=absent), Lines(), 60)


@pytest.mark.parametrize("way", ["failure", "timeout", "interrupt"])
def test_outputs_come_home_however_it_ends(engine: DockerEngine, tmp_path: Path, way: str) -> None:
    class Interrupting(Lines):
        def line(self, stream: str, text: str) -> None:
            if way == "interrupt":
                threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    last = "exit:3" if way == "failure" else "sleep:60"
    acts = ("write:half:1", "print:up", last)
    job = make_job(tmp_path, *acts, disk_bytes=MEGABYTE)
    timeout_s = 1.5 if way == "timeout" else 60
    if way == "interrupt":
        with pytest.raises(KeyboardInterrupt), signals.handled():
            engine.run(job, Interrupting(), timeout_s)
    else:
        wanted = Status.FAILED if way == "failure" else Status.TIMEOUT
        assert engine.run(job, Lines(), timeout_s).status is wanted
    assert (tmp_path / "half").read_text() == "1"


RECORD = '{"metric":"m","unit":"s","samples":[1],"labels":{},"evidence":"measured"}'


@pytest.mark.parametrize(
    ("script", "wrong"),
    [
        ("ln -s /etc/passwd $AE_OUT/evil", "a link that leads out"),
        ("ln -s ../evil $AE_OUT/evil", "a link that leads out"),
        ("mkdir $AE_OUT/a; ln -s ../../x $AE_OUT/a/evil", "a link that leads out"),
        ("mkfifo $AE_OUT/evil", "a device"),
        ("mknod $AE_OUT/evil c 1 3", "a device"),
        ("head -c 3000000 /dev/zero >$AE_OUT/evil", "more than 2 MB"),
        ("echo stolen >$AE_OUT/stdout.log", "a file of the launcher's own"),
    ],
)
def test_outputs_that_would_get_out(
    engine: DockerEngine, tmp_path: Path, script: str, wrong: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "stdout.log").write_text("log")
    script = f"echo '{RECORD}' >$AE_OUT/records.jsonl; {script}"
    job = make_job(out, argv=sh(script), disk_bytes=2 * MEGABYTE)
    outcome = engine.run(job, Lines(), 60)
    assert outcome.status is Status.FAILED
    assert wrong in outcome.reason
    # What was measured is kept, the log is as it was, and nothing else is there.
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "out", "records.jsonl", "stdout.log",
    ]  # fmt: skip
    assert (out / "stdout.log").read_text() == "log"
    assert json.loads((out / "records.jsonl").read_text())["metric"] == "m"


def test_records_that_are_a_link_stay_there(engine: DockerEngine, tmp_path: Path) -> None:
    script = "ln -s /etc/passwd $AE_OUT/records.jsonl"
    outcome = engine.run(make_job(tmp_path, argv=sh(script), disk_bytes=1), Lines(), 60)
    assert outcome.status is Status.FAILED
    assert list(tmp_path.iterdir()) == []


def test_a_context_with_certificates(
    far_machine: FarMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    far_machine.make_context(tmp_path / "docker")
    endpoint = endpoint_of()
    assert endpoint == f"tcp://127.0.0.1:{far_machine.tcp_port}"
    engine = DockerEngine()
    job = make_job(tmp_path / "out", "print:hello", "write:result:42", disk_bytes=MEGABYTE)
    lines = Lines()
    assert engine.run(job, lines, 60).status is Status.DONE
    assert lines.of("stdout") == ["hello"]
    assert (tmp_path / "out/result").read_text() == "42"
    engine.close()
    monkeypatch.setenv("DOCKER_HOST", endpoint)
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    found = DockerEngine().available()
    assert not found.ok
    assert f"the certificates for {endpoint} are not in {tmp_path}" in found.detail
    monkeypatch.delenv("DOCKER_TLS_VERIFY")
    assert not DockerEngine().available().ok  # the daemon wants a certificate


def test_a_run_over_ssh(by_ssh: str, far_machine: FarMachine, tmp_path: Path) -> None:
    """The real command: plan, probe, points, records, and nothing left on either side."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/file").write_text("sent")
    volume = "[{source: ../in, target: /data, why: to read it}]"
    root = make_root(tmp_path / "root", needs=f"{{volumes: {volume}}}")
    launch = ae_run(root, tmp_path / "results", "read:/data/file|write:made:there")
    code, said = launch.end()
    assert code == 0, said
    assert launch.words() == {"first": "done", "middle": "done", "last": "done"}
    point = launch.run_folder() / "points/middle"
    assert (point / "stdout.log").read_text() == "sent\n"
    assert (point / "made").read_text() == "there"
    engine = json.loads((launch.run_folder() / "run.json").read_text())["provenance"]["engine"]
    assert engine["endpoint"] == by_ssh
    assert engine["machine"] == NAME
    assert left_on(far_machine) == []
    assert gone(lambda: ssh_processes(far_machine)) == []
    assert gone(login_sockets) == []


def test_a_launcher_killed_over_ssh_leaves_nothing(
    by_ssh: str, far_machine: FarMachine, tmp_path: Path
) -> None:
    root = make_root(tmp_path / "root")
    launch = ae_run(root, tmp_path / "results", "deaf|print:up|sleep:300")
    launch.until("up")
    assert len(left_on(far_machine)) == 2  # the container and its volume
    launch.kill()
    assert gone(lambda: left_on(far_machine), 30) == []
    assert gone(lambda: ssh_processes(far_machine)) == []
    assert gone(login_sockets) == []
    assert launch.words() == {"first": "done"}


def test_an_ssh_that_does_not_get_through(
    by_ssh: str, far_machine: FarMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = by_ssh.rpartition(":")[2]
    wrong = {
        f"ssh://root@127.0.0.1:{port}0": "is not an address",
        "ssh://root@127.0.0.1:1": "Connection refused",
        f"ssh://root@localhost:{port}": "Host key verification failed",
        "ssh://-oProxyCommand=touch/x": "is not an address",
    }
    for endpoint, words in wrong.items():
        found = DockerEngine(endpoint=endpoint).available()
        assert not found.ok
        assert words in found.detail, endpoint
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "there is no program 'ssh'" in DockerEngine(endpoint=by_ssh).available().detail
    assert gone(lambda: ssh_processes(far_machine)) == []

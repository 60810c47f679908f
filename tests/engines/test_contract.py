"""The engine contract: the same tests over the fake, `local`, a real Docker Engine, podman and a
real Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ae.engines.base import Engine, Leftover
from ae.engines.docker import DockerEngine
from ae.engines.local import LocalEngine
from ae.engines.podman import PodmanEngine
from ae.engines.slurm.engine import SlurmEngine
from ae.errors import EnvironmentFault
from ae.host import signals
from ae.model import Outcome, RuntimeNeeds, Status
from tests.engines.acts import RUN, Lines, base_image, command, make_job
from tests.engines.fake import FakeEngine


@pytest.fixture(
    params=[
        "fake",
        "local",
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("podman", marks=pytest.mark.docker),  # its image comes from there
        pytest.param("slurm", marks=pytest.mark.slurm),
    ]
)
def engine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    made: Engine
    if request.param == "docker":
        request.getfixturevalue("docker_host")
        made = DockerEngine()
    elif request.param == "podman":
        request.getfixturevalue("podman")
        made = PodmanEngine()
    elif request.param == "slurm":
        request.getfixturevalue("slurm")
        made = SlurmEngine()
    elif request.param == "local":
        monkeypatch.setenv("AE_LOCAL_PYTHON", sys.executable)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        made = LocalEngine()
    else:
        made = FakeEngine()
    yield made
    assert ours(made) == [], "a test has left something running"
    made.close()


def ours(engine: Engine) -> list[Leftover]:
    return [leftover for leftover in engine.leftovers() if leftover.run == RUN]


def perform(
    engine: Engine, out: Path, *acts: str, timeout_s: float = 60, needs: RuntimeNeeds | None = None
) -> tuple[Outcome, Lines]:
    lines = Lines()
    return engine.run(make_job(out, *acts, needs=needs), lines, timeout_s), lines


def test_it_says_that_it_is_available(engine: Engine) -> None:
    found = engine.available()
    assert found.ok
    assert found.detail


def test_its_machine_is_looked_at_once(engine: Engine) -> None:
    machine = engine.machine
    assert machine.cpus > 0
    assert engine.machine is machine


def test_a_job_that_is_done(engine: Engine, tmp_path: Path) -> None:
    outcome, lines = perform(
        engine, tmp_path / "out", "print:one", "error:two", "write:result:42", "print:three"
    )
    assert (outcome.status, outcome.exit_code, outcome.reason) == (Status.DONE, 0, "")
    assert lines.of("stdout") == ["one", "three"]
    assert lines.of("stderr") == ["two"]
    assert (tmp_path / "out/result").read_text() == "42"
    assert 0 <= outcome.seconds < 30
    assert outcome.image_id
    assert outcome.honoured


def test_outputs_belong_to_the_caller(engine: Engine, tmp_path: Path) -> None:
    perform(engine, tmp_path / "out", "write:result:42")
    found = (tmp_path / "out/result").stat()
    assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())


def test_a_skip_has_its_reason(engine: Engine, tmp_path: Path) -> None:
    acts = ("error:noise", "error:this GPU has no such unit", "print:x", "exit:77")
    outcome, _ = perform(engine, tmp_path / "out", *acts)
    assert (outcome.status, outcome.exit_code) == (Status.SKIPPED, 77)
    assert outcome.reason == "this GPU has no such unit"


def test_a_failure_has_its_last_words(engine: Engine, tmp_path: Path) -> None:
    outcome, _ = perform(engine, tmp_path / "out", "error:ValueError: no", "exit:3")
    assert (outcome.status, outcome.exit_code) == (Status.FAILED, 3)
    assert outcome.reason == "exit code 3: ValueError: no"


def test_a_crash_is_named(engine: Engine, tmp_path: Path) -> None:
    outcome, _ = perform(engine, tmp_path / "out", "signal:11")
    assert outcome.status is Status.FAILED
    assert outcome.exit_code == 128 + signal.SIGSEGV
    assert "SIGSEGV" in outcome.reason


def test_a_program_that_is_not_there(engine: Engine, tmp_path: Path) -> None:
    job = make_job(tmp_path / "out", argv=("ae-no-such-program", "x"))
    outcome = engine.run(job, Lines(), 60)
    assert (outcome.status, outcome.exit_code) == (Status.FAILED, 127)
    assert "ae-no-such-program" in outcome.reason
    assert "exit code" not in outcome.reason


def within_a_deadline(engine: Engine, out: Path, act: str) -> tuple[Outcome, float]:
    """How a job ended that performed `act` and then met its deadline, and that deadline in s.

    A start counts against the deadline, and a slow machine's may take all of it.
    """
    for timeout_s in (2.0, 8.0, 32.0):
        outcome, lines = perform(engine, out, act, "print:up", "sleep:120", timeout_s=timeout_s)
        if lines.of("stdout") == ["up"]:
            break
    return outcome, timeout_s


def test_a_deadline_lets_it_clean_up(engine: Engine, tmp_path: Path) -> None:
    outcome, deadline_s = within_a_deadline(engine, tmp_path / "out", "listen")
    assert outcome.status is Status.TIMEOUT
    assert outcome.seconds < deadline_s + 18.5
    assert f"{deadline_s:g} s" in outcome.reason
    assert (tmp_path / "out/cleaned").exists()


def test_a_deadline_kills_who_does_not_listen(engine: Engine, tmp_path: Path) -> None:
    outcome, _ = within_a_deadline(engine, tmp_path / "out", "deaf")
    assert (outcome.status, outcome.exit_code) == (Status.TIMEOUT, 137)


def test_memory_is_limited(engine: Engine, tmp_path: Path) -> None:
    needs = RuntimeNeeds(memory_bytes=300 * 10**6)
    outcome, _ = perform(engine, tmp_path / "out", f"eat:{10**9}", needs=needs)
    assert outcome.status is Status.OOM
    assert "memory" in outcome.reason


def test_the_environment_of_a_job(engine: Engine, tmp_path: Path) -> None:
    acts = ("env:AE_POINT", "env:OWN", "home", "env:AE_OUT")
    lines = Lines()
    outcome = engine.run(make_job(tmp_path / "out", *acts, env={"OWN": "value"}), lines, 60)
    assert outcome.status is Status.DONE
    assert lines.of("stdout")[:3] == ["point", "value", "home ok"]
    assert lines.of("stdout")[3] != "unset"


def test_noise_and_words_that_a_shell_would_eat(engine: Engine, tmp_path: Path) -> None:
    words = "a b  $HOME `id` \"quoted\" 'single' ; | & \\"
    outcome, lines = perform(engine, tmp_path / "out", "noise", f"print:{words}")
    assert outcome.status is Status.DONE
    assert lines.of("stdout")[-1] == words


def test_output_is_live(engine: Engine, tmp_path: Path) -> None:
    class Clock(Lines):
        def line(self, stream: str, text: str) -> None:
            super().line(stream, text)
            times.append(time.monotonic())

    times: list[float] = []
    engine.run(make_job(tmp_path / "out", "print:now", "sleep:4"), Clock(), 60)
    assert time.monotonic() - times[0] > 1.2


def test_an_interrupt_stops_it(engine: Engine, tmp_path: Path) -> None:
    class Interrupting(Lines):
        def line(self, stream: str, text: str) -> None:
            times.append(time.monotonic())
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()

    times: list[float] = []
    job = make_job(tmp_path / "out", "listen", "print:up", "sleep:120")
    with pytest.raises(KeyboardInterrupt), signals.handled():
        engine.run(job, Interrupting(), 120)
    assert time.monotonic() - times[0] < 20
    assert (tmp_path / "out/cleaned").exists()  # it was told, and given the time
    assert ours(engine) == []


def test_a_sink_that_fails_stops_it(engine: Engine, tmp_path: Path) -> None:
    class Full(Lines):
        def line(self, stream: str, text: str) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        engine.run(make_job(tmp_path / "out", "print:x", "sleep:60"), Full(), 60)
    assert ours(engine) == []


def test_what_runs_is_listed_with_its_owner(engine: Engine, tmp_path: Path) -> None:
    outcomes: list[Outcome] = []
    lines = Lines()
    job = make_job(tmp_path / "out", "print:up", "sleep:60")
    thread = threading.Thread(target=lambda: outcomes.append(engine.run(job, lines, 60)))
    thread.start()
    end = time.monotonic() + 30
    while lines.of("stdout") != ["up"] and time.monotonic() < end:
        time.sleep(0.05)
    found = ours(engine)
    assert [leftover.owner_alive for leftover in found] == [True]
    engine.remove(found[0])
    thread.join(20)
    assert outcomes[0].status is Status.FAILED
    engine.remove(found[0])  # what has gone already is fine


def test_a_disk_that_is_too_small(engine: Engine, tmp_path: Path) -> None:
    job = make_job(tmp_path / "out", "print:x", disk_bytes=10**18)
    with pytest.raises(EnvironmentFault, match="needs 1e\\+06 TB of disk") as caught:
        engine.run(job, Lines(), 60)
    assert caught.value.fix


def test_an_image_that_cannot_be_had(engine: Engine, tmp_path: Path) -> None:
    image = replace(base_image(tmp_path), override="ae/none:cpu")
    if engine.name != "local":
        assert not engine.has_image(image)
    with pytest.raises(EnvironmentFault) as caught:
        engine.prepare(image, Lines())
    assert caught.value.fix


def test_a_shell_reads_its_input_where_there_is_no_terminal(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/bin/sh")
    with open(os.devnull) as nothing, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", nothing)
        argv, environment = engine.shell(make_job(tmp_path / "out").point, tmp_path / "out")
    assert "--tty" not in argv
    done = subprocess.run(
        argv,
        env=environment,
        input="echo here; exit 7",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, "here\n"), done.stderr


def test_a_command_to_type(engine: Engine, tmp_path: Path) -> None:
    argv = engine.equivalent(make_job(tmp_path / "out", "print:x"))
    assert argv[-len(command("print:x")) + 1 :] == command("print:x")[1:]
    assert all(isinstance(word, str) for word in argv)

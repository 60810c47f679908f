"""The private MPS daemon, with a stand-in for NVIDIA's program and, on a GPU, with the real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import rap_sessions
from rap_plans import every_operator
from rap_training import launcher
from rap_training.cli import main
from rap_training.plan.files import dump
from rap_training.sharing import mps
from rap_training.sharing.mps import Mps, MpsError, assert_absent

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

# Commands and answers of nvidia-cuda-mps-control; who is registered stands in files.
STAND_IN = """#!/bin/sh
home=$CUDA_MPS_PIPE_DIRECTORY
if [ "$1" = -d ]; then
    [ -d "$home" ] && [ -d "$CUDA_MPS_LOG_DIRECTORY" ] || { echo "no folders" >&2; exit 1; }
    [ -z "$REFUSE" ] || { echo "$REFUSE" >&2; exit 1; }
    setsid sleep 300 </dev/null >/dev/null 2>&1 &
    echo $! >"$home/control"
    exit 0
fi
read -r command server
[ ! -e "$home/hangs" ] || exec sleep 300
pid=$(cat "$home/control")
state=$(cut -d' ' -f3 "/proc/$pid/stat" 2>/dev/null)
if [ -z "$state" ] || [ "$state" = Z ]; then
    echo "Cannot find MPS control daemon process" >&2
    exit 1
fi
case $command in
get_server_list) ls "$home/servers" 2>/dev/null ;;
get_client_list) cat "$home/servers/$server" ;;
get_default_active_thread_percentage) echo 100.0 ;;
quit) kill "$pid" ;;
*) echo "unknown command $command" ;;
esac
exit 0
"""


@pytest.fixture
def homes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The folders that daemons make; none may be left."""
    made: list[Path] = []
    make = tempfile.mkdtemp

    def noted(*arguments: str, **named: str) -> str:
        made.append(Path(make(*arguments, **named)))
        return str(made[-1])

    with monkeypatch.context() as patch:
        patch.setattr(mps.tempfile, "mkdtemp", noted)
        yield made
    assert not [home for home in made if home.name.startswith("mps-") and home.exists()]


@pytest.fixture
def stand_in(tmp_path: Path, homes: list[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in is the program that is found."""
    program = tmp_path / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


@pytest.fixture
def no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH stays: Triton's compiler is looked for there as well."""
    monkeypatch.setattr(mps, "_CONTROL", "nvidia-cuda-mps-control-of-no-driver")


def pid_of(daemon: Mps) -> int:
    return int((Path(daemon.environment[mps.PIPE]) / "control").read_text())


def register(daemon: Mps, clients: dict[str, str]) -> None:
    """Clients by server."""
    folder = Path(daemon.environment[mps.PIPE]) / "servers"
    folder.mkdir()
    for server, pids in clients.items():
        (folder / server).write_text(pids)


def test_the_daemon_lives_as_long_as_its_context(stand_in: Path) -> None:
    with Mps() as daemon:
        pid = pid_of(daemon)
        assert rap_sessions.alive(pid)
        assert set(daemon.environment) == {mps.PIPE, mps.LOG}
        for folder in map(Path, daemon.environment.values()):
            assert folder.is_dir()
            assert len(str(folder)) < 80  # a socket's path has at most 108 bytes
        assert daemon.servers() == daemon.clients() == []
    assert not rap_sessions.living({pid})
    assert not Path(daemon.environment[mps.PIPE]).exists()


def test_the_daemon_ends_with_an_error_too(stand_in: Path) -> None:
    pids: list[int] = []

    def fail() -> None:
        with Mps() as daemon:
            pids.append(pid_of(daemon))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(pids) == 1
    assert not rap_sessions.living(pids)


def test_two_daemons_do_not_meet(stand_in: Path) -> None:
    with Mps() as one, Mps() as other:
        assert pid_of(one) != pid_of(other)
        register(one, {"7": "8\n"})
        assert one.clients() == ["8"]
        assert other.clients() == []


def test_clients_of_all_servers_are_counted(stand_in: Path) -> None:
    with Mps() as daemon:
        register(daemon, {"100": "11\n12\n", "200": "21\n"})
        assert daemon.servers() == ["100", "200"]
        assert daemon.clients() == ["11", "12", "21"]
        launcher._assert_registered(daemon, 3)
        with pytest.raises(MpsError, match=r"^3 of 4 processes registered .*; fix: "):
            launcher._assert_registered(daemon, 4)


def test_a_daemon_that_does_not_start(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFUSE", "An instance of this\ndaemon is already running")
    with pytest.raises(
        MpsError, match=r"did not start: An instance of this daemon is already running; fix: "
    ):
        Mps().__enter__()


def test_a_daemon_that_starts_for_ever(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.write_text("#!/bin/sh\nexec sleep 300\n")
    monkeypatch.setattr(mps, "_SECONDS", 0.3)
    with pytest.raises(MpsError, match=r"did not start: no answer within 0.3 s; fix: "):
        Mps().__enter__()


def test_a_program_that_cannot_be_run(stand_in: Path) -> None:
    stand_in.write_text("#!/nowhere/sh\n")
    with pytest.raises(MpsError, match=r"did not start: .*No such file"):
        Mps().__enter__()


def test_a_daemon_that_dies(stand_in: Path) -> None:
    with Mps() as daemon:
        os.kill(pid_of(daemon), signal.SIGKILL)
        with pytest.raises(MpsError, match=r"^the MPS daemon has died; fix: "):
            daemon.clients()
        # What the processes say about it only follows from it.
        with pytest.raises(MpsError, match=r"^the MPS daemon has died; fix: "):
            launcher._blame_the_dead({}, daemon)


def test_a_daemon_that_does_not_answer(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Mps() as daemon:
        hangs = Path(daemon.environment[mps.PIPE]) / "hangs"
        hangs.touch()
        with monkeypatch.context() as patch:
            patch.setattr(mps, "_SECONDS", 0.3)
            with pytest.raises(MpsError, match=r"does not answer; fix: "):
                daemon.servers()
        hangs.unlink()


def test_no_daemon_may_be_reachable_without_mps(tmp_path: Path) -> None:
    assert_absent({mps.PIPE: str(tmp_path)})
    (tmp_path / "control").touch()
    with pytest.raises(MpsError, match=f"reachable in {tmp_path}, .*; fix: stop it"):
        assert_absent({mps.PIPE: str(tmp_path)})


@pytest.mark.usefixtures("no_program")
def test_without_the_program_no_process_starts(homes: list[Path]) -> None:
    told = rap_sessions.Told()
    with pytest.raises(
        MpsError, match=r"nvidia-cuda-mps-control-of-no-driver was not found, .*; fix: "
    ):
        launcher.run_session(
            rap_sessions.SMALL, "rap_training.experiments.fig10:on_rank", told, session="mps"
        )
    assert not homes
    assert not told.messages


def results(folder: Path) -> tuple[set[str], dict[str, str]]:
    """Measured variants, and skipped ones with their reasons."""
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    skips = [json.loads(line) for line in (folder / "skipped.jsonl").read_text().splitlines()]
    measured = {r["labels"]["variant"] for r in records if r["metric"] == "throughput"}
    return measured, {skip["labels"]["variant"]: skip["reason"] for skip in skips}


ARGUMENTS = (
    "fig10", "--batch", "32", "--scale", "0.0001", "--iterations", "4", "--warmup", "1",
    "--batches", "2", "--repeats", "1", "--variants", "mps,ideal,rap_mps,sequential",
)  # fmt: skip


def test_variants_under_mps_are_skipped_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AE_OUT", str(tmp_path))
    (tmp_path / "every.json").write_text(dump(every_operator()))
    plan = ("--plan-file", str(tmp_path / "every.json"))
    assert main([*ARGUMENTS, *plan, "--device", "cpu"]) == 0
    measured, skipped = results(tmp_path)
    assert measured == {"ideal", "sequential"}
    assert set(skipped) == {"mps", "rap_mps"}
    assert all("need a GPU" in reason for reason in skipped.values())


@pytest.mark.gpu
@pytest.mark.usefixtures("no_program")
def test_variants_under_mps_are_skipped_without_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AE_OUT", str(tmp_path))
    assert main([*ARGUMENTS, "--device", "cuda"]) == 0
    measured, skipped = results(tmp_path)
    assert measured == {"ideal", "sequential"}
    assert set(skipped) == {"mps", "rap_mps"}
    assert all(
        "was not found, so nothing can run under MPS" in reason for reason in skipped.values()
    )


CLIENT = """
import torch
torch.zeros(1, device="cuda").add_(1).item()
print("registered", flush=True)
input()
"""


@pytest.mark.gpu
@pytest.mark.usefixtures("homes")
def test_the_real_daemon_serves_two_processes() -> None:
    with Mps() as daemon:
        environment = {**os.environ, **daemon.environment}
        clients = [
            subprocess.Popen(
                [sys.executable, "-c", CLIENT], env=environment, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True,
            )
            for _ in range(2)
        ]  # fmt: skip
        try:
            for client in clients:
                assert client.stdout
                assert client.stdout.readline() == "registered\n"
            assert len(daemon.servers()) == 1
            launcher._assert_registered(daemon, 2)
            with pytest.raises(MpsError, match=r"^2 of 3 processes registered"):
                launcher._assert_registered(daemon, 3)
            with pytest.raises(MpsError, match=r"an MPS daemon is reachable"):
                assert_absent(environment)
        finally:
            for client in clients:
                client.communicate("\n", timeout=60)

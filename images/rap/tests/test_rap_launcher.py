"""Sessions of real processes: they end well, or with the error of the one that failed first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rap_sessions
from rap_sessions import SMALL, Told, living, of_session, session
from rap_training.launcher import SessionFailed, run_session

pytestmark = pytest.mark.torch

SECONDS = 15.0  # in which a failed session has ended, far below the patience
ARGUMENTS = (
    "fig10", "--gpus", "2", "--batch", "32", "--scale", "0.0001", "--warmup", "1",
    "--batches", "2", "--variants", "sequential,cpu,rap", "--workers", "1",
)  # fmt: skip


def test_a_session_ends_well() -> None:
    told = Told()
    run_session(SMALL, "rap_training.experiments.fig10:on_rank", told, variants=SMALL.variants)
    names = {record["labels"]["variant"] for record in told.of("record")}
    assert names == {"sequential", "ideal"}
    assert {record["metric"] for record in told.of("record")} >= {"throughput", "iteration_time"}
    assert len(told.pids) == 2
    assert not living(told.pids)


def test_every_message_arrives_even_right_before_the_end() -> None:
    told = Told()
    session("greet", told)
    assert [fact["value"] for fact in told.of("fact")] == list(range(200))


def test_a_rank_that_raises_ends_all_with_its_error(capfd: pytest.CaptureFixture[str]) -> None:
    told = Told()
    with pytest.raises(SessionFailed, match=r"^rank 1: the second rank has had enough$") as failed:
        session("second_raises", told)
    assert "Traceback" in capfd.readouterr().err
    assert failed.value.exit_code == 1
    assert told.since_last < SECONDS
    assert len(told.pids) == 2
    assert not living(told.pids)


def test_a_usage_error_in_a_rank_is_its_sentence_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SessionFailed, match=r"^rank 0: the batch is too small; fix: ") as failed:
        session("all_are_misused", Told(), gpus=1)
    assert failed.value.exit_code == 2
    assert "Traceback" not in capfd.readouterr().err


def test_a_rank_that_is_killed_in_a_collective_ends_all() -> None:
    told = Told()
    with pytest.raises(SessionFailed, match=r"^rank 1 died of signal 9; fix: "):
        session("second_is_killed", told, variants=("cpu", "ideal"), workers=(1,))
    assert told.since_last < SECONDS
    workers = told.of("fact")[0]["value"]
    assert len(workers) == 2
    assert not living(told.pids | set(workers))


def test_a_death_is_seen_although_messages_came_before_it() -> None:
    told = Told()
    with pytest.raises(SessionFailed, match=r"^rank 0 died of signal 9"):
        session("first_is_killed_telling", told)
    assert len(told.of("fact")) == 50
    assert told.since_last < SECONDS


def test_a_rank_that_leaves_ends_all() -> None:
    with pytest.raises(SessionFailed, match=r"^rank (0 ended with exit code 3|1: .*peer)"):
        session("first_exits", Told())


def test_silent_ranks_say_where_they_stand_and_are_ended(
    capfd: pytest.CaptureFixture[str],
) -> None:
    told = Told()
    with pytest.raises(SessionFailed, match=r"^rank 0, rank 1 said nothing for 20 s; fix: "):
        session("all_are_silent", told, patience=20.0)  # in which both must have begun
    assert told.since_last < 20.0 + SECONDS
    assert not living(told.pids)
    assert capfd.readouterr().err.count(" in all_are_silent\n") == 2


def test_a_rank_that_cannot_begin_says_why() -> None:
    with pytest.raises(SessionFailed, match=r"rank 0: .*no_such_job"):
        session("no_such_job", Told(), gpus=1)


def environment(tmp_path: Path) -> dict[str, str]:
    """For a run that is killed: it cannot remove its files, so none may lie in /tmp."""
    return {**os.environ, "TMPDIR": str(tmp_path)}


def start(tmp_path: Path) -> tuple[subprocess.Popen[str], set[int]]:
    """A run that would take minutes, in a session of its own, and its processes, all at work."""
    command = [sys.executable, "-m", "rap_training", *ARGUMENTS, "--iterations", "100000"]
    process = subprocess.Popen(
        command, env={**environment(tmp_path), "AE_OUT": "out"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        cwd=tmp_path,
    )  # fmt: skip
    assert process.stdout
    for line in process.stdout:
        if "preparing cpu" in line:
            break
    assert list(tmp_path.glob("rap-*/rendezvous"))
    pids = of_session(process.pid)
    # The run, what Python's multiprocessing needs, two ranks, and a worker of each.
    assert len(pids - {process.pid}) >= 4, process.stderr
    return process, pids


def test_nothing_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    process, pids = start(tmp_path)
    process.kill()
    process.wait(SECONDS)
    assert not living(pids, SECONDS)
    process.communicate()


def test_ctrl_c_ends_all(tmp_path: Path) -> None:
    process, pids = start(tmp_path)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert time.monotonic() - began < SECONDS
    assert not living(pids)


def test_a_run_that_is_killed_before_its_ranks_work_leaves_none(tmp_path: Path) -> None:
    code = (
        "import os, signal, threading, rap_sessions\n"
        "if __name__ == '__main__':\n"
        "    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()\n"
        "    rap_sessions.session('all_are_silent', rap_sessions.Told())\n"
    )
    script = tmp_path / "early.py"
    script.write_text(code)
    process = subprocess.Popen(
        [sys.executable, str(script)], env=environment(tmp_path), start_new_session=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.wait(60) == -signal.SIGKILL
    end = time.monotonic() + 30
    while of_session(process.pid) and time.monotonic() < end:
        time.sleep(0.1)
    assert not of_session(process.pid)


def test_pids_are_told_apart() -> None:
    assert rap_sessions.alive(os.getpid())
    assert os.getpid() in of_session(os.getsid(0))

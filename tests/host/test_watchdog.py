"""The watchdog, with real processes. Its containers are tested in tests/real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ae.host.processes import watched

ROOT = Path(__file__).resolve().parents[2]
# It starts one group that it stops itself, and says the ids of the watchdog and of another whose
# leader ends at once.
LAUNCHER = """
import os, subprocess, sys, time
from ae.host import owner
from ae.host.processes import watched
stamp = {owner.ENVIRONMENT: owner.to_environment(owner.stamp({owner.RUN: sys.argv[1]}))}
with watched(sys.argv[1]) as watchdog:
    words = [sys.executable, "-c", sys.argv[2]]
    child = subprocess.Popen(words, env=stamp, start_new_session=True)
    print(watchdog, child.pid, flush=True)
    time.sleep(60)
"""
SLEEPS = "import time; time.sleep(60)"
LEAVES_ONE = (
    "import os, signal, time\n"
    "if os.fork(): os._exit(0)\n"
    "signal.signal(15, lambda *_: os._exit(0)); time.sleep(60)"
)


def launch(run: str, code: str) -> tuple[subprocess.Popen[str], int, int]:
    env = os.environ | {"DOCKER_HOST": "unix:///nowhere.sock"}
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, run, code],
        stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env,
    )  # fmt: skip
    assert launcher.stdout is not None
    watchdog, child = launcher.stdout.readline().split()
    time.sleep(0.3)
    return launcher, int(watchdog), int(child)


def end(launcher: subprocess.Popen[str], number: int) -> None:
    launcher.send_signal(number)
    launcher.wait()
    assert launcher.stdout is not None
    launcher.stdout.close()


def members(group: int) -> list[str]:
    """The processes of a group that run."""
    listed = subprocess.run(
        ["ps", "-e", "-o", "pgid=,stat=,pid="], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in listed.stdout.splitlines()]
    return [pid for pgid, stat, pid in rows if pgid == str(group) and stat[0] not in "ZX"]


def gone(group: int, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while (left := members(group)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        os.killpg(group, signal.SIGKILL)
    return not left


@pytest.mark.parametrize("code", [SLEEPS, LEAVES_ONE])
def test_a_killed_launcher_leaves_nothing_of_its_run_and_all_of_others(code: str) -> None:
    other, _, kept = launch(f"other-{os.getpid()}", SLEEPS)
    launcher, _, doomed = launch(f"killed-{os.getpid()}", code)
    assert members(doomed)
    end(launcher, signal.SIGKILL)
    assert gone(doomed)
    assert members(kept)
    end(other, signal.SIGKILL)
    assert gone(kept)


def test_the_watchdog_survives_signals_and_ends_with_its_launcher() -> None:
    launcher, watchdog, doomed = launch(f"signals-{os.getpid()}", SLEEPS)
    assert os.getsid(watchdog) == watchdog  # its own session: a terminal's Ctrl-C passes it by
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(watchdog, number)
    end(launcher, signal.SIGTERM)  # which it does not handle
    assert gone(doomed)
    assert gone(watchdog)


def test_it_starts_fast_and_cleans_nothing_where_the_launcher_ends_well() -> None:
    starts, whole = [], []
    for _ in range(5):  # at best: others use the machine as well
        began = time.monotonic()
        with watched("none") as pid:
            starts.append(time.monotonic() - began)
            assert members(pid)
        whole.append(time.monotonic() - began)
        assert not Path(f"/proc/{pid}").exists()
    assert min(starts) < 0.2
    assert min(whole) < 0.5


def test_a_run_goes_on_without_its_watchdog() -> None:
    with watched("none") as pid:
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)

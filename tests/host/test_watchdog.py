"""The watchdog, with real processes. Its containers are tested in tests/real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ae.host import processes
from ae.host.watchdog import Reaper

LAUNCHER = """
import os, sys, time
from ae.host.watchdog import Reaper
reaper = Reaper.start()
for word in sys.argv[2:]:
    reaper.watch_group(int(word))
reaper.done(sys.argv[1])
print(reaper.pid, flush=True)
time.sleep(60)
"""


def start_group(code: str = "import time; time.sleep(60)") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=True)


def launch(*words: int) -> tuple[subprocess.Popen[str], int]:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, *map(str, words)], stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    return launcher, int(launcher.stdout.readline())


def end(launcher: subprocess.Popen[str], number: int) -> None:
    launcher.send_signal(number)
    launcher.wait()
    assert launcher.stdout is not None
    launcher.stdout.close()


def gone(child: subprocess.Popen[bytes], seconds: float = 8) -> bool:
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        return False
    return True


def test_a_killed_launcher_leaves_exactly_what_was_done() -> None:
    kept, doomed = start_group(), start_group()
    launcher, _ = launch(kept.pid, kept.pid, doomed.pid)
    end(launcher, signal.SIGKILL)
    assert gone(doomed)
    assert kept.poll() is None
    kept.kill()
    kept.wait()


def test_who_does_not_listen_is_killed() -> None:
    stubborn = start_group("import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)")
    time.sleep(0.3)
    launcher, _ = launch(0, stubborn.pid)
    end(launcher, signal.SIGKILL)
    assert gone(stubborn, 15)
    assert stubborn.returncode == -signal.SIGKILL


def test_the_watchdog_survives_signals_and_ends_with_its_launcher() -> None:
    doomed = start_group()
    launcher, watchdog = launch(0, doomed.pid)
    time.sleep(0.3)
    assert os.getsid(watchdog) == watchdog  # its own session: a terminal's Ctrl-C passes it by
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(watchdog, number)
    end(launcher, signal.SIGTERM)
    assert gone(doomed)
    deadline = time.monotonic() + 5
    while Path(f"/proc/{watchdog}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{watchdog}/cmdline").exists()


def test_it_starts_fast_and_closes_clean() -> None:
    started = time.monotonic()
    with Reaper.start() as reaper:
        assert time.monotonic() - started < 0.2
        reaper.watch_group(2**22 - 1)
        reaper.done(2**22 - 1)
    assert time.monotonic() - started < 2


def test_a_run_goes_on_without_its_watchdog() -> None:
    with Reaper.start() as reaper:
        os.kill(reaper.pid, signal.SIGKILL)
        time.sleep(0.2)
        reaper.watch_group(2**22 - 1)
        reaper.done(2**22 - 1)


def test_it_imports_nothing_slow() -> None:
    script = str(Path(__file__).resolve().parents[2] / "ae/host/watching.py")
    code = (
        "import runpy, sys; sys.stdin = open('/dev/null');"
        f"runpy.run_path({script!r}, run_name='__main__');"
    )
    listed = "print(sorted({'subprocess', 'socket', 'http', 'ae', 'docker'} & set(sys.modules)))"
    done = processes.run([sys.executable, "-I", "-S", "-c", code + listed], timeout_s=20)
    assert done.stdout.strip() == "[]"

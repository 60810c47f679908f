"""Starting processes, streaming their lines, and stopping whole groups. All with real processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from ae.host import processes, signals
from ae.host.processes import ProcessFault


class Lines:
    def __init__(self) -> None:
        self.got: list[tuple[str, str]] = []

    def __call__(self, stream: str, text: str) -> None:
        self.got.append((stream, text))

    def of(self, stream: str) -> list[str]:
        return [text for name, text in self.got if name == stream]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int) -> bool:
    end = time.monotonic() + 5
    while running(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not running(pid)


def test_run_gives_output_and_code() -> None:
    done = processes.run(python("import sys; print('a'); print('b', file=sys.stderr); sys.exit(3)"))
    assert (done.stdout, done.stderr, done.returncode) == ("a\n", "b\n", 3)


def test_run_words_are_never_a_shell_line() -> None:
    assert processes.run(["echo", "$HOME; ls"]).stdout == "$HOME; ls\n"


def test_run_missing_program_has_a_fix() -> None:
    with pytest.raises(ProcessFault, match="'ae-no-such-program' is not there") as caught:
        processes.run(["ae-no-such-program"])
    assert caught.value.fix
    assert caught.value.exit_code == 3


def test_run_program_that_may_not_be_run(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("x")
    with pytest.raises(ProcessFault, match="could not be started: Permission denied"):
        processes.run([str(path)])


def test_run_stops_at_its_deadline() -> None:
    started = time.monotonic()
    with pytest.raises(ProcessFault, match=r"did not answer within 0\.3 s"):
        processes.run(["sleep", "60"], timeout_s=0.3)
    assert time.monotonic() - started < 5


def test_stream_keeps_the_streams_apart_and_in_order() -> None:
    lines = Lines()
    code = "import sys\nfor i in range(300): print(i); print(-i, file=sys.stderr)"
    ended = processes.stream(python(code), lines)
    assert ended.returncode == 0
    assert not ended.timed_out
    assert lines.of("stdout") == [str(i) for i in range(300)]
    assert lines.of("stderr") == [str(-i) for i in range(300)]


def test_stream_is_live() -> None:
    seen: list[float] = []
    code = "import time; print('x', flush=True); time.sleep(2)"
    ended = processes.stream(python(code), lambda _, __: seen.append(time.monotonic()))
    assert time.monotonic() - seen[0] > 0.4
    assert ended.seconds > 1.9


def test_stream_passes_on_noise_and_a_line_without_end() -> None:
    lines = Lines()
    code = "import sys; sys.stdout.buffer.write(bytes(range(256)) + b'\\nlast')"
    processes.stream(python(code), lines)
    assert lines.of("stdout")[-1] == "last"


def test_stream_says_which_signal() -> None:
    ended = processes.stream(python("import os; os.kill(os.getpid(), 9)"), Lines())
    assert ended.returncode == -9


def within_a_deadline(code: str, grace_s: float) -> tuple[processes.Exit, Lines, float]:
    """A program that says when it is ready. A start counts, and a slow machine's may take all."""
    for timeout_s in (0.5, 4.0, 16.0):
        lines = Lines()
        ended = processes.stream(python(code), lines, timeout_s=timeout_s, grace_s=grace_s)
        if "ready" in lines.of("stdout"):
            break
    return ended, lines, timeout_s


def test_deadline_lets_the_child_clean_up() -> None:
    code = (
        "import signal, sys, time\n"
        "def bye(*_): print('cleaning', flush=True); sys.exit(5)\n"
        "signal.signal(signal.SIGTERM, bye); print('ready', flush=True); time.sleep(60)"
    )
    ended, lines, deadline_s = within_a_deadline(code, 10)
    assert ended.timed_out
    assert ended.returncode == 5
    assert lines.of("stdout") == ["ready", "cleaning"]
    assert ended.seconds < deadline_s + 7


def test_a_command_that_stands_for_another_is_told_in_its_own_way(tmp_path: Path) -> None:
    told = tmp_path / "told"
    code = f"import os, time\nwhile not os.path.exists({str(told)!r}): time.sleep(0.02)\nexit(6)"
    ended = processes.stream(python(code), Lines(), timeout_s=0.1, tell=told.touch)
    assert (ended.timed_out, ended.returncode) == (True, 6)


def test_deadline_kills_who_does_not_listen() -> None:
    code = (
        "import signal, time; signal.signal(15, signal.SIG_IGN)\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    ended, _, _ = within_a_deadline(code, 0.5)
    assert ended.timed_out
    assert ended.returncode == -signal.SIGKILL


def test_grandchildren_end_with_the_group() -> None:
    lines = Lines()
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal, time;"
        " signal.signal(15, signal.SIG_IGN); time.sleep(60)'])\n"
        "print(child.pid, flush=True)"
    )
    processes.stream(python(code), lines, grace_s=0.5)
    assert wait_until_gone(int(lines.of("stdout")[0]))


SLEEPER = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"


def test_interrupt_stops_the_child() -> None:
    groups: list[int] = []

    def interrupt(stream: str, text: str) -> None:
        groups.append(int(text))
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    with signals.handled(), pytest.raises(KeyboardInterrupt):
        processes.stream(python(SLEEPER), interrupt, grace_s=2)
    assert not processes.group_alive(groups[0])


def test_a_sink_that_fails_stops_the_child() -> None:
    groups: list[int] = []

    def full_disk(stream: str, text: str) -> None:
        groups.append(int(text))
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        processes.stream(
            python(SLEEPER),
            full_disk,
            grace_s=1,
        )
    assert not processes.group_alive(groups[0])


def test_child_dies_with_the_launcher(tmp_path: Path) -> None:
    """The kernel tells it, even when nobody else can."""
    code = (
        "import os, sys; from ae.host import processes\n"
        f"processes.stream([sys.executable, '-c', {SLEEPER!r}],"
        " lambda _, pid: (print(pid, flush=True), os.kill(os.getpid(), 9)))"
    )
    done = processes.run(python(code), timeout_s=20)
    assert done.returncode == -9
    assert wait_until_gone(int(done.stdout))


def test_memory_limit() -> None:
    lines = Lines()
    ended = processes.stream(python("x = bytearray(2 * 10**9)"), lines, memory_bytes=500 * 10**6)
    assert ended.returncode == 1
    assert lines.of("stderr")[-1] == "MemoryError"


def test_stopping_a_group_that_has_gone() -> None:
    done = processes.run(["true"])
    assert done.returncode == 0
    processes.stop_group(2**22 - 1, grace_s=0)  # above the kernel's highest process id

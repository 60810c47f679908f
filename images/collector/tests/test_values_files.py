"""Files of values are written beside the program: what is in them, and when.

The file of payload is a pipe here. What writes it waits once 64 KiB were not read, and the program
goes on.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accel_trace import tools
from accel_trace.events import Launch
from accel_trace.moved import Recorded
from accel_trace.reporting import make_report, open_sessions
from accel_trace.values.raw import read
from native_support import READ, START, Run, launch, play

A = 0x7F0000000000
UNIT = 8  # bytes of payload for each access: a value of four
N = 20_000  # accesses whose payload a pipe does not hold
STRIDE = 1 << 24


def launches(*counts: int) -> list[str]:
    """Launch i reads the value i + 1 again and again, at addresses of its own."""
    lines = []
    for i, count in enumerate(counts):
        base = A + i * STRIDE
        lines += [f"memory {base:#x} {4 * count} {i + 1}",
                  *launch(f"global {READ} 4 {base:#x} 4 {count}")]  # fmt: skip
    return lines


class Pipe:
    """The file of payload of a program that starts with `make`, and ends after `alarm` seconds.

    It is read once there is something and `ready(folder)`, or the program is over.
    """

    def __init__(self, folder: Path, ready: Callable[[Path], bool], alarm: int) -> None:
        self.folder, self.ready, self.alarm = folder / "out-values-0", ready, alarm
        self.got = b""
        self.over = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def make(self) -> None:
        os.mkfifo(self.folder / f"values-{os.getpid()}.payload")
        signal.alarm(self.alarm)

    def _read(self) -> None:
        while not (paths := list(self.folder.glob("values-*.payload"))):
            if self.over.wait(0.01):
                return
        self.path = paths[0]
        with open(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK), "rb") as pipe:
            while not self.over.is_set():
                time.sleep(0.01)
                if select.select([pipe], [], [], 0)[0] and self.ready(self.folder):
                    break
            os.set_blocking(pipe.fileno(), True)
            self.got = pipe.read()

    def close(self) -> None:
        """After the program: what was read is the file."""
        self.reader.join(30)
        self.path.unlink()
        self.path.write_bytes(self.got)


def played(
    script: Sequence[str], folder: Path, ready: Callable[[Path], bool], alarm: int = 0,
    **settings: Any,
) -> Run:  # fmt: skip
    pipe = Pipe(folder, ready, alarm)
    try:
        run = play(script, folder, "values", preexec=pipe.make, ok=False, **settings)
    finally:
        pipe.over.set()  # also of a program that cannot be built here
    pipe.close()
    return run


def later(seconds: float) -> Callable[[Path], bool]:
    """Ready so long after it was asked first."""
    asked: list[float] = []

    def ready(_: Path) -> bool:
        asked.append(time.monotonic())
        return asked[-1] - asked[0] > seconds

    return ready


def whole(run: Run, *counts: int) -> None:
    """The files have all of these launches, in order, and the log knows it."""
    assert [(one.launch, one.accesses, one.kept) for one in run.log.of(Recorded)] == [
        (i, count, count) for i, count in enumerate(counts)
    ]
    accesses, _ = read(run.folder, run.log.pid)
    turns = np.arange(len(counts), dtype=np.uint64).repeat(counts)
    assert np.array_equal(accesses.launch, turns)
    own = np.concatenate([np.arange(count, dtype=np.uint64) for count in counts])
    assert np.array_equal(accesses.address, A + turns * np.uint64(STRIDE) + np.uint64(4) * own)
    assert np.array_equal(accesses.low, (turns + np.uint64(1)) * np.uint64(0x01010101))


def test_the_program_goes_on_and_the_log_knows_of_no_launch_whose_files_lack_some(
    tmp_path: Path,
) -> None:
    """It is killed while the payload of the second launch is written; two more wait."""
    lines = launches(100, N, N, N)
    lines[4:4] = ["sync 1"]
    script = [*START, *lines, "print over", "pause 300", f"alloc 1 {A:#x} 64", "kill"]
    run = played(script, tmp_path, lambda _: False)
    assert run.stdout == "over\n"
    assert len(run.log.of(Launch)) == 4
    (payload,) = run.folder.glob("*.payload")
    assert 100 * UNIT < payload.stat().st_size < (100 + N) * UNIT
    whole(run, 100)  # and no record is there whose payload is not
    report = make_report(tools.find("value_patterns")({}, tmp_path), open_sessions(run.folder))
    assert "3 launches were recorded in part" in report.text


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (["exit 7"], 7), (["leave 7"], 7), (["quick_exit 7"], 7), (["flush", "kill"], -9),
        (["sync 1", "kill"], -9), (["sync_context 1", "kill 15"], -15), (["destroy 1"], 0),
    ],
)  # fmt: skip
def test_all_that_was_fetched_is_written(tmp_path: Path, end: list[str], code: int) -> None:
    run = played([*START, *launches(N, N, N), *end], tmp_path, later(0.4))
    assert run.returncode == code
    whole(run, N, N, N)


LARGE = 400_000  # 48 bytes each are more than the stage takes of a launch


@pytest.mark.parametrize(
    ("counts", "waits"),
    [
        ((150_000,) * 4, False),  # 29 MB
        ((150_000,) * 6, True),  # the stage has 32 MiB
        ((N, LARGE, N), False),
        ((N, LARGE, N, LARGE), True),  # one with memory of its own waits at a time
    ],
)
def test_what_waits_for_the_files_is_bounded(
    tmp_path: Path, counts: tuple[int, ...], waits: bool
) -> None:
    """Where nobody reads the pipe, a program that waits is ended by the alarm."""
    script = [*START, *launches(*counts), "print over"]
    stuck = tmp_path / "stuck"
    stuck.mkdir()
    run = played([*script, "kill"], stuck, lambda _: False, alarm=3)
    assert run.stdout == ("" if waits else "over\n")
    free = tmp_path / "free"
    free.mkdir()
    whole(played(script, free, later(0.2)), *counts)


@pytest.mark.parametrize(("end", "known"), [("exit", 3), ("leave", 0)])
def test_a_handler_may_end_the_process_while_it_waits_for_the_files(
    tmp_path: Path, end: str, known: int
) -> None:
    """Where it leaves at once from within a callback, the log has no end."""
    run = played([*START, *launches(N, N, N), f"alarm 1 {end}", "sync 1"], tmp_path, later(1.5))
    assert run.returncode == 3
    assert run.log.whole == bool(known)
    assert len(run.log.of(Recorded)) == known


def test_a_forked_child_writes_its_own_and_does_not_wait_for_its_parents(tmp_path: Path) -> None:
    child = ["context 1 0", "module 1 1", "stream 1 1", *launches(N), "sync 1", "exit 4"]

    def ended(folder: Path) -> bool:
        return any('"closed"' in one.read_text() for one in folder.glob("*.status"))

    script = [*START, *launches(N, N), "fork", *child, "joined"]
    run = played(script, tmp_path, ended)
    assert run.stdout == "child 4\n"
    first, second = sorted(run.logs, key=lambda log: len(log.of(Recorded)))
    assert [len(read(run.folder, log.pid)[0]) for log in (first, second)] == [N, 2 * N]
    assert first.whole
    assert second.whole


def threads_of(folder: Path) -> list[int]:
    """Of each thread of the program that writes there, the signals that it blocks."""
    (pipe,) = folder.glob("values-*.payload")
    tasks = Path(f"/proc/{pipe.stem.split('-')[1]}/task")
    status = [(task / "status").read_text() for task in tasks.iterdir()]
    return sorted(int(text.split("SigBlk:")[1].split()[0], 16) for text in status)


NEVER = 1 << 8 | 1 << 18 | 1 << 31 | 1 << 32  # SIGKILL, SIGSTOP, and two of the C library's


@pytest.mark.parametrize(("range_", "threads"), [("0:", 2), ("2:", 1)])
def test_one_thread_from_the_first_recorded_launch_on_and_no_signal_is_for_it(
    tmp_path: Path, range_: str, threads: int
) -> None:
    masks: list[int] = []  # when there were the most
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            with suppress(OSError, ValueError):  # it has not begun, or has ended
                found = threads_of(tmp_path / "out-values-0")
                masks[:] = found if len(found) >= len(masks) else masks

    looks = threading.Thread(target=look)
    looks.start()
    try:
        played([*START, *launches(N, N), "pause 500"], tmp_path, later(0.3), range=range_)
    finally:
        over.set()
        looks.join()
    assert masks[0] == 0
    assert len(masks) == threads
    assert threads == 1 or masks[1] | NEVER == (1 << 64) - 1


@pytest.mark.slow
@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
@pytest.mark.parametrize("end", ["sync 1", "destroy 1", "exit 0"])
def test_it_runs_clean_under_the_sanitizers_of_the_compiler(
    tmp_path: Path, sanitize: str, end: str
) -> None:
    """The stage is gone with its context, and with the driver: nothing is written from it then."""
    counts = (N, LARGE, 150_000, 150_000, 150_000, 150_000, 150_000, N)
    run = played(
        [*START, *launches(*counts), end], tmp_path, later(0.2), sanitize=sanitize, SYNTHETIC_ENDS=1
    )
    assert (run.returncode, run.stderr) == (0, "")
    whole(run, *counts)


@pytest.mark.slow
def test_threads_that_launch_run_clean_under_the_thread_sanitizer(tmp_path: Path) -> None:
    places = [A + t * STRIDE + i * 0x100000 for t in range(3) for i in range(3)]
    script = [*START, *(f"memory {at:#x} 65536 1" for at in places), "threads 3 60"]
    run = play(script, tmp_path, "values", sanitize="thread")
    assert run.stderr == ""
    analysed = sorted(one.launch for one in run.log.of(Launch) if one.analysed)
    assert sorted(one.launch for one in run.log.of(Recorded)) == analysed
    accesses, _ = read(run.folder, run.log.pid)
    assert (
        accesses.launch.tolist()
        == np.repeat([x.launch for x in run.log.of(Recorded)], 100).tolist()
    )


@pytest.mark.parametrize(("ends", "known"), [(1, [0, 1]), (2, [0])])
def test_a_context_that_another_thread_ends_while_a_launch_is_fetched(
    tmp_path: Path, ends: int, known: list[int]
) -> None:
    """Another one than the launch's, as a program may do, and its own, which is a fault of it."""
    lines = [line.replace("launch 1 1", "launch 2 2") for line in launches(100, N)]
    lines[1] = "launch 1 1 kernel"
    script = [*START, "context 2 1", "module 2 2", "stream 2 2", *lines, "print over"]
    run = play(script, tmp_path, "values", sanitize="address", SYNTHETIC_DESTROYS=ends)
    assert (run.stdout, run.stderr) == ("over\n", "")
    assert [one.launch for one in run.log.of(Recorded)] == known

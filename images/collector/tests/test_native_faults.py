"""What keeps the tool from working: it is said, once and in a sentence, and the target runs on."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from accel_trace import events as ev
from native_support import START, Run, launch, need_tools, parse, play, touched
from test_native_process import ALLOC, READ, WORK, A


def test_modules_that_cannot_be_patched(tmp_path: Path) -> None:
    script = [
        "context 1 0", "module 1 1 refuse", "module 2 1 refuse", "module 3 1", "stream 1 1", ALLOC,
        *launch(READ, module=1), *launch(READ, module=3), "unload 1",
    ]  # fmt: skip
    log = play(script, tmp_path).log
    assert [(m.patched, m.result) for m in log.of(ev.Module)] == [(0, 14), (0, 14), (1, 0), (0, 0)]
    assert [x.analysed for x in log.of(ev.Launch)] == [0, 1]
    assert log.notes().count("could not be patched") == 1
    assert "not supported (14)" in log.notes()


def test_missing_patches(tmp_path: Path) -> None:
    run = play([*WORK, "print done"], tmp_path, patches="/nowhere/patches.fatbin")
    assert run.stdout == "done\n"
    assert [x.analysed for x in run.log.of(ev.Launch)] == [0]
    assert "could not be patched" in run.log.notes()


def test_a_context_that_breaks(tmp_path: Path) -> None:
    """As after an illegal address: all that is left of the work is an error."""
    script = [
        *START,
        ALLOC,
        *launch(READ),
        "flush",
        *launch(READ),
        "break 1",
        *launch(READ),
        "exit 3",
    ]
    for mode in ("touch", "trace"):
        run = play(script, tmp_path, mode, ok=False)
        assert run.returncode == 3
        assert run.log.whole
        assert touched(run.log, 0) == [(A, 4096)]
        assert "not analysed any more" in run.log.notes()


def status_of(run: Run) -> str:
    (status,) = run.folder.glob("*.status")
    return status.read_text()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"ACCEL_TRACE_SANITIZER": "/nowhere/libsanitizer-public.so"}, "cannot open the Compute"),
        ({"SYNTHETIC_TAKEN": "1"}, "another tool uses the Compute Sanitizer"),
        ({"SYNTHETIC_NO_DRIVER": "1"}, "update the driver, or build with an older toolkit"),
        ({"range": "five"}, "ACCEL_TRACE_RANGE is 'five'; it must be FIRST:LAST"),
        ({"kernels": "("}, "ACCEL_TRACE_KERNELS is '('"),
        ({"stack_launch": "last"}, "ACCEL_TRACE_STACK_LAUNCH is 'last'"),
        ({"classes": "globl"}, "ACCEL_TRACE_CLASSES is 'globl'"),
        ({"sample": "0"}, "ACCEL_TRACE_SAMPLE is '0'"),
        ({"workers": "1e3"}, "ACCEL_TRACE_WORKERS is '1e3'"),
        ({"policy": "block"}, "must be wait or drop"),
        ({"analysis": "none"}, "one of touch, count, hot"),
    ],
)
def test_what_keeps_the_tool_from_working_is_said_and_harms_nobody(
    tmp_path: Path, settings: dict[str, object], why: str
) -> None:
    run = play([*WORK, "print done", "ready"], tmp_path, **settings)
    assert run.stderr == ""
    assert run.stdout == "done\nready 0 launches 0\n"
    assert run.logs == []
    assert '"state": "gave_up"' in status_of(run)
    assert why in status_of(run)


def test_a_folder_that_is_missing_or_not_named(tmp_path: Path) -> None:
    for folder in (str(tmp_path / "none"), ""):
        run = play([*WORK, "print done"], tmp_path, ACCEL_TRACE_OUT=folder)
        assert (run.stdout, run.stderr, run.logs) == ("done\n", "", [])


def check_full(run: Run, path: Path) -> None:
    assert (run.returncode, run.stdout.split("\n")[-2], run.stderr) == (0, "done", "")
    (atl,) = path.glob("*.atl")
    log = parse(atl)  # whole frames to the last byte
    assert not log.whole
    assert log.status["state"] == "gave_up"
    assert log.status["dropped_events"] > 1000
    assert log.of(ev.Launch)


MANY = [*START, ALLOC, *launch(READ), "again 30000", "print done"]


@pytest.mark.parametrize("mode", ["events", "touch"])
def test_a_quota_that_is_used_up(tmp_path: Path, mode: str) -> None:
    """The signal that the kernel sends then would end the target."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    run = play(MANY, tmp_path, mode, preexec=limit)
    check_full(run, run.folder)
    assert "File too large" in run.logs[0].status["why"]
    last = run.logs[0].of(ev.Launch)[-1]
    assert last.launch < 10_000


def test_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)],
        capture_output=True, check=False,
    )  # fmt: skip
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        run = play(MANY, tmp_path, "events", ACCEL_TRACE_OUT=str(disk))
        check_full(run, disk)
        (status,) = disk.glob("*.status")
        assert "No space left on device" in status.read_text()
        # Full before anything began: not even the status file fits, and the target still runs.
        for path in disk.iterdir():
            path.unlink()
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as handle:
            try:
                while True:
                    handle.write(b"x" * 4096)
            except OSError:
                pass
        run = play([*WORK, "print done"], tmp_path, "events", ACCEL_TRACE_OUT=str(disk))
        assert (run.stdout, run.stderr) == ("done\n", "")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_the_real_library_does_not_disturb_a_program_without_a_driver(tmp_path: Path) -> None:
    tools = need_tools()
    run = play(
        "", tmp_path, program=[sys.executable, "-c", "import os; print('plain'); os._exit(3)"],
        ok=False, ACCEL_TRACE_SANITIZER=tools.sanitizer_library,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (3, "")
    assert run.stdout in ("plain\n", "")  # os._exit does not flush


def test_a_mode_that_does_not_exist(tmp_path: Path) -> None:
    run = play([*WORK, "print done"], tmp_path, "tuoch")
    assert run.stdout == "done\n"
    assert "ACCEL_TRACE_MODE is 'tuoch'; it must be one of events, sync" in status_of(run)

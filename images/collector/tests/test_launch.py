"""Starting the target: environment, exit codes, signals, streams, folders."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from accel_trace.launch import (
    SITE,
    Filters,
    LaunchError,
    environment,
    prepare_folder,
    refuse_nesting,
    run_target,
)
from accel_trace.tools.base import Needs, ToolError

_FORWARDER = """
import sys
from accel_trace.launch import run_target
outcome = run_target(sys.argv[1:], __import__("os").environ)
print(outcome.exit_code, outcome.signal, flush=True)
"""
_IN_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
_CATCHER = """
import signal, sys, time
def caught(number, frame):
    print("caught", number, flush=True)
    sys.exit(40 + number)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
    signal.signal(number, caught)
print("ready", flush=True)
for _ in range(600):  # a signal just before a sleep ends no sleep
    time.sleep(0.1)
"""


def test_the_environment_of_the_injection(tmp_path):
    needs = Needs(
        mode="trace", handlers=("sanitizer", "torch"), classes=("global", "async"),
        environment={"ACCEL_TRACE_WORKERS": "3"},
    )  # fmt: skip
    filters = Filters(launches="5:", kernels="gemm|im2col", region="step", sample=4)
    base = {
        "HOME": "/h", "LD_PRELOAD": "/a.so:/b.so", "PYTHONPATH": "/mine", "ACCEL_TRACE_MODE": "hot",
        "ACCEL_TRACE_RANGE": "9:", "ACCEL_TRACE_BUFFER": "64", "ACCEL_TRACE_STACK_LAUNCH": "7",
    }  # fmt: skip
    env = environment(base, needs, filters, tmp_path / "out", tmp_path)
    library = str(tmp_path / "libacceltrace.so")
    assert env == {
        "HOME": "/h",
        "LD_PRELOAD": f"/a.so:/b.so:{library}",
        "CUDA_INJECTION64_PATH": library,
        "PYTHONPATH": f"{SITE}:/mine",
        "ACCEL_TRACE_ACTIVE": str(os.getpid()),
        "ACCEL_TRACE_BUFFER": "64",
        "ACCEL_TRACE_CLASSES": "global,async",
        "ACCEL_TRACE_HANDLERS": "sanitizer,torch",
        "ACCEL_TRACE_KERNELS": "gemm|im2col",
        "ACCEL_TRACE_MODE": "trace",
        "ACCEL_TRACE_OUT": str(tmp_path / "out"),
        "ACCEL_TRACE_PATCHES": str(tmp_path / "patches.fatbin"),
        "ACCEL_TRACE_RANGE": "5:",
        "ACCEL_TRACE_REGION": "step",
        "ACCEL_TRACE_SAMPLE": "4",
        "ACCEL_TRACE_WORKERS": "3",
    }
    brought = tmp_path / "libsanitizer-public.so"
    brought.touch()
    assert environment(base, needs, filters, tmp_path / "out", tmp_path) == env | {
        "ACCEL_TRACE_SANITIZER": str(brought)
    }
    named = base | {"ACCEL_TRACE_SANITIZER": "/mine.so"}
    assert (
        environment(named, needs, filters, tmp_path, tmp_path)["ACCEL_TRACE_SANITIZER"]
        == "/mine.so"
    )
    brought.unlink()
    again = environment(env, needs, Filters(), tmp_path, tmp_path)
    assert again["LD_PRELOAD"] == f"/a.so:/b.so:{library}"
    assert "ACCEL_TRACE_RANGE" not in again


def test_mode_none_injects_nothing(tmp_path):
    base = {"A": "1", "LD_PRELOAD": "/a.so", "ACCEL_TRACE_OUT": "/old"}
    env = environment(base, Needs(mode="none"), Filters(), tmp_path, tmp_path)
    assert env == {"A": "1", "LD_PRELOAD": "/a.so"}


def test_a_library_whose_path_cannot_be_preloaded_is_refused(tmp_path):
    for name in ("with blank", "with:colon"):
        with pytest.raises(LaunchError, match="blank or a colon"):
            environment({}, Needs(), Filters(), tmp_path, tmp_path / name)


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"launches": "5"}, "write FIRST:LAST"), ({"launches": "5:5"}, "is empty"),
     ({"launches": "-1:3"}, "write"), ({"launches": "a:b"}, "write"),
     ({"sample": 0}, "at least 1"), ({"kernels": "("}, "is no regular expression, missing")],
)  # fmt: skip
def test_bad_filters_are_one_sentence(fields, words):
    with pytest.raises(LaunchError, match=words):
        Filters(**fields)
    for good in ("", ":", "1:", ":9", "0:1"):
        Filters(launches=good)


def test_classes_of_characters_are_taken_without_a_warning(recwarn):
    Filters(kernels="^[[:alpha:]_]+<")
    assert not recwarn.list


def test_needs_that_are_not_known_are_refused():
    for bad in ({"mode": "fast"}, {"handlers": ("nvbit",)}, {"classes": ("texture",)}):
        with pytest.raises(ToolError, match="is not known; choose of"):
            Needs(**bad)


def test_two_tools_at_once_are_refused_only_while_the_first_lives():
    refuse_nesting({})
    with pytest.raises(LaunchError, match="another accel-trace"):
        refuse_nesting({"ACCEL_TRACE_ACTIVE": str(os.getpid())})
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    refuse_nesting({"ACCEL_TRACE_ACTIVE": str(child.pid)})
    refuse_nesting({"ACCEL_TRACE_ACTIVE": "no number"})
    refuse_nesting({"CUDA_INJECTION64_PATH": "/x/libacceltrace.so"})
    with pytest.raises(LaunchError, match=r"another tool is to be injected; unset it"):
        refuse_nesting({"CUDA_INJECTION64_PATH": "/x/libnvbit.so"})


@pytest.mark.parametrize("code", [0, 1, 77, 126, 255])
def test_the_exit_code_is_the_targets(code):
    outcome = run_target([sys.executable, "-c", f"raise SystemExit({code})"], os.environ)
    assert (outcome.exit_code, outcome.signal, outcome.started) == (code, 0, True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_a_signal_that_ends_the_target_is_128_and_its_number(number):
    program = f"import os; os.kill(os.getpid(), {int(number)})"
    outcome = run_target([sys.executable, "-c", program], os.environ)
    assert (outcome.exit_code, outcome.signal) == (128 + number, number)


def test_a_target_that_cannot_be_started_has_the_code_of_a_shell(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("hello")
    bad = tmp_path / "bad"
    bad.write_text("#!/no/such/interpreter\n")
    bad.chmod(0o755)
    strange = tmp_path / "strange"
    strange.write_bytes(b"\x00\x01")
    strange.chmod(0o755)
    for name, code, words in (
        ("no-such-program-here", 127, "no such program"),
        (str(tmp_path / "none"), 127, "no such program"),
        (str(plain), 126, "Permission denied"),
        (str(tmp_path), 126, "Permission denied"),
        (str(bad), 126, "interpreter is missing"),
        (str(strange), 126, "Exec format error"),
    ):
        outcome = run_target([name], os.environ)
        assert outcome.exit_code == code, name
        assert words in outcome.error
        assert not outcome.started


def test_the_signal_mask_is_as_before_for_us_and_for_the_target():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        program = "import signal; m = signal.pthread_sigmask(0, []); raise SystemExit(sum(m))"
        outcome = run_target([sys.executable, "-c", program], os.environ)
        assert outcome.exit_code == signal.SIGUSR2
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before | {signal.SIGUSR2}
        run_target(["no-such-program-here"], os.environ)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before | {signal.SIGUSR2}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_an_ignored_sigchld_does_not_lose_the_exit_code():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert run_target([sys.executable, "-c", "raise SystemExit(9)"], os.environ).exit_code == 9
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_inherited_files_and_streams_are_the_targets(tmp_path):
    read, write = os.pipe()
    os.set_inheritable(write, True)
    program = f"import os, sys; os.write({write}, sys.stdin.buffer.read())"
    done = subprocess.run(
        [sys.executable, "-c", _FORWARDER, sys.executable, "-c", program], input=b"through",
        check=True, pass_fds=[write], capture_output=True,
    )  # fmt: skip
    os.close(write)
    assert os.read(read, 100) == b"through"
    os.close(read)
    assert done.stdout == b"0 0\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_to_us_goes_on_to_the_target_once(number):
    child = subprocess.Popen(
        [sys.executable, "-c", _FORWARDER, sys.executable, "-c", _CATCHER],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    with child.stdout as lines:
        assert lines.readline() == "ready\n"
        child.send_signal(number)
        assert lines.readline() == f"caught {int(number)}\n"
        assert lines.readline() == f"{40 + number} 0\n"
    assert child.wait(30) == 0


def test_a_signal_that_the_target_does_not_catch_ends_it():
    sleeper = "print('ready', flush=True); import time; time.sleep(60)"
    child = subprocess.Popen(
        [sys.executable, "-c", _FORWARDER, sys.executable, "-c", sleeper],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    with child.stdout as lines:
        assert lines.readline() == "ready\n"
        child.terminate()
        assert lines.readline() == f"{128 + 15} 15\n"
    assert child.wait(30) == 0


def test_a_key_in_the_terminal_reaches_the_target_once(tmp_path):
    """Ctrl-C in a real terminal goes to the whole process group: it must not be sent twice."""
    out = tmp_path / "out"
    counter = (
        "import signal, sys, time\n"
        "n = 0\n"
        "def caught(*_):\n"
        "    global n\n"
        "    n += 1\n"
        "signal.signal(signal.SIGINT, caught)\n"
        f"open({str(out)!r}, 'w').write('ready')\n"
        "end = time.monotonic() + 1.5\n"
        "while time.monotonic() < end: time.sleep(0.05)\n"
        "sys.exit(50 + n)\n"
    )
    master, terminal = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", _IN_TERMINAL, sys.executable, "-c", _FORWARDER, sys.executable,
         "-c", counter], stdin=terminal, stdout=terminal, stderr=terminal,
    )  # fmt: skip
    os.close(terminal)
    until = time.monotonic() + 30
    while not (out.exists() and out.read_text() == "ready") and time.monotonic() < until:
        time.sleep(0.02)
    os.write(master, b"\x03")
    text = b""
    while b"51 0" not in text and time.monotonic() < until:
        try:
            text += os.read(master, 1000)
        except OSError:
            break
    child.wait(30)
    os.close(master)
    assert b"51 0" in text


def test_a_folder_that_is_not_empty_is_taken_only_by_force(tmp_path):
    prepare_folder(tmp_path / "new" / "deep", False)
    assert (tmp_path / "new" / "deep").is_dir()
    out = tmp_path / "out"
    (out / "pass-1").mkdir(parents=True)
    for name in ("trace-1.atl", "trace-1.status", "run.json", "mine.txt", "pass-1/trace-2.atl"):
        (out / name).write_text("x")
    with pytest.raises(LaunchError, match="is not empty; name another --out, or add --force"):
        prepare_folder(out, False)
    prepare_folder(out, True)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    with pytest.raises(LaunchError, match="name another --out"):
        prepare_folder(out / "mine.txt", False)


def test_the_folder_of_the_site_belongs_to_the_package():
    assert SITE.parent.name == "handlers"
    assert (Path(SITE.parents[1]) / "events.py").is_file()

"""The one place that starts processes: argv lists only, and whole process groups are stopped."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from ae.errors import EnvironmentFault
from ae.host import signals
from ae.host.lines import LineCutter

Stream = Literal["stdout", "stderr"]
OnLine = Callable[[Stream, str], None]

GRACE_S = 10.0  # between TERM and KILL
_POLL_S = 0.02
_DRAIN_S = 2.0  # how long output is read after the child has ended
_PR_SET_PDEATHSIG = 1


class ProcessFault(EnvironmentFault):
    """A program could not be started, or did not end in time."""


@dataclass(frozen=True)
class Completed:
    """A process that has ended by itself."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Exit:
    """How a streamed process ended. `returncode` is negative when a signal ended it."""

    returncode: int
    seconds: float
    timed_out: bool


def run(
    argv: Sequence[str],
    *,
    timeout_s: float | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Completed:
    """Run a short command to its end and return its output; any exit code is a result.

    Raises ProcessFault when the program is missing or does not end within `timeout_s`.
    """
    words = tuple(str(word) for word in argv)
    try:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        raise _cannot_start(words, error) from error
    try:
        stdout, stderr = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise ProcessFault(
            f"'{words[0]}' did not answer within {timeout_s:g} s",
            fix=f"run it by hand and see what it waits for: {' '.join(words)}",
        ) from error
    finally:
        if child.returncode is None:  # deadline or Ctrl-C
            stop_group(child.pid, grace_s=1.0, reap=child.poll)
            child.wait()
        for pipe in (child.stdout, child.stderr):
            if pipe:
                pipe.close()
    return Completed(
        words,
        child.returncode,
        stdout.decode("utf-8", "replace"),
        stderr.decode("utf-8", "replace"),
    )


def stream(
    argv: Sequence[str],
    on_line: OnLine,
    *,
    timeout_s: float | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    memory_bytes: int | None = None,
    on_start: Callable[[int], None] | None = None,
    grace_s: float = GRACE_S,
) -> Exit:
    """Run a command in a process group of its own and hand on its output line by line.

    The whole group ends with it: after a deadline, on KeyboardInterrupt and when the command leaves
    children behind (TERM, `grace_s`, KILL). Should this process die, the kernel sends the child a
    TERM. `memory_bytes` caps its address space; `on_start` gets the group's id.
    """
    words = tuple(str(word) for word in argv)
    started = time.monotonic()
    child: subprocess.Popen[bytes] | None = None
    try:
        with signals.shielded():  # no child without somebody who knows of it
            child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,  # so that a Ctrl-C at the terminal reaches only us
                bufsize=0,
                preexec_fn=_child_setup(os.getpid(), memory_bytes),  # noqa: PLW1509 it only calls C
            )
            if on_start:
                on_start(child.pid)
        timed_out = not _pump(child, on_line, None if timeout_s is None else started + timeout_s)
        if timed_out:
            _pump_while_stopping(child, on_line, grace_s)
        returncode = child.wait()
        seconds = time.monotonic() - started
    except OSError as error:
        if child is None:
            raise _cannot_start(words, error) from error
        raise
    finally:
        if child is not None:
            # Also when the leader has gone: it may have left children in its group.
            stop_group(child.pid, grace_s=grace_s, reap=child.poll)
            child.wait()
            for pipe in (child.stdout, child.stderr):
                if pipe:
                    pipe.close()
    return Exit(returncode, seconds, timed_out)


def start_helper(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a quiet helper in a session of its own, with a pipe as its standard input."""
    try:
        return subprocess.Popen(
            tuple(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )
    except OSError as error:
        raise _cannot_start(argv, error) from error


def stop_group(
    pgid: int, *, grace_s: float = GRACE_S, reap: Callable[[], object] = lambda: None
) -> None:
    """Stop every process of a group: TERM, `grace_s` to clean up, KILL. Gone already is fine."""
    if not _signal_group(pgid, signal.SIGTERM):
        return
    end = time.monotonic() + grace_s
    while time.monotonic() < end:
        reap()
        if not group_alive(pgid):
            return
        time.sleep(_POLL_S)
    _signal_group(pgid, signal.SIGKILL)


def group_alive(pgid: int) -> bool:
    """Whether a process of the group runs (zombies that nobody has waited for count as gone)."""
    if not _signal_group(pgid, 0):
        return False
    return any(group == pgid and state not in "ZX" for group, state in _groups())


def _groups() -> list[tuple[int, str]]:
    """(process group, state letter) of every process that /proc shows."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                # After the last ')': state, parent, group. The name before it may hold anything.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                found.append((int(fields[2]), fields[0]))
    return found


def _signal_group(pgid: int, number: int) -> bool:
    try:
        os.killpg(pgid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False  # not ours: the number was given to somebody else's group
    return True


class _Reader:
    """Reads both pipes of a child without blocking and cuts them into lines."""

    def __init__(self, child: subprocess.Popen[bytes], on_line: OnLine) -> None:
        self._selector = selectors.DefaultSelector()
        self._on_line = on_line
        self._cutters: dict[Stream, LineCutter] = {"stdout": LineCutter(), "stderr": LineCutter()}
        pipes: tuple[tuple[Stream, IO[bytes] | None], ...] = (
            ("stdout", child.stdout),
            ("stderr", child.stderr),
        )
        for name, pipe in pipes:
            assert pipe is not None
            self._selector.register(pipe, selectors.EVENT_READ, name)

    def read(self, timeout_s: float) -> bool:
        """Hand on what is there; False when both pipes have ended."""
        for key, _ in self._selector.select(timeout_s):
            name: Stream = key.data
            chunk = os.read(key.fd, 65536)
            cutter = self._cutters[name]
            for line in cutter.feed(chunk) if chunk else cutter.end():
                self._on_line(name, line)
            if not chunk:
                self._selector.unregister(key.fileobj)
        return bool(self._selector.get_map())

    def close(self) -> None:
        """Hand on lines that have no end yet."""
        for name, cutter in self._cutters.items():
            for line in cutter.end():
                self._on_line(name, line)
        self._selector.close()


def _pump(child: subprocess.Popen[bytes], on_line: OnLine, deadline: float | None) -> bool:
    """Hand on output until the child has ended; False when the deadline came first."""
    reader = _Reader(child, on_line)
    drain_until: float | None = None
    try:
        while True:
            now = time.monotonic()
            if drain_until is None and child.poll() is not None:
                # A grandchild may hold the pipes open for ever: read what there is, then stop.
                drain_until = now + _DRAIN_S
            if drain_until is not None and now > drain_until:
                return True
            if deadline is not None and now >= deadline and drain_until is None:
                return False
            wait = 0.1 if deadline is None else max(0.0, min(0.1, deadline - now))
            if not reader.read(wait):
                if child.poll() is not None:
                    return True
                time.sleep(min(wait, _POLL_S))  # it closed its output and goes on
    finally:
        reader.close()


def _pump_while_stopping(child: subprocess.Popen[bytes], on_line: OnLine, grace_s: float) -> None:
    """After a deadline: TERM to the group, and hand on its last words until they end."""
    _signal_group(child.pid, signal.SIGTERM)
    _pump(child, on_line, time.monotonic() + grace_s)
    _signal_group(child.pid, signal.SIGKILL)


def _child_setup(parent: int, memory_bytes: int | None) -> Callable[[], None]:
    """What the child does between fork and exec; everything it needs is looked up before."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)

    def set_up() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != parent:  # it died before the line above
                os._exit(1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if memory_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))

    return set_up


def _cannot_start(argv: Sequence[str], error: OSError) -> ProcessFault:
    name = argv[0]
    if error.errno == errno.ENOENT:
        return ProcessFault(
            f"there is no program '{name}'", fix=f"install {name}, or put it on PATH"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return ProcessFault(f"'{name}' may not be run", fix=f"check the permissions of {name}")
    return ProcessFault(
        f"'{name}' could not be started: {error.strerror}", fix=f"run it by hand: {' '.join(argv)}"
    )

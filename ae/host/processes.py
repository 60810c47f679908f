"""The one place that starts processes: argv lists only, and whole process groups are stopped."""

from __future__ import annotations

import codecs
import ctypes
import io
import math
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ae.errors import EnvironmentFault
from ae.host import signals

Stream = Literal["stdout", "stderr"]
OnLine = Callable[[Stream, str], None]
Call = Callable[[], object] | None
Child = subprocess.Popen[bytes]
Completed = subprocess.CompletedProcess[str]

GRACE_S = 10.0  # between TERM and KILL
MAX_LINE = 1 << 20  # characters; a stream without line ends must not fill the memory
_POLL_S = 0.02
_DRAIN_S = 2.0  # how long output is read after the child has ended
_PR_SET_PDEATHSIG = 1


class ProcessFault(EnvironmentFault):
    """A program could not be started, or did not end in time."""


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
    try:
        with _started(argv, grace_s=1.0, env=env, cwd=cwd) as child:
            out, err = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise ProcessFault(
            f"'{argv[0]}' did not answer within {timeout_s:g} s",
            fix=f"run it by hand and see what it waits for: {' '.join(argv)}",
        ) from error
    stdout, stderr = (text.decode("utf-8", "replace") for text in (out, err))
    return Completed(argv, child.returncode, stdout, stderr)


def stream(
    argv: Sequence[str],
    on_line: OnLine,
    *,
    timeout_s: float | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    memory_bytes: int | None = None,
    grace_s: float = GRACE_S,
    tell: Call = None,
) -> Exit:
    """Run a command in a process group of its own and hand on its output line by line.

    The whole group ends with it: after a deadline, on KeyboardInterrupt and when the command leaves
    children behind (TERM, `grace_s`, KILL). `tell` is called in place of the TERM: for a command
    that stands for work elsewhere. Should this process die, the kernel sends the child a TERM.
    `memory_bytes` caps its address space.
    """
    started, parent = time.monotonic(), os.getpid()
    prctl = ctypes.CDLL(None).prctl  # between fork and exec nothing may be looked up

    def set_up() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)
        for number in signals.HANDLED:
            signal.signal(number, signal.SIG_DFL)
        if memory_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))

    own: dict[str, Any] = {"env": env, "cwd": cwd, "preexec_fn": set_up}
    with _started(argv, grace_s=grace_s, group=True, tell=tell, **own) as child:
        timed_out = _pump(child, on_line, timeout_s, grace_s, tell)
        seconds = time.monotonic() - started
    return Exit(child.returncode, seconds, timed_out)


@contextmanager
def watched(run: str) -> Iterator[int]:
    """Have what a run starts in this block removed, as `ae clean` does, should this process die.

    Yields the process id of a watchdog, which is a small shell. It reads from a pipe whose only
    writing end is ours: when that closes without a word, somebody has killed us. Should somebody
    kill it, the run goes on without.
    """
    # The second time for a container that was still in creation.
    script = 'trap "" INT TERM HUP; read -r over && exit; "$@"; sleep 3; exec "$@"'
    argv = ("sh", "-c", script, "sh", sys.executable, "-m", "ae", "clean", "--run", run)
    none = subprocess.DEVNULL
    helper = start(argv, stdin=subprocess.PIPE, stdout=none, stderr=none)
    try:
        yield helper.pid
    finally:
        helper.communicate(b"over\n")


@contextmanager
def _started(
    argv: Sequence[str], *, grace_s: float, group: bool = False, tell: Call = None, **how: Any
) -> Iterator[Child]:
    """A child whose output is read. In the end it has ended, with `group` its whole group."""
    child: Child | None = None
    try:
        with signals.shielded():  # no child without somebody who knows of it
            pipe = subprocess.PIPE
            child = start(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, **how)
        yield child
    finally:
        if child is not None:
            # Also when the leader has gone: it may have left children in its group.
            if group or child.returncode is None:
                stop_group(child.pid, grace_s=grace_s, tell=tell)
            with child:  # waits for it and closes its pipes
                pass


def start(argv: Sequence[str], **how: Any) -> Child:
    """Start a process in a session of its own, so that a Ctrl-C at the terminal reaches only us."""
    try:
        return subprocess.Popen(argv, start_new_session=True, bufsize=0, **how)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        said = "is not there" if missing else f"could not be started: {error.strerror}"
        fix = f"install {argv[0]}, or put it on PATH" if missing else "check its permissions"
        raise ProcessFault(f"the program '{argv[0]}' {said}", fix=fix) from error


def stop_group(pgid: int, *, grace_s: float = GRACE_S, tell: Call = None) -> None:
    """Stop every process of a group: TERM, `grace_s` to clean up, KILL. Gone already is fine."""
    if not _signal_group(pgid, 0 if tell else signal.SIGTERM):
        return
    if tell:
        tell()
    end = time.monotonic() + grace_s
    while time.monotonic() < end:
        if not group_alive(pgid):
            return
        time.sleep(_POLL_S)
    _signal_group(pgid, signal.SIGKILL)


def group_alive(pgid: int) -> bool:
    """Whether a process of the group runs (zombies that nobody has waited for count as gone)."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # After the last ')': state, parent, group. The name before it may hold anything.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[2]) == pgid and fields[0] not in "ZX":
                return True
    return False


def _signal_group(pgid: int, number: int) -> bool:
    try:
        os.killpg(pgid, number)
    except (ProcessLookupError, PermissionError):  # gone; its number may be somebody else's now
        return False
    return True


def _pump(
    child: Child, on_line: OnLine, timeout_s: float | None, grace_s: float, tell: Call
) -> bool:
    """Hand on output until the child has ended; True when it was told to, after its deadline."""
    cutters: dict[Stream, LineCutter] = {"stdout": LineCutter(), "stderr": LineCutter()}
    stop_at = None if timeout_s is None else time.monotonic() + timeout_s
    timed_out, drain_until = False, math.inf
    with selectors.DefaultSelector() as selector:
        for name in cutters:
            selector.register(getattr(child, name), selectors.EVENT_READ, name)
        while selector.get_map() or child.poll() is None:
            now = time.monotonic()
            if child.poll() is not None:
                # A grandchild may hold the pipes open for ever: read what there is, then stop.
                drain_until = min(drain_until, now + _DRAIN_S)
                if now > drain_until:
                    break
            elif stop_at is not None and now >= stop_at:
                if tell and not timed_out:
                    tell()
                else:
                    _signal_group(child.pid, signal.SIGKILL if timed_out else signal.SIGTERM)
                timed_out, stop_at = True, now + grace_s
            for key, _ in selector.select(0.1 if selector.get_map() else _POLL_S):
                chunk = os.read(key.fd, 65536)
                for line in cutters[key.data].feed(chunk):
                    on_line(key.data, line)
                if not chunk:
                    selector.unregister(key.fileobj)
    for name, cutter in cutters.items():
        for line in cutter.feed(b"", last=True):
            on_line(name, line)
    return timed_out


class LineCutter:
    """Turns chunks of bytes into whole lines without their ends.

    A line ends with `\\n`, `\\r\\n` or `\\r` (so that progress bars stream), or after MAX_LINE
    characters. Bytes that are not UTF-8 become U+FFFD: workloads may print anything.
    """

    def __init__(self) -> None:
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder = io.IncrementalNewlineDecoder(utf8, translate=True)
        self._rest = ""

    def feed(self, chunk: bytes, *, last: bool = False) -> list[str]:
        """Return the lines that are complete now; with the last chunk also what is left."""
        text = self._rest + self._decoder.decode(chunk, last).replace("\0", "\ufffd")
        *whole, rest = text.split("\n")
        while len(rest) > MAX_LINE:
            whole.append(rest[:MAX_LINE])
            rest = rest[MAX_LINE:]
        self._rest = rest
        return [*whole, rest] if last and rest else whole

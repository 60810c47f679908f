"""Starts the target with the collector in it, and stays out of its way: signals, exit code, output.

The environment that the injection library reads is made here; docs/accel-trace.md lists it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from accel_trace.builds import LIBRARY, PATCHES, SANITIZER, BuildError
from accel_trace.cpu import watch
from accel_trace.tools.base import Needs

NOT_FOUND = 127
NOT_EXECUTABLE = 126
SITE = Path(__file__).parent / "handlers" / "site"
# What a person may set for the collector beside our own flags; the rest of the names is ours.
_KEPT = {
    f"ACCEL_TRACE_{name}"
    for name in ("BUFFER", "POLICY", "SANITIZER", "CACHE", "BUILT", "MANAGED", "BETWEEN",
                 "ALLOW_OVERSUBSCRIPTION")
}  # fmt: skip
_FORWARDED = {
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
}  # fmt: skip
_SENT_BY_KERNEL = 0x80  # si_code of a key in the terminal, whose whole process group gets it
_OURS = ("trace-*.atl", "trace-*.status", "args-*.jsonl", "notes-*.txt", "run.json", "report.txt",
         "records.jsonl", "values-*.records", "values-*.payload", "values-*.contents",
         "values-*.ends", "code-*.cubin", "cpu-*")  # fmt: skip


class LaunchError(ValueError):
    """A target that must not or cannot be started like this; one sentence."""


@dataclass(frozen=True, kw_only=True)
class Filters:
    """Which launches are analysed: those in all of these. Empty or 1: no limit."""

    launches: str = ""  # "a:b", b not included
    kernels: str = ""  # ECMAScript regex
    region: str = ""
    sample: int = 1  # one launch in so many
    every: int = 0  # one iteration in so many; 0: iterations are not told apart
    distinct: int = 0  # the same, and the others are inferred from it
    within: float = 0  # of `every`, as many as all may take, in times of the others; 0: no matter

    def __post_init__(self) -> None:
        found = re.fullmatch(r"(\d*):(\d*)", self.launches or ":")
        if not found:
            raise LaunchError(f"--range {self.launches}: write FIRST:LAST, two launch numbers")
        first, last = found.groups()
        if first and last and int(first) >= int(last):
            raise LaunchError(f"--range {self.launches}: is empty (LAST is not included)")
        try:
            with warnings.catch_warnings(action="ignore"):  # of what ECMAScript takes otherwise
                re.compile(self.kernels)
        except re.error as error:
            raise LaunchError(
                f"--kernels {self.kernels}: is no regular expression, {error}; write a backslash "
                "before what is meant as it is"
            ) from None
        if self.sample < 1:
            raise LaunchError(f"--sample {self.sample}: is a number of at least 1")
        if min(self.every, self.distinct) < 0 or (self.every and self.distinct):
            raise LaunchError("--every and --distinct: give one of them, a number of at least 1")
        if self.within and (not self.every or not 1.01 <= self.within <= 1e6):
            raise LaunchError("--within: is a number above 1, such as 1.5, beside --every")
        if self.distinct and (self.kernels or self.sample > 1):
            raise LaunchError(
                "--distinct: takes whole iterations, so leave out --kernels and --sample"
            )


@dataclass(frozen=True)
class Outcome:
    """How the target ended: exit code as a shell has it, signal (0 for none), seconds."""

    exit_code: int
    signal: int = 0
    elapsed: float = 0.0
    error: str = ""  # why it could not be started

    @property
    def started(self) -> bool:
        """Whether there was a target at all."""
        return not self.error


def refuse_nesting(environ: Mapping[str, str]) -> None:
    """Raise LaunchError inside another accel-trace, or where another tool is to be injected."""
    pid = environ.get("ACCEL_TRACE_ACTIVE", "")
    if pid.isdigit() and _alive(int(pid)):
        raise LaunchError(
            f"another accel-trace (process {pid}) already watches this program; a process can have "
            "one only, so start the inner one without it"
        )
    other = environ.get("CUDA_INJECTION64_PATH", "")
    if other and Path(other).name != LIBRARY:
        raise LaunchError(
            f"CUDA_INJECTION64_PATH is {other}: another tool is to be injected; unset it, since a "
            "process can have one only"
        )


def environment(
    base: Mapping[str, str], needs: Needs, filters: Filters, out: Path, library: Path
) -> dict[str, str]:
    """Return the target's environment. Mode `none`: that of `base`, with nothing of ours.

    `library` is the folder of the built library. Raises LaunchError for a path that LD_PRELOAD
    cannot hold.
    """
    env = {
        name: value
        for name, value in base.items()
        if not name.startswith("ACCEL_TRACE_") or name in _KEPT
    }
    if needs.mode == "none":
        return env
    beside = library / SANITIZER
    if beside.is_file():  # compiled on another machine, where it has another path
        env.setdefault("ACCEL_TRACE_SANITIZER", str(beside))
    path = str((library / LIBRARY).resolve())
    ours = [path, *_recorder(needs)]
    for name in ours:
        if re.search(r"[\s:]", name):
            raise LaunchError(
                f"{name}: LD_PRELOAD cannot hold a path with a blank or a colon; give --library a "
                "folder without"
            )
    preloaded = [name for name in re.split(r"[\s:]+", env.get("LD_PRELOAD", "")) if name]
    paths = [str(SITE), *filter(None, [env.get("PYTHONPATH", "")])]
    return (
        env
        | dict(needs.environment)
        | _variables(needs, filters)
        | {
            "ACCEL_TRACE_OUT": str(out.resolve()),
            "ACCEL_TRACE_MODE": needs.mode,
            "ACCEL_TRACE_HANDLERS": ",".join(needs.handlers),
            "ACCEL_TRACE_PATCHES": str((library / PATCHES).resolve()),
            "ACCEL_TRACE_ACTIVE": str(os.getpid()),
            "LD_PRELOAD": ":".join([name for name in preloaded if name not in ours] + ours),
            "CUDA_INJECTION64_PATH": path,
            "PYTHONPATH": os.pathsep.join(paths),
        }
    )


def _recorder(needs: Needs) -> list[str]:
    """The recorder of the CPU's accesses, where a tool needs it."""
    if "cpu" not in needs.handlers:
        return []
    try:
        return [str(watch.build().resolve())]
    except BuildError as error:
        raise LaunchError(f"accesses of the CPU cannot be recorded: {error}") from error


def _variables(needs: Needs, filters: Filters) -> dict[str, str]:
    found = {
        "ACCEL_TRACE_CLASSES": ",".join(needs.classes),
        "ACCEL_TRACE_RANGE": filters.launches,
        "ACCEL_TRACE_KERNELS": filters.kernels,
        "ACCEL_TRACE_REGION": filters.region,
        "ACCEL_TRACE_SAMPLE": str(filters.sample) if filters.sample > 1 else "",
        "ACCEL_TRACE_EVERY": str(filters.every or filters.distinct or ""),
        "ACCEL_TRACE_DISTINCT": "1" if filters.distinct else "",
        "ACCEL_TRACE_WITHIN": f"{100 * filters.within:.0f}" if filters.within else "",
    }
    return {name: value for name, value in found.items() if value}


def prepare_folder(path: Path, force: bool) -> None:
    """Make the folder. Raises LaunchError when it holds something, or cannot be made.

    With `force`, what an earlier run of accel-trace left there is removed, and nothing else.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not any(path.iterdir()):
            return
        if not force:
            raise LaunchError(f"{path}: is not empty; name another --out, or add --force")
        for folder in (path, *path.glob("pass-[0-9]*")):
            for pattern in _OURS:
                for file in folder.glob(pattern):
                    file.unlink()
        for folder in path.glob("pass-[0-9]*"):
            if not any(folder.iterdir()):
                folder.rmdir()
    except OSError as error:
        raise LaunchError(f"{path}: {error.strerror or error}; name another --out") from error


def run_target(argv: Sequence[str], env: Mapping[str, str]) -> Outcome:
    """Run the target to its end; its streams and its terminal are ours.

    Signals that somebody sends to us go on to it; those of the terminal reach it by themselves.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED | {signal.SIGCHLD})
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent's SIG_IGN would lose the exit code

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        start = time.monotonic()
        try:
            child = subprocess.Popen(
                list(argv), env=dict(env), close_fds=False,
                preexec_fn=unblock,  # noqa: PLW1509  # there is one thread
            )  # fmt: skip
        except OSError as error:
            return _not_started(argv[0], error)
        code = _wait(child)
        elapsed = time.monotonic() - start
    finally:
        unblock()
    return Outcome(128 - code, -code, elapsed) if code < 0 else Outcome(code, 0, elapsed)


def _wait(child: subprocess.Popen[bytes]) -> int:
    while (code := child.poll()) is None:
        got = signal.sigwaitinfo(_FORWARDED | {signal.SIGCHLD})
        if got.si_signo != signal.SIGCHLD and got.si_code != _SENT_BY_KERNEL:
            child.send_signal(got.si_signo)
    return code


def _not_started(name: str, error: OSError) -> Outcome:
    missing = isinstance(error, FileNotFoundError) and shutil.which(name) is None
    if missing and not Path(name).exists():
        return Outcome(NOT_FOUND, error=f"{name}: there is no such program")
    if isinstance(error, FileNotFoundError):
        return Outcome(NOT_EXECUTABLE, error=f"{name}: its interpreter is missing")
    return Outcome(NOT_EXECUTABLE, error=f"{name}: {error.strerror or error}")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # not ours, but there
        return True
    return True

"""Every failure a person may see: one sentence, how to fix it, and an exit code."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the `ae` command."""

    OK = 0
    CLAIM = 1  # a claim was not met
    USAGE = 2  # or a recipe
    ENVIRONMENT = 3
    WORKLOAD = 4
    FAULT = 70  # in ae itself, as EX_SOFTWARE of sysexits.h
    INTERRUPTED = 130
    BROKEN_PIPE = 141  # nobody reads the output any more, as a program that SIGPIPE ended


class AeError(Exception):
    """A failure with one clear sentence (`message`) and how to put it right (`fix`)."""

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class UsageError(AeError):
    """The command line asks for something that does not exist or does not fit."""


class RecipeError(AeError):
    """A recipe, claims or records file is not what its schema says."""


class EnvironmentFault(AeError):
    """The machine cannot do what was asked: engine, GPU, driver, disk, licence, permissions."""

    exit_code = ExitCode.ENVIRONMENT


class WorkloadError(AeError):
    """The program inside the container failed."""

    exit_code = ExitCode.WORKLOAD


class Interrupted(AeError):
    """Ctrl-C, where there is more to say of it."""

    exit_code = ExitCode.INTERRUPTED


def told(error: BaseException) -> tuple[ExitCode, str, str]:
    """A failure as exit code, sentence and fix."""
    if isinstance(error, AeError):
        return error.exit_code, error.message, error.fix
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED, "interrupted; what had finished is kept", ""
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        said = f"the system refused: {error.strerror or error}{where}"
        fix = "check its permissions and the free disk, or move results (AE_RESULTS) and caches "
        return ExitCode.ENVIRONMENT, said, f"{fix}(XDG_CACHE_HOME)"
    said = f"a fault in ae itself: {type(error).__name__}: {error}".splitlines()[0]
    return ExitCode.FAULT, said, "report it with its traceback, which --debug prints"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint naming the nearest known word, else all: of many the last, as runs by date."""
    names = sorted(known)
    if close := get_close_matches(word, names, n=1, cutoff=0.5):
        return f"did you mean '{close[0]}'?"
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"known: {', '.join(names[-20:])}{more}" if names else "there is none"

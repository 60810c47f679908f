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


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint naming the nearest known word, else all of them."""
    names = sorted(known)
    close = get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known: {', '.join(names)}" if names else "there is none"

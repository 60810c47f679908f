"""How a workload ends before its time: each error is one sentence and knows its exit code."""

from __future__ import annotations

from reprokit.skip import EXIT_CODE


class Failure(Exception):
    """A run failed. The message is one sentence, with a fix where there is one."""

    exit_code = 1


class ConfigError(Failure, ValueError):
    """The command line or a file that it names is wrong."""

    exit_code = 2


class Lacking(Failure):
    """This machine or image cannot run it."""

    exit_code = EXIT_CODE

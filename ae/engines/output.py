"""Output and end of a job: exit codes in the words of the run, the same for every engine."""

from __future__ import annotations

import signal
from typing import Literal

from ae.engines.base import SKIP_EXIT_CODE, Sink
from ae.model import Status
from ae.units import format_seconds

_SIGNALS = {one.value: one.name for one in signal.Signals}


def classify(  # noqa: PLR0911 one line per way to end
    exit_code: int, *, oom: bool, timed_out: bool, timeout_s: float, last_words: str
) -> tuple[Status, str]:
    """Return the status and, unless it is `done`, the reason in one sentence.

    `exit_code` is as a shell says it (128 + n: ended by signal n); `last_words` is the last line
    that the job wrote to standard error.
    """
    if timed_out:
        return Status.TIMEOUT, f"stopped: it ran longer than its {format_seconds(timeout_s)}"
    if exit_code == 0:
        return Status.DONE, ""
    if oom:
        return Status.OOM, "killed by the system: it needed more memory than it may use"
    if exit_code == SKIP_EXIT_CODE:
        return Status.SKIPPED, last_words or "the workload gave no reason"
    if exit_code in (126, 127):
        return Status.FAILED, last_words or f"its program could not be started ({exit_code})"
    if name := _SIGNALS.get(exit_code - 128):
        tail = f"; its last words: {last_words}" if last_words else ""
        return Status.FAILED, f"ended by {name}{tail}"
    return Status.FAILED, f"exit code {exit_code}" + (f": {last_words}" if last_words else "")


class LastWords:
    """A sink that passes lines on and remembers the last line of standard error."""

    def __init__(self, forward: Sink) -> None:
        self._forward = forward
        self.last = ""  # that is not blank; at most 500 characters

    def line(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        """Pass a line on."""
        if stream == "stderr" and text.strip():
            self.last = text.strip()[:500]
        self._forward.line(stream, text)


class Kept(list[str]):
    """A sink that keeps the lines of standard output."""

    def line(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        if stream == "stdout":
            self.append(text)

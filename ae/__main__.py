"""Entry point: the one place that maps exceptions to exit codes."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import sys
import traceback
from io import TextIOWrapper
from typing import NoReturn

from ae.errors import ExitCode, told


def main() -> NoReturn:
    """Run the `ae` command and exit with its code."""
    gc.set_threshold(100_000)  # a short program: most of what it collects are imported modules
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # it asks every installed package
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that knows few characters
    code = guarded(sys.argv[1:])
    with contextlib.suppress(OSError, ValueError):  # a reader that has gone away
        sys.stderr.flush()
    os._exit(code)  # all has been closed; taking the modules apart would only take time


def guarded(argv: list[str]) -> int:
    """Run the command line `argv`; every failure becomes one sentence, its fix and an exit code."""
    try:
        from ae.cli import run_command  # here, so that a broken installation is told too

        code = run_command([word for word in argv if word != "--debug"])
        print(end="", flush=True)  # what is buffered may meet a closed pipe: find out in time
        return code
    except (Exception, KeyboardInterrupt, SystemExit) as ending:  # noqa: BLE001 the last of all
        # Typer makes a SystemExit of a broken pipe.
        error = ending.__context__ or ending if isinstance(ending, SystemExit) else ending
        if isinstance(error, BrokenPipeError) and _unread():
            return int(ExitCode.BROKEN_PIPE)
        if "--debug" in argv:
            traceback.print_exception(error)
        code, message, fix = told(error)
        said = message if code == ExitCode.INTERRUPTED else f"error: {message}"
        print(said, *([f"  fix: {fix}"] if fix else []), sep="\n", file=sys.stderr)
        return int(code)


def _unread() -> bool:
    """Whether the reader of our output has gone (`ae list | head`)."""
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


if __name__ == "__main__":
    main()

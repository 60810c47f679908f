"""Entry point: the one place that maps exceptions to exit codes."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import traceback
from io import TextIOWrapper
from typing import NoReturn

from ae.errors import AeError, ExitCode


def main() -> NoReturn:
    """Run the `ae` command and exit with its code."""
    gc.set_threshold(100_000)  # a short program: most of what it collects are imported modules
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that knows few characters
    code = guarded(sys.argv[1:])
    with contextlib.suppress(OSError, ValueError):  # a reader that has gone away
        sys.stderr.flush()
    os._exit(code)  # all has been closed; taking the modules apart would only take time


def guarded(argv: list[str]) -> int:
    """Run the command line `argv`; every failure becomes one sentence, its fix and an exit code."""
    debug = "--debug" in argv
    try:
        return _run([word for word in argv if word != "--debug"])
    except (BrokenPipeError, SystemExit):  # the latter is what typer makes of the former
        return int(ExitCode.BROKEN_PIPE)  # the reader of our output has gone (`ae list | head`)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 the last handler of all
        if debug:
            traceback.print_exc()
        code, message, fix = _told(error)
        print(message, *([f"  fix: {fix}"] if fix else []), sep="\n", file=sys.stderr)
        return int(code)


def _run(argv: list[str]) -> int:
    from ae.cli import run_command  # here, so that Ctrl-C and a broken installation are told too

    code = run_command(argv)
    print(end="", flush=True)  # what is buffered may meet a closed pipe: find out in time
    return code


def _told(error: BaseException) -> tuple[ExitCode, str, str]:
    """A failure as exit code, sentence and fix."""
    if isinstance(error, AeError):
        return error.exit_code, f"error: {error.message}", error.fix
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED, "interrupted; what had finished is kept", ""
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        said = f"error: the system refused: {error.strerror or error}{where}"
        return ExitCode.ENVIRONMENT, said, "check the path, its permissions and the free disk"
    said = f"error: a fault in ae itself: {type(error).__name__}: {error}".splitlines()[0]
    return ExitCode.FAULT, said, f"report it with {_kept(error)}; --debug prints the traceback"


def _kept(error: BaseException) -> str:
    """Write the traceback to a file; where it is, in words."""
    text = f"ae {' '.join(sys.argv[1:])}\nPython {sys.version}\n\n"
    text += "".join(traceback.format_exception(error))
    try:
        from ae.host.files import write_atomic
        from ae.host.machine import cache_dir

        path = cache_dir() / "fault.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    except OSError:
        return "its traceback"
    return f"its traceback, kept in {path}"


if __name__ == "__main__":
    main()

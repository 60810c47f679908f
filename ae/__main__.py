"""Entry point: the one place that maps exceptions to exit codes."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import traceback
from typing import NoReturn

from ae.errors import AeError, ExitCode


def main() -> NoReturn:
    """Run the `ae` command and exit with its code."""
    gc.set_threshold(100_000)  # a short program: most of what it collects are imported modules
    code = guarded(sys.argv[1:])
    with contextlib.suppress(OSError, ValueError):  # a reader that has gone away
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # all has been closed; taking the modules apart would only take time


def guarded(argv: list[str]) -> int:
    """Run the command line `argv`; every failure becomes one sentence, its fix and an exit code."""
    debug = "--debug" in argv
    argv = [word for word in argv if word != "--debug"]
    try:
        from ae.cli import run_command

        return run_command(argv)
    except AeError as error:
        if debug:
            traceback.print_exc()
        print(f"error: {error.message}", file=sys.stderr)
        if error.fix:
            print(f"  fix: {error.fix}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        if debug:
            traceback.print_exc()
        print("interrupted; what had finished is kept", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone (`ae list | head`)
        return int(ExitCode.OK)
    except OSError as error:
        if debug:
            traceback.print_exc()
        where = f" ({error.filename})" if error.filename else ""
        print(f"error: the system refused: {error.strerror}{where}", file=sys.stderr)
        print("  fix: check the path, its permissions and the free disk", file=sys.stderr)
        return int(ExitCode.ENVIRONMENT)


if __name__ == "__main__":
    main()

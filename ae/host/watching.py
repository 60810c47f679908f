"""A watchdog process: when the launcher dies, it stops what the launcher had running.

The launcher holds the only writing end of a pipe and tells the watchdog what it starts:
`container`, its name and the words of the client to remove it with, `group` and its id, `done` and
a name or id, with tabs between. When the pipe closes, for whatever reason, the watchdog removes
what is not done, and ends. It imports little, because every run starts one, and nothing of `ae`,
because it runs as a plain script.
"""

from __future__ import annotations

import os
import signal
import sys
import time

GRACE_S = 5.0
# A container may still be in creation when its launcher dies: look again for this long.
APPEAR_S = 3.0


def watch() -> None:
    """The watchdog itself: read until the pipe closes, then stop what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")  # keep no folder busy
    held: dict[str, list[str]] = {}  # what to stop -> the client of a container
    for line in sys.stdin:
        kind, name, *client = line.rstrip("\n").split("\t")
        held.pop(name, None)
        if kind != "done":
            held[name] = client
    for name, client in held.items():
        if client:
            _remove(client, name)
        else:
            _stop_group(int(name))


def _stop_group(pgid: int) -> None:
    try:
        os.killpg(pgid, signal.SIGTERM)
        end = time.monotonic() + GRACE_S
        while time.monotonic() < end:
            os.killpg(pgid, 0)  # raises when all have gone
            time.sleep(0.05)
        os.killpg(pgid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _remove(client: list[str], name: str) -> None:
    end = time.monotonic() + APPEAR_S
    while time.monotonic() < end:
        # `rm --force` would take a missing one for success.
        if not _call(client, "container", "inspect", name) and not _call(
            client, "rm", "--force", "--volumes", name
        ):
            return
        time.sleep(0.2)


def _call(client: list[str], *arguments: str) -> int:
    """Run a client to its end, without a word, and return its exit code."""
    pid = os.posix_spawnp(client[0], [*client, *arguments], os.environ)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    watch()

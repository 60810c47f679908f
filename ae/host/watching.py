"""A watchdog process: when the launcher dies, it stops what the launcher had running.

The launcher holds the only writing end of a pipe and tells the watchdog what it starts:
`container <endpoint> <name>`, `group <pgid>`, `done <name>`. An endpoint is a daemon's socket, or
`podman:<program>`. When the pipe closes, for whatever reason, the watchdog removes what is not
done, and ends. It imports little, because every run starts one, and nothing of `ae`, because it
runs as a plain script.
"""

from __future__ import annotations

import _socket  # the part of `socket` that loads at once
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
    held: dict[str, tuple[str, str]] = {}  # what to stop -> its kind and endpoint
    for line in sys.stdin:
        kind, _, rest = line.rstrip("\n").partition(" ")
        endpoint, _, name = rest.rpartition(" ")  # a socket's path may hold blanks
        if kind in ("container", "group"):
            held[name] = (kind, endpoint)
        elif kind == "done":
            held.pop(name, None)
    for name, (kind, endpoint) in held.items():
        if kind == "group":
            _stop_group(int(name))
        else:
            _remove(endpoint, name)


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


def _remove(endpoint: str, name: str) -> None:
    end = time.monotonic() + APPEAR_S
    removed = False
    while not removed and time.monotonic() < end:
        try:
            if endpoint.startswith("podman:"):
                removed = _remove_from_podman(endpoint.removeprefix("podman:"), name)
            else:
                removed = _delete(endpoint.removeprefix("unix://"), name)
        except OSError:
            pass  # the daemon is being restarted, or gone
        if not removed:
            time.sleep(0.2)


def _delete(path: str, name: str) -> bool:
    """Ask the daemon to remove a container; False when there is none of that name."""
    connection = _socket.socket(_socket.AF_UNIX)
    try:
        connection.settimeout(60)
        connection.connect(path)
        target = f"/containers/{name}?force=1&v=1"
        connection.sendall(f"DELETE {target} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
        status = connection.recv(4096).split()
    finally:
        connection.close()
    # 409: on its way out
    return len(status) > 1 and status[1] in (b"200", b"204", b"409")


def _remove_from_podman(program: str, name: str) -> bool:
    """Have podman kill and remove a container; False when there is none of that name."""
    if _call(program, "container", "exists", name) != 0:
        return False  # `rm --force` would take a missing one for success
    return _call(program, "rm", "--force", "--volumes", name) == 0


def _call(program: str, *arguments: str) -> int:
    """Run a program to its end, without a word, and return its exit code."""
    pid = os.posix_spawnp(program, [program, *arguments], os.environ)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    watch()

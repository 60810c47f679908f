"""Connections to a Docker daemon behind ssh.

Each is an `ssh` program of its own that runs `docker system dial-stdio` on the other machine: what
Docker's own client does, with the keys, hosts and jumps of the person's ssh configuration. Nothing
is copied here: our end is a socket whose other end is the program's input and output.
"""

from __future__ import annotations

import itertools
import os
import socket
import stat
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ae.errors import EnvironmentFault
from ae.host import processes

if TYPE_CHECKING:
    import subprocess

_CONNECT_S = 30
_ALIVE_S = 15  # a link that is silent three times as long is dead
_LONGEST_PATH = 80  # bytes; ssh adds some, and a socket's path has at most 107
_LAST_WORDS = 2000  # bytes of what ssh said


def ssh_argv(endpoint: str, *remote: str, options: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The command that runs `remote` where an endpoint `ssh://[user@]host[:port]` points.

    `options` are further ones of ssh. It never asks for anything: there is nobody at its terminal.
    Raises EnvironmentFault for an endpoint that names no host.
    """
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _unreadable(endpoint) from error
    if not host or host.startswith("-") or (parts.username or "").startswith("-"):
        raise _unreadable(endpoint)
    words = ["ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}"]
    words += ["-o", f"ServerAliveInterval={_ALIVE_S}"]
    words += ["-l", parts.username] if parts.username else []
    words += ["-p", str(port)] if port else []
    return (*words, *options, "--", host, *remote)


def dial_argv(endpoint: str, options: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The command whose standard input and output are a connection to the daemon."""
    path = urlsplit(endpoint).path
    where = ("--host", f"unix://{path}") if path not in ("", "/") else ()
    return ssh_argv(endpoint, "docker", *where, "system", "dial-stdio", options=options)


class Tunnel:
    """Makes connections to the daemon at an ssh endpoint, and ends them."""

    _numbers = itertools.count()

    def __init__(self, endpoint: str) -> None:
        self._fault: EnvironmentFault | None = None
        self._argv = dial_argv(endpoint)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 closed with the tunnel
        self._children: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._login: subprocess.Popen[bytes] | None = None
        place = _socket_folder() / f"{os.getpid()}-{next(self._numbers)}"
        if len(os.fsencode(place)) <= _LONGEST_PATH:
            self._share_login(endpoint, place)

    def dial(self) -> socket.socket:
        """Return a new connection. What goes wrong is seen as its end, and in `last_words`."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                child = processes.start_connected(self._argv, theirs, self._said)
            except EnvironmentFault as fault:
                self._fault = fault
                return ours
            # Those that have ended are taken off the process table here.
            self._children = [one for one in self._children if one.poll() is None] + [child]
        return ours

    def last_words(self) -> str:
        """The last line that ssh wrote, or why it could not be started; empty: nothing."""
        if self._fault is not None:
            return self._fault.message
        # pread: the ssh programs write through the same open file, and its position is theirs.
        size = os.fstat(self._said.fileno()).st_size
        start = max(0, size - _LAST_WORDS)
        text = os.pread(self._said.fileno(), _LAST_WORDS, start).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else ""

    def close(self) -> None:
        """End every connection."""
        if self._login is not None and self._login.stdin is not None:
            self._login.stdin.close()
        for child in [*self._children, *([self._login] if self._login else [])]:
            if child.poll() is None:
                processes.stop_group(child.pid, grace_s=1.0, reap=child.poll)
            child.wait()
        self._said.close()

    def _share_login(self, endpoint: str, place: Path) -> None:
        """Let one login serve all connections, as soon as it is there.

        It lasts as long as `cat` has its input from us, so it ends with this process, however that
        ends, and takes its socket along.
        """
        shared = ("-S", str(place))
        login = ssh_argv(endpoint, "cat", options=("-o", "ControlMaster=yes", *shared))
        try:
            self._login = processes.start_helper(login)
        except EnvironmentFault as fault:  # no ssh: said when the first connection is made
            self._fault = fault
        self._argv = dial_argv(endpoint, ("-o", "ControlMaster=no", *shared))


def _socket_folder() -> Path:
    """A folder that only this user can enter, for the sockets of logins.

    Raises EnvironmentFault when somebody else has made it.
    """
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or "")
    if not folder.is_absolute() or not os.access(folder, os.W_OK):
        folder = Path(tempfile.gettempdir()) / f"ae-ssh-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise EnvironmentFault(
            f"{folder} is not a folder of yours alone, so no ssh socket is put there",
            fix=f"remove it, or: chmod 700 {folder}",
        )
    return folder


def _unreadable(endpoint: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"{endpoint} is not an address that ssh can connect to",
        fix="write it as ssh://user@host or ssh://user@host:port",
    )

"""A Docker daemon behind ssh, as a socket on this machine.

Whoever connects to the socket talks, through an `ssh` program of its own, to `docker system
dial-stdio` on the other machine: what Docker's own client does, with the keys, hosts and jumps of
the person's ssh configuration. Nothing is copied here: ssh gets the connection itself.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ae import processes
from ae.errors import EnvironmentFault

if TYPE_CHECKING:
    import subprocess

_CONNECT_S = 30
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
    words += ["-l", parts.username] if parts.username else []
    words += ["-p", str(port)] if port else []
    return (*words, *options, "--", host, *remote)


def dial_argv(endpoint: str, options: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The command whose standard input and output are a connection to the daemon."""
    path = urlsplit(endpoint).path
    where = ("--host", f"unix://{path}") if path not in ("", "/") else ()
    return ssh_argv(endpoint, "docker", *where, "system", "dial-stdio", options=options)


class Tunnel:
    """A socket in a private folder that leads to the daemon at an ssh endpoint."""

    def __init__(self, endpoint: str) -> None:
        self._fault: EnvironmentFault | None = None
        dial_argv(endpoint)  # raises for an address that is none, before anything is made
        self._folder = Path(tempfile.mkdtemp(prefix="ae-ssh-"))  # mode 0700
        # One login serves all connections, as soon as it is there. It lasts as long as `cat` has
        # its input from us, so it ends with this process, however that ends.
        shared = ("-S", str(self._folder / "login"))
        self._argv = dial_argv(endpoint, ("-o", "ControlMaster=no", *shared))
        login = ssh_argv(endpoint, "cat", options=("-o", "ControlMaster=yes", *shared))
        self._login = self._start_login(login)
        self._said = (self._folder / "ssh.log").open("w+b")
        self._children: list[subprocess.Popen[bytes]] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self._folder / "docker.sock"))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where a client on this machine connects to."""
        return f"unix://{self._folder / 'docker.sock'}"

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
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread up
        self._socket.close()
        self._thread.join(5)
        if self._login is not None and self._login.stdin is not None:
            self._login.stdin.close()
        for child in [*self._children, *([self._login] if self._login else [])]:
            if child.poll() is None:
                processes.stop_group(child.pid, grace_s=1.0, reap=child.poll)
            child.wait()
        self._said.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start_login(self, argv: tuple[str, ...]) -> subprocess.Popen[bytes] | None:
        try:
            return processes.start_helper(argv)
        except EnvironmentFault as fault:  # no ssh: said when the first connection is made
            self._fault = fault
            return None

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # closed
            with connection:
                try:
                    child = processes.start_connected(self._argv, connection, self._said)
                except EnvironmentFault as fault:
                    self._fault = fault
                    continue
            # Those that have ended are taken off the process table here.
            self._children = [one for one in self._children if one.poll() is None] + [child]


def _unreadable(endpoint: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"{endpoint} is not an address that ssh can connect to",
        fix="write it as ssh://user@host or ssh://user@host:port",
    )

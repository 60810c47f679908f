"""A real registry (Debian's docker-registry) on loopback, and a cable to it that can be cut."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

# User `ae`, password `not-a-secret`; bcrypt is the only form that the registry takes.
HTPASSWD = "ae:$2b$05$q/wiVZNtaOoI6jMJ0bLbSOHE637HF9/mA6fY9v2UV2w.n42r5wTpe\n"
PASSWORD = "not-a-secret"


@dataclass(frozen=True)
class Registry:
    """A registry that runs; its blobs lie below `folder`."""

    port: int
    folder: Path

    @property
    def name(self) -> str:
        """What AE_REGISTRY is set to."""
        return f"127.0.0.1:{self.port}/ae"

    def blobs(self) -> list[Path]:
        """The files of all blobs, largest first."""
        found = self.folder.glob("docker/registry/v2/blobs/sha256/*/*/data")
        return sorted(found, key=lambda path: -path.stat().st_size)


@contextmanager
def registry(folder: Path, *, password: bool = False) -> Iterator[Registry]:
    """Start a registry that keeps its images in `folder`. In CI a missing program is a failure."""
    program = shutil.which("docker-registry")
    if program is None:
        from tests.conftest import IN_CI

        (pytest.fail if IN_CI else pytest.skip)("docker-registry is not installed")
    port = free_port()
    config: dict[str, object] = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder)}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    folder.mkdir(parents=True, exist_ok=True)
    if password:
        (folder / "htpasswd").write_text(HTPASSWD)
        config["auth"] = {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}
    (folder / "config.yml").write_text(json.dumps(config))
    argv = [program, "serve", str(folder / "config.yml")]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(port)
            yield Registry(port, folder)
        finally:
            process.terminate()


class Cable:
    """A TCP proxy to a port that breaks every connection after `limit` bytes of answer.

    `silent`: it keeps the connection instead, and passes nothing on.
    """

    def __init__(self, target: int, limit: int | None = None, *, silent: bool = False) -> None:
        self.limit = limit  # None: whole; may be changed at any time
        self.broken = 0  # connections cut so far
        self._silent = silent
        self._closed = threading.Event()
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._closed.set()
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with suppress(OSError), near, socket.create_connection(("127.0.0.1", self._target)) as far:
            asking = threading.Thread(target=self._copy, args=(near, far, False), daemon=True)
            asking.start()
            self._copy(far, near, True)
            asking.join()

    def _copy(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(65536):
                passed += len(data)
                if answers and self.limit is not None and passed > self.limit:
                    self.broken += 1
                    if self._silent:
                        self._closed.wait()
                    break
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextmanager
def answering(status: int, error: str = "") -> Iterator[str]:
    """A registry that answers every question with a status; yields what AE_REGISTRY is set to."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"errors": [{"code": error, "message": "no"}]} if error else {})
            whole = self.path == "/v2/"  # that it is a registry, it says
            self.send_response(200 if whole else status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "0" if self.command == "HEAD" else str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body.encode())

        do_HEAD = do_GET

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}/ae"
        finally:
            server.shutdown()


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_for(port: int, seconds: float = 10) -> None:
    """Wait until somebody listens on a port of loopback."""
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < end, f"nobody listens on port {port}"
            time.sleep(0.05)

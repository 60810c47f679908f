"""A private Docker daemon for tests that break one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from ae.daemon.connection import connect
from ae.errors import EnvironmentFault

PROGRAM = Path("/usr/sbin/dockerd")


@contextmanager
def daemon(
    config: Mapping[str, object] | None = None, *, disk_mb: int | None = None
) -> Iterator[str]:
    """Start a daemon without a bridge and yield its endpoint.

    `disk_mb`: it keeps everything in a file system in memory of that size. Needs root.
    """
    if os.geteuid() != 0 or not PROGRAM.exists() or shutil.which("docker") is None:
        from tests.conftest import IN_CI

        why = "a daemon of our own needs root, dockerd and docker"
        (pytest.fail if IN_CI else pytest.skip)(why)
    # A short path: a socket's may have 104 characters.
    with tempfile.TemporaryDirectory(prefix="aed-", dir="/tmp") as name:
        folder = Path(name)
        for part in ("data", "exec"):
            (folder / part).mkdir()
        if disk_mb is not None:
            size = f"size={disk_mb}m"
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder / "data"], check=True
            )
        settings = {"bridge": "none", "iptables": False, "ip6tables": False, **(config or {})}
        (folder / "daemon.json").write_text(json.dumps(settings))
        endpoint = f"unix://{folder}/d.sock"
        argv = [str(PROGRAM), "--config-file", str(folder / "daemon.json"), "--host", endpoint]
        argv += ["--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")]
        argv += ["--pidfile", str(folder / "pid")]
        beside = f"{os.environ.get('PATH', '')}:{PROGRAM.parent}"  # what it calls lies there, too
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                argv, stdout=log, stderr=log, start_new_session=True,
                env=os.environ | {"PATH": beside},
            )  # fmt: skip
        try:
            _wait(process, endpoint, folder / "log")
            yield endpoint
        finally:
            process.terminate()
            process.wait()
            for _ in range(2):  # its own mount of the folder, then ours
                if os.path.ismount(folder / "data"):
                    # Lazily: the containerd of a daemon that was killed may still be ending.
                    subprocess.run(["umount", "--lazy", folder / "data"], check=True)


def _wait(process: subprocess.Popen[bytes], endpoint: str, log: Path) -> None:
    for _ in range(300):
        assert process.poll() is None, log.read_text()
        try:
            connect(endpoint).close()
            return
        except EnvironmentFault:
            time.sleep(0.1)
    pytest.fail(f"the daemon did not answer: {log.read_text()[-2000:]}")

"""A Docker daemon of the tests' own, which they may stop and kill. Needs root."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

DOCKER = "/usr/bin/docker"


class OwnDaemon:
    """One daemon, reached at the socket `endpoint`, without a network."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="ae-own-", dir="/tmp"))  # short: sockets
        self.endpoint = f"unix://{self.home}/docker.sock"
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the daemon and wait until it answers."""
        words = ["/usr/sbin/dockerd", "--data-root", str(self.home / "data")]
        words += ["--exec-root", str(self.home / "exec"), "-p", str(self.home / "pid")]
        words += ["--bridge", "none", "--iptables=false", "-H", self.endpoint]
        (self.home / "pid").unlink(missing_ok=True)
        with (self.home / "dockerd.log").open("ab") as log:
            self._daemon = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + 30
        while self.docker("version", check=False).returncode != 0:
            if time.monotonic() > end or self._daemon.poll() is not None:
                raise RuntimeError((self.home / "dockerd.log").read_text()[-2000:])
            time.sleep(0.1)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop the daemon; KILL leaves its containers running, as a crash does."""
        if self._daemon is not None and self._daemon.poll() is None:
            self._daemon.send_signal(number)
            self._daemon.wait(60)

    def take_image(self, source: str, image: str) -> None:
        """Copy an image from another daemon."""
        saver = subprocess.Popen([DOCKER, "-H", source, "save", image], stdout=subprocess.PIPE)
        argv = [DOCKER, "-H", self.endpoint, "load", "--quiet"]
        subprocess.run(argv, stdin=saver.stdout, check=True, capture_output=True, timeout=60)
        assert saver.stdout is not None
        saver.stdout.close()
        assert saver.wait(60) == 0

    def docker(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Ask the daemon directly."""
        argv = [DOCKER, "-H", self.endpoint, *words]
        return subprocess.run(argv, capture_output=True, text=True, check=check)

    def close(self) -> None:
        """Stop all of it and take its files away."""
        if self._daemon is not None and self._daemon.poll() is None:
            left = self.docker("ps", "-aq", check=False).stdout.split()
            if left:
                self.docker("rm", "-f", *left, check=False)
        self.stop()
        # A daemon that was killed has left its folder mounted on itself.
        subprocess.run(["umount", "--lazy", self.home / "data"], capture_output=True, check=False)
        shutil.rmtree(self.home, ignore_errors=True)

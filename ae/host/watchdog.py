"""The launcher's end of the watchdog: it is told what runs, and stops it when the launcher dies."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager, suppress

from ae.host import processes, watching


class Reaper(AbstractContextManager["Reaper"]):
    """The launcher's end of the pipe. Use as a context manager."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @staticmethod
    def start() -> Reaper:
        """Start the watchdog; does not wait for it."""
        # Isolated and without site-packages: it starts in a few milliseconds.
        return Reaper(processes.start_helper([sys.executable, "-I", "-S", watching.__file__]))

    @property
    def pid(self) -> int:
        """The watchdog's process id."""
        return self._process.pid

    def watch_container(self, container: str, *client: str) -> None:
        """Have a container removed should the launcher die. Say so before it is created."""
        self._tell("\t".join(("container", container, *client)))

    def watch_group(self, pgid: int) -> None:
        """Have a process group stopped should the launcher die."""
        self._tell(f"group\t{pgid}")

    def done(self, name: str | int) -> None:
        """Forget a container or a group: it has ended and is removed."""
        self._tell(f"done\t{name}")

    def close(self) -> None:
        """End the watchdog; what is not done is stopped now."""
        assert self._process.stdin is not None
        if not self._process.stdin.closed:
            self._process.stdin.close()
            self._process.wait()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # somebody killed the watchdog: the run goes on without
            self._process.stdin.write(line.encode() + b"\n")

"""A private MPS daemon: started, seen to serve, and stopped (docs/papers/rap.md, 5.3).

Its pipe and log folders are its own, so no other program meets it, and the compute mode of the GPU
stays as it is. A program that does not reach the daemon would run without it and say nothing:
that is why clients are counted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_CONTROL = "nvidia-cuda-mps-control"
_DRIVER_FOLDERS = ("/usr/local/nvidia/bin", "/usr/bin")
_SECONDS = 20
PIPE = "CUDA_MPS_PIPE_DIRECTORY"
LOG = "CUDA_MPS_LOG_DIRECTORY"
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


class MpsError(RuntimeError):
    """The daemon is missing, does not start or has died, in one sentence with a fix."""


class Mps:
    """The daemon as a context. `environment` is what its clients need."""

    def __init__(self) -> None:
        """Raises MpsError where the driver has no such daemon."""
        self._tool = control_program()
        # A socket's path is short, however deep the folder of temporary files is.
        self._home = Path(tempfile.mkdtemp(prefix="mps-", dir="/tmp"))

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the daemon and of its clients."""
        return {PIPE: str(self._home / "pipe"), LOG: str(self._home / "log")}

    def __enter__(self) -> Mps:
        for name in ("pipe", "log"):
            (self._home / name).mkdir()
        try:
            done = subprocess.run(
                [self._tool, "-d"], env=self._environment(), check=False, capture_output=True,
                text=True, timeout=_SECONDS,
            )  # fmt: skip
            said = " ".join((done.stderr or done.stdout).split()) if done.returncode else None
        except subprocess.TimeoutExpired:
            said = f"no answer within {_SECONDS} s"
        except OSError as error:
            said = str(error)
        if said is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            raise MpsError(
                f"the MPS daemon did not start: {said or 'it gave no reason'}; "
                "fix: choose variants without MPS, or a host whose driver allows it"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        with suppress(MpsError):  # already gone
            self.ask("quit")
        end = time.monotonic() + _SECONDS
        while self._alive() and time.monotonic() < end:
            time.sleep(0.1)
        shutil.rmtree(self._home, ignore_errors=True)

    def servers(self) -> list[str]:
        """Process ids of the daemon's servers: one a user, once a client has registered."""
        return self.ask("get_server_list").split()

    def clients(self) -> list[str]:
        """Process ids of all registered clients."""
        return [
            c for server in self.servers() for c in self.ask(f"get_client_list {server}").split()
        ]

    def ask(self, words: str) -> str:
        """The answer of the control program. Raises MpsError if the daemon does not answer."""
        try:
            done = subprocess.run(
                [self._tool], input=words + "\n", env=self._environment(), check=False,
                capture_output=True, text=True, timeout=_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise MpsError("the MPS daemon does not answer; fix: run again") from None
        if done.returncode or "Cannot find MPS control daemon" in done.stdout + done.stderr:
            raise MpsError(
                "the MPS daemon has died; fix: run again, and see whether the driver allows MPS"
            )
        return done.stdout

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.environment}

    def _alive(self) -> bool:
        try:
            self.ask("get_default_active_thread_percentage")
        except MpsError:
            return False
        return True


def control_program() -> str:
    """The daemon's program. Raises MpsError if the driver at hand has none."""
    found = shutil.which(_CONTROL)
    for folder in _DRIVER_FOLDERS if found is None else ():
        if os.access(f"{folder}/{_CONTROL}", os.X_OK):
            found = f"{folder}/{_CONTROL}"
    if found is None:
        raise MpsError(
            f"{_CONTROL} was not found, so nothing can run under MPS; "
            "fix: give the container the driver's tools (capability utility), "
            "or choose variants without MPS"
        )
    return found


def assert_absent(environment: Mapping[str, str]) -> None:
    """Raise MpsError if programs started with `environment` would run under a daemon."""
    place = Path(environment.get(PIPE, "/tmp/nvidia-mps"))
    if (place / "control").exists():
        raise MpsError(
            f"an MPS daemon is reachable in {place}, so variants without MPS would run under it; "
            f"fix: stop it, or set {PIPE} to another folder"
        )

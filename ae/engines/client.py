"""The client of an engine, docker or podman: both take the same words."""

from __future__ import annotations

import json
import math
import os
import re
import threading
from contextlib import suppress
from typing import Any, Literal

from ae.daemon.faults import refused
from ae.engines.base import Sink
from ae.errors import EnvironmentFault
from ae.host import processes

CONTROL_TIMEOUT_S = 60  # an answer that late means that it hangs


class Client:
    """The program on PATH that has the engine's name."""

    name: str

    def call(self, *words: str, timeout_s: float = CONTROL_TIMEOUT_S) -> processes.Completed:
        """Run the client to its end; any exit code is a result."""
        env = self._environment()
        return processes.run([self.name, *words], timeout_s=timeout_s, env=env)

    def do(self, *words: str, timeout_s: float = CONTROL_TIMEOUT_S) -> str:
        """Run the client and return what it printed. Raises EnvironmentFault."""
        done = self.call(*words, timeout_s=timeout_s)
        if done.returncode != 0:
            raise refused(self.name, done.stderr)
        return done.stdout

    def inspect(self, kind: Literal["image", "container"], name: str) -> dict[str, Any] | None:
        """What the engine says of an image or a container; None: there is none of that name."""
        done = self.call(kind, "inspect", name)
        if done.returncode == 0:
            found: dict[str, Any] = json.loads(done.stdout)[0]
            return found | {"Id": f"sha256:{found['Id'].removeprefix('sha256:')}"}
        if re.search("no such|not known", done.stderr.lower()):
            return None
        raise refused(self.name, done.stderr)

    def pull(self, reference: str, sink: Sink, *options: str) -> None:
        """Fetch an image from its registry. Raises EnvironmentFault when that fails."""
        said: list[str] = []

        def on_line(stream: Literal["stdout", "stderr"], text: str) -> None:
            said.append(text)
            sink.line("stdout", text)  # podman writes its progress to standard error

        argv = [self.name, "pull", *options, reference]
        if processes.stream(argv, on_line, env=self._environment()).returncode != 0:
            fault = refused(self.name, "\n".join(said))
            raise EnvironmentFault(f"pulling {reference} failed: {fault.message}", fix=fault.fix)

    def attend(
        self, name: str, sink: Sink, timeout_s: float, grace_s: float
    ) -> tuple[processes.Exit, bool]:
        """Start a created container and follow it to its end; how the client ended, and whether
        the deadline had passed: TERM, `grace_s` to clean up, KILL. On a Ctrl-C likewise."""
        late = threading.Event()

        def stop() -> None:  # the container, not the client: it brings the last words
            late.set()
            with suppress(EnvironmentFault):
                self.call("stop", "-t", str(math.ceil(grace_s)), name)

        timer = threading.Timer(timeout_s, stop)
        timer.daemon = True
        timer.start()
        try:
            ended = processes.stream(
                [self.name, "--log-level", "error", "start", "--attach", name],
                sink.line,
                timeout_s=timeout_s + grace_s + CONTROL_TIMEOUT_S,  # nobody could stop it
                env=self._environment(),
                grace_s=grace_s,
            )
        except KeyboardInterrupt:
            stop()
            raise
        finally:
            timer.cancel()
        return ended, late.is_set()

    def remove_container(self, name: str) -> None:
        """Remove a container; one that has gone already is fine."""
        done = self.call("rm", "--force", "--volumes", name)
        if done.returncode != 0 and not re.search(
            "no such|already in progress", done.stderr.lower()
        ):
            raise refused(self.name, done.stderr)

    def _environment(self) -> dict[str, str]:
        return dict(os.environ)

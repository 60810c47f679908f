"""Output and end of a job: exit codes in the words of the run for every engine, and a daemon's
container followed from start to end, or to its deadline."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ae.daemon.connection import Daemon
from ae.engines.base import SKIP_EXIT_CODE, Sink
from ae.host.lines import LineCutter
from ae.model import Status
from ae.units import format_seconds

if TYPE_CHECKING:
    from docker.api import APIClient

KILLED_S = 30.0  # how long a container may take to be gone after KILL
_DRAIN_S = 10.0  # after the end of a container: how long nothing may arrive of its output


def classify(  # noqa: PLR0911 one line per way to end
    exit_code: int, *, oom: bool, timed_out: bool, timeout_s: float, last_words: str
) -> tuple[Status, str]:
    """Return the status and, unless it is `done`, the reason in one sentence.

    `exit_code` is as a shell says it (128 + n: ended by signal n); `last_words` is the last line
    that the job wrote to standard error.
    """
    if timed_out:
        return Status.TIMEOUT, f"stopped: it ran longer than its {format_seconds(timeout_s)}"
    if exit_code == 0:
        return Status.DONE, ""
    if oom:
        return Status.OOM, "killed by the system: it needed more memory than it may use"
    if exit_code == SKIP_EXIT_CODE:
        return Status.SKIPPED, last_words or "the workload gave no reason"
    if exit_code in (126, 127):
        return Status.FAILED, last_words or f"its program could not be started ({exit_code})"
    if exit_code > 128 and (name := _signal_name(exit_code - 128)):
        tail = f"; its last words: {last_words}" if last_words else ""
        return Status.FAILED, f"ended by {name}{tail}"
    return Status.FAILED, f"exit code {exit_code}" + (f": {last_words}" if last_words else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


class LastWords:
    """A sink that passes lines on and remembers the last lines of standard error."""

    def __init__(self, forward: Sink) -> None:
        self._forward = forward
        self._errors: deque[str] = deque(maxlen=5)

    def line(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        """Pass a line on."""
        if stream == "stderr" and text.strip():
            self._errors.append(text.strip())
        self._forward.line(stream, text)

    @property
    def last(self) -> str:
        """The last line of standard error that is not blank; at most 500 characters."""
        return self._errors[-1][:500] if self._errors else ""


@dataclass(frozen=True)
class Ended:
    """A container that has ended, as the daemon describes it; None: somebody has removed it."""

    container: Mapping[str, Any] | None
    timed_out: bool
    seconds: float  # as seen from here


def follow(daemon: Daemon, name: str, sink: Sink, timeout_s: float, grace_s: float) -> Ended:
    """Start a created container, pass its output on, and stop it at the deadline.

    Raises docker's and the connection's errors, what the sink raises, and KeyboardInterrupt after
    the container was stopped.
    """
    from docker.errors import NotFound

    timed_out = False
    started = time.monotonic()
    attachment = Attachment(daemon.patient, name, sink)
    container: Mapping[str, Any] | None
    try:
        daemon.control.start(name)
        attachment.follow()
        if attachment.wait(timeout_s) is None:
            timed_out = True
            _stop(daemon, name, attachment, grace_s)
        attachment.drain()
        try:
            container = daemon.control.inspect_container(name)
        except NotFound:
            container = None
    except KeyboardInterrupt:
        _stop(daemon, name, attachment, grace_s)
        raise
    finally:
        attachment.close()
    return Ended(container, timed_out, time.monotonic() - started)


def _stop(daemon: Daemon, name: str, attachment: Attachment, grace_s: float) -> None:
    """TERM, a while to clean up, KILL."""
    from docker.errors import APIError

    for word, patience in (("TERM", grace_s), ("KILL", KILLED_S)):
        try:
            daemon.control.kill(name, word)
        except APIError:
            return  # it has ended, or never started
        if attachment.following and attachment.wait(patience) is not None:
            return


class Attachment:
    """Attached before the container starts, so that not a byte is missed."""

    def __init__(self, client: APIClient, container: str, sink: Sink) -> None:
        self._client = client
        self._container = container
        self._sink = sink
        self._news = threading.Event()  # the container has ended, or something broke
        self._exit_code: int | None = None
        self._error: Exception | None = None
        self._lines = 0  # passed on
        self._stream = client.attach(
            container, stdout=True, stderr=True, stream=True, logs=True, demux=True
        )
        self._pump = threading.Thread(target=self._guard, args=(self._read,), daemon=True)
        self._waiter = threading.Thread(target=self._guard, args=(self._wait,), daemon=True)

    def follow(self) -> None:
        """Start both threads; call once the container has started."""
        self._pump.start()
        self._waiter.start()

    @property
    def following(self) -> bool:
        """Whether `follow` has been called."""
        return self._waiter.ident is not None

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code, or None when the container still runs after `timeout_s`.

        Raises what broke in a thread: the connection (requests, docker) or the sink (OSError).
        """
        end = time.monotonic() + max(0.0, timeout_s)
        while not self._news.is_set():
            left = end - time.monotonic()
            if left <= 0:
                return None
            self._news.wait(min(left, 3600.0))
        if self._error is not None:
            raise self._error
        return self._exit_code

    def drain(self) -> None:
        """Wait for the last output of a container that has ended. Raises like `wait`."""
        seen, since = -1, time.monotonic()
        while self._pump.is_alive() and time.monotonic() - since < _DRAIN_S:
            if self._lines != seen:  # a flood is kept by the daemon until we have read it
                seen, since = self._lines, time.monotonic()
            self._pump.join(0.1)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Let go of the stream; never raises for a stream that has broken already."""
        response = getattr(self._stream, "_response", None)
        with suppress(OSError, AttributeError, ValueError):
            self._stream.close()
        with suppress(OSError, AttributeError, ValueError):
            response.close()  # type: ignore[union-attr]  # its file keeps the socket open

    def _guard(self, work: Any) -> None:
        from docker.errors import DockerException
        from requests.exceptions import RequestException
        from urllib3.exceptions import HTTPError

        try:
            work()
        except (HTTPError, ConnectionResetError, ConnectionAbortedError) as error:
            self._error = self._error or RequestException(error)  # of the connection, not the sink
            self._news.set()
        except (DockerException, RequestException, OSError, ValueError) as error:
            self._error = self._error or error  # raised again in the main thread
            self._news.set()

    def _read(self) -> None:
        cutters: dict[Literal["stdout", "stderr"], LineCutter] = {
            "stdout": LineCutter(),
            "stderr": LineCutter(),
        }
        for out, err in self._stream:
            if out:
                self._pass("stdout", cutters["stdout"].feed(out))
            if err:
                self._pass("stderr", cutters["stderr"].feed(err))
        for name, cutter in cutters.items():
            self._pass(name, cutter.end())

    def _pass(self, name: Literal["stdout", "stderr"], lines: list[str]) -> None:
        for line in lines:
            self._sink.line(name, line)
            self._lines += 1

    def _wait(self) -> None:
        answer = self._client.wait(self._container)
        self._exit_code = int(answer["StatusCode"])
        self._news.set()

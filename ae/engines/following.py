"""From a container that was created to one that has ended: start, output, deadline, TERM, KILL."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ae.daemon.connection import Daemon
from ae.engines.attachment import Attachment
from ae.engines.base import Sink

KILLED_S = 30.0  # how long a container may take to be gone after KILL


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

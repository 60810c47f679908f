"""What ends an experiment before its time."""

from __future__ import annotations

from reprokit.errors import Failure


class RunFailed(Failure):
    """A process that was profiled failed, or left something unreadable; one sentence."""

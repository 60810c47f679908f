"""What ends an experiment before its time."""


class RunFailed(Exception):
    """A process that was profiled failed, or left something unreadable; one sentence."""

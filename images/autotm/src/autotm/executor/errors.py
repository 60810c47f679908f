"""What can be wrong with a module, a budget or a machine: one sentence, and what to do."""

from __future__ import annotations


class AutotmError(RuntimeError):
    """A request that cannot be met; the message is one sentence with a fix."""


class CaptureError(AutotmError):
    """The module cannot be captured as one static graph."""


class BudgetError(AutotmError):
    """The budget is below the least that the step needs; `least` is that number of bytes."""

    def __init__(self, message: str, least: int) -> None:
        super().__init__(message)
        self.least = least


class PinnedError(AutotmError):
    """The host memory for tensors that leave cannot be had."""

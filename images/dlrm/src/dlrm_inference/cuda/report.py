"""Ids outside their tables: a kernel reports the bag, and the host looks whenever it waits.

A kernel that meets such an id reads row 0 instead and writes one word, the table's number and the
bag, to page-locked memory that the host reads without a copy. The host looks before each launch of
a variant, without waiting, and after each of PyTorch's own waits: `torch.cuda.synchronize`,
`Stream.synchronize` and `Event.synchronize` are wrapped from the first launch on. So the error also
comes for a CUDA graph that is replayed, and for the last batch.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

_BAG_BITS = 32
_WAITS = ((torch.cuda, "synchronize"), (torch.cuda.Stream, "synchronize"),
          (torch.cuda.Event, "synchronize"))  # fmt: skip


class Report:
    """The word that kernels on `device` write to, and the tables that it may name."""

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        with torch.cuda.device(device) if on_gpu else nullcontext():
            self._memory = torch.zeros(1, dtype=torch.int64, pin_memory=on_gpu)
        self.device = device
        self.address = self._memory.data_ptr()
        self._word = ctypes.c_uint64.from_address(self.address)
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._names: list[str] = []

    def number(self, weight: torch.Tensor, place: int = -1) -> int:
        """Return what a kernel adds a bag to when an id is outside `weight` (rows, dim).

        `place` is the table's place in a launch of several. A table alone is named by the order of
        first use: the first is table 0.
        """
        key = weight.data_ptr(), weight.shape[0], place
        found = self._numbers.get(key)
        if found is None:
            alone = sum(known < 0 for _, _, known in self._numbers)
            name = f"table {place} of its launch" if place >= 0 else f"table {alone}"
            self._names.append(f"{name} ({weight.shape[0]} rows of {weight.shape[1]})")
            found = self._numbers[key] = len(self._names) << _BAG_BITS
        return found

    def look(self) -> None:
        """Raise IndexError naming table and bag when a kernel has reported, and forget it."""
        word = self._word.value
        if word:
            self._word.value = 0
            name, bag = self._names[(word >> _BAG_BITS) - 1], word & (1 << _BAG_BITS) - 1
            raise IndexError(
                f"an id of bag {bag} is outside its table, {name}; fix: ids must be in [0, rows)"
            )


_reports: dict[torch.device, Report] = {}


def report_of(device: torch.device) -> Report:
    """Return the report of `device`, made at first use."""
    found = _reports.get(device)
    if found is None:
        if not _reports:
            for owner, name in _WAITS:
                setattr(owner, name, looking(getattr(owner, name)))
        found = _reports[device] = Report(device)
    return found


def looking(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return `wait`, followed by a look at every device's report."""

    @functools.wraps(wait)
    def waited(*arguments: Any, **named: Any) -> Any:
        result = wait(*arguments, **named)
        for report in _reports.values():
            report.look()
        return result

    return waited


def raise_if_out_of_range(device: torch.device | None = None) -> None:
    """Wait for `device` (None: for all) and raise IndexError when a kernel met an id outside its
    table. A stream that captures a graph cannot be waited for: then nothing is done."""
    for report in [report_of(device)] if device else list(_reports.values()):
        if report.device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                continue
            torch.cuda.synchronize(report.device)
        report.look()

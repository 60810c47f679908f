"""From host batches to the slots that kernels read.

Where batches lie is a mode of its own (docs/papers/rap.md, 6): `staged`, as columns in ordinary
memory, gathered by the CPU into page-locked memory for every batch and copied from there; `pinned`,
gathered once beforehand and copied for every batch; `resident`, on the device. Decoding files is
part of none: it would decide every comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from rap_training.data.columns import RawBatch
from rap_training.memory import Buffers, Layout, raw_layout
from rap_training.work import Source, Work

_SLOTS = 2


class Feed:
    """Some batches of one rank, over and over: batch i is the (i mod count)th of them."""

    def __init__(
        self, work: Work, batches: Sequence[RawBatch], device: torch.device, loader: str
    ) -> None:
        """`batches` hold the rows of all ranks, rank by rank."""
        self.work = work
        layout = raw_layout(work)
        own = slice(work.rank * work.batch, (work.rank + 1) * work.batch)
        locked = device.type == "cuda" and loader != "resident"
        where = device if loader == "resident" else torch.device("cpu")

        def place(array: np.ndarray) -> torch.Tensor:
            tensor = torch.from_numpy(array)
            return tensor.pin_memory() if locked else tensor.to(where)

        self.labels = [place(np.ascontiguousarray(batch.labels[own])) for batch in batches]
        self._stage: Stage | None = None
        self._raw: list[torch.Tensor] = []
        if loader == "staged":
            self._stage = Stage(work, batches, layout, locked)
        else:
            self._raw = [place(pack(work, batch, layout)) for batch in batches]
        self.nbytes = layout.size + 4 * work.batch

    def ahead(self, number: int) -> None:
        """Let the CPU prepare batch `number` in the background, where it has anything to do."""
        if self._stage:
            self._stage.ahead(number)

    def load(self, number: int, buffers: Buffers, slot: int) -> None:
        """Queue the copy of batch `number` into a slot, on the current stream."""
        if self._stage:
            buffers.raw[slot].copy_(self._stage.take(number), non_blocking=True)
            self._stage.copied(number)
        else:
            buffers.raw[slot].copy_(self._raw[number % len(self._raw)], non_blocking=True)
        labels = self.labels[number % len(self.labels)]
        buffers.result(slot, "labels").copy_(labels, non_blocking=True)


class Stage:
    """The CPU's part of a batch (docs/papers/rap.md, 3.7): columns into two page-locked buffers.

    It runs in a thread for batches that were announced, and at once for others.
    """

    def __init__(
        self, work: Work, batches: Sequence[RawBatch], layout: Layout, locked: bool
    ) -> None:
        self._work, self._batches, self._layout = work, batches, layout
        self._buffers = [layout.allocate(torch.device("cpu"), pinned=locked) for _ in range(_SLOTS)]
        self._locked = locked
        self._free: list[Any] = [None] * _SLOTS
        self._waiting: dict[int, Future[torch.Tensor]] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="stage")

    def ahead(self, number: int) -> None:
        """Begin to gather batch `number` in the thread."""
        if number not in self._waiting:
            self._waiting[number] = self._thread.submit(self._gather, number)

    def take(self, number: int) -> torch.Tensor:
        """The gathered batch, waited for if need be."""
        if number in self._waiting:
            return self._waiting.pop(number).result()
        self.finish()
        return self._gather(number)

    def copied(self, number: int) -> None:
        """The copy of batch `number` is queued: its buffer is free once the device is there."""
        if self._locked:
            event = torch.cuda.Event()
            event.record()
            self._free[number % _SLOTS] = event

    def finish(self) -> None:
        """Forget what was announced and not taken."""
        for future in self._waiting.values():
            future.result()
        self._waiting.clear()

    def _gather(self, number: int) -> torch.Tensor:
        slot = number % _SLOTS
        if self._free[slot] is not None:
            self._free[slot].synchronize()
        target = self._buffers[slot]
        batch = self._batches[number % len(self._batches)]
        pack(self._work, batch, self._layout, into=target.numpy())
        return target


def pack(work: Work, batch: RawBatch, layout: Layout, into: np.ndarray | None = None) -> np.ndarray:
    """The columns that a rank reads, in the layout of its raw memory: uint8 [bytes]."""
    packed = np.zeros(max(layout.size, 1), np.uint8) if into is None else into
    for source in work.sources:
        for name, array in _arrays(source, batch):
            start, _, shape = layout.places[f"{source.key}/{name}"]
            rows = array[_rows(work, source)]
            data = np.ascontiguousarray(rows).reshape(shape).view(np.uint8).reshape(-1)
            packed[start : start + data.size] = data
    return packed


def _rows(work: Work, source: Source) -> slice:
    if source.batch == "global":
        return slice(0, work.world * work.batch)
    return slice(work.rank * work.batch, (work.rank + 1) * work.batch)


def _arrays(source: Source, batch: RawBatch) -> list[tuple[str, np.ndarray]]:
    name = source.column.name
    if source.column.kind == "dense":
        values, valid = batch.dense[name]
        return [("values", values), ("valid", valid)]
    ids, valid, lengths = batch.sparse[name]
    lists = [] if lengths is None else [("lengths", lengths)]
    return [("values", ids), ("valid", valid), *lists]

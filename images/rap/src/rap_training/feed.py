"""From host batches to the slots that kernels read: packed once, then copied for every batch.

Where batches lie is a mode of its own (brief 6): `pinned`, in page-locked host memory, one copy a
batch over the bus; `resident`, on the device. Decoding files is not part of an iteration: it would
decide every comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rap_training.data.columns import RawBatch
from rap_training.memory import Buffers, Layout, raw_layout
from rap_training.work import Source, Work

LOADERS = ("pinned", "resident")


class Feed:
    """Some batches of one rank, over and over: batch i is the (i mod count)th of them."""

    def __init__(
        self, work: Work, batches: Sequence[RawBatch], device: torch.device, loader: str
    ) -> None:
        """`batches` hold the rows of all ranks, rank by rank."""
        self.work = work
        layout = raw_layout(work)
        pinned = loader == "pinned" and device.type == "cuda"
        where = torch.device("cpu") if loader == "pinned" else device
        own = slice(work.rank * work.batch, (work.rank + 1) * work.batch)
        self.raw, self.labels = [], []
        for batch in batches:
            packed = torch.from_numpy(pack(work, batch, layout))
            labels = torch.from_numpy(np.ascontiguousarray(batch.labels[own]))
            self.raw.append(packed.pin_memory() if pinned else packed.to(where))
            self.labels.append(labels.pin_memory() if pinned else labels.to(where))

    @property
    def nbytes(self) -> int:
        """Bytes of one batch of this rank."""
        return self.raw[0].numel() + 4 * self.labels[0].numel()

    def load(self, number: int, buffers: Buffers, slot: int) -> None:
        """Queue the copy of batch `number` into a slot."""
        at = number % len(self.raw)
        buffers.raw[slot].copy_(self.raw[at], non_blocking=True)
        buffers.result(slot, "labels").copy_(self.labels[at], non_blocking=True)


def pack(work: Work, batch: RawBatch, layout: Layout) -> np.ndarray:
    """The columns that a rank reads, in the layout of its raw memory: uint8 [bytes]."""
    packed = np.zeros(max(layout.size, 1), np.uint8)
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
    found = [("values", ids), ("valid", valid)]
    return found if lengths is None else [*found, ("lengths", lengths)]

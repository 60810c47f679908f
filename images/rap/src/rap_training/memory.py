"""Memory of one rank: an arena a slot, laid out once, so that addresses never change.

Fixed addresses are what lets launches, CUDA graphs and a second process share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from rap_training.work import Piece, Work

_ALIGNMENT = 256
_TORCH = {"float32": torch.float32, "int64": torch.int64}


@dataclass
class Layout:
    """Names to places in an arena that is not allocated yet."""

    places: dict[str, tuple[int, torch.dtype, tuple[int, ...]]] = field(default_factory=dict)
    size: int = 0

    def add(self, name: str, dtype: torch.dtype, shape: tuple[int, ...], align: int = 0) -> None:
        """Reserve room for a tensor, zero bytes allowed."""
        step = align or _ALIGNMENT
        start = -(-self.size // step) * step
        count = 1
        for extent in shape:
            count *= extent
        self.places[name] = (start, dtype, shape)
        self.size = start + count * dtype.itemsize

    def view(self, storage: torch.Tensor, name: str) -> torch.Tensor:
        """The tensor `name` in `storage`, uint8 [size]."""
        start, dtype, shape = self.places[name]
        end = start + dtype.itemsize * int(torch.Size(shape).numel())
        return storage[start:end].view(dtype).view(shape)

    def allocate(self, device: torch.device, *, pinned: bool = False) -> torch.Tensor:
        """Zeroed bytes for the whole layout."""
        return torch.zeros(max(self.size, 1), dtype=torch.uint8, device=device, pin_memory=pinned)


def raw_layout(work: Work) -> Layout:
    """Raw columns of one rank: `<source>/values`, `/valid`, `/lengths`."""
    layout = Layout()
    for source in work.sources:
        shape = (source.rows, source.column.width)
        layout.add(f"{source.key}/values", _TORCH[source.column.type.dtype], shape)
        layout.add(f"{source.key}/valid", torch.uint8, shape)
        if source.column.ragged:
            layout.add(f"{source.key}/lengths", torch.int32, (source.rows,))
    return layout


def scratch_layout(work: Work) -> Layout:
    """Values between operators: `<instance>/values`, `/lengths`."""
    final = set(final_keys(work))
    layout = Layout()
    for instance in work.instances:
        if instance.key not in final:
            shape = (instance.rows, instance.gives.width)
            layout.add(f"{instance.key}/values", _TORCH[instance.gives.dtype], shape)
            if instance.gives.ragged and instance.resizes:
                layout.add(f"{instance.key}/lengths", torch.int32, (instance.rows,))
    return layout


def batch_layout(work: Work) -> Layout:
    """What the trainer of one rank takes: labels, dense values, ids made or received here.

    `labels`, `dense/<node>`; `<piece>/ids` and `/lengths` for pieces that stay or arrive; under
    `send/` what is made for others, in the order of ranks, so that one exchange sends it.
    """
    layout = Layout()
    layout.add("labels", torch.float32, (work.batch,))
    for name in work.plan.dense:
        layout.add(f"dense/{name}", torch.float32, (work.batch, work.plan.types[name].width))
    for piece in work.made_here:
        if piece.home == work.rank:
            _add_piece(layout, piece.name, piece, align=0)
    # Contiguous and in the peers' order: both ends of the exchange.
    for prefix, pieces in (("send/", outgoing(work)), ("", incoming(work))):
        layout.add(f"{prefix or 'receive/'}start", torch.uint8, (0,))
        for piece in pieces:
            _add_piece(layout, prefix + piece.name, piece, align=8)
        layout.add(f"{prefix or 'receive/'}end", torch.uint8, (0,), align=8)
    return layout


def outgoing(work: Work) -> tuple[Piece, ...]:
    """Pieces made here for other ranks, by home and table."""
    return tuple(piece for piece in work.made_here if piece.home != work.rank)


def incoming(work: Work) -> tuple[Piece, ...]:
    """Pieces of this rank's tables that others make, by maker and table."""
    return tuple(p for p in work.pieces if p.home == work.rank and p.made != work.rank)


def final_keys(work: Work) -> tuple[str, ...]:
    """Keys of the instances whose values the trainer takes."""
    dense = tuple(f"{name}@dense" for name in work.plan.dense)
    return dense + tuple(piece.key for piece in work.made_here)


def _add_piece(layout: Layout, name: str, piece: Piece, align: int) -> None:
    layout.add(f"{name}/ids", torch.int64, (piece.rows, piece.type.width), align)
    if piece.type.ragged:
        # Padded to whole words: the next piece begins where both ends expect it.
        layout.add(f"{name}/lengths", torch.int32, (piece.lengths_bytes // 4,), align)


@dataclass(frozen=True, kw_only=True)
class Buffers:
    """The memory of one rank's preprocessing: scratch once, raw columns and results a slot."""

    work: Work
    device: torch.device
    raw: tuple[torch.Tensor, ...]
    scratch: torch.Tensor
    results: tuple[torch.Tensor, ...]
    layouts: tuple[Layout, Layout, Layout]  # raw, scratch, results

    @staticmethod
    def allocate(
        work: Work, device: torch.device, slots: int, results: Sequence[torch.Tensor] = ()
    ) -> Buffers:
        """Zeroed memory; `results`, if given, are another process's, of the same work."""
        raw, scratch, batch = raw_layout(work), scratch_layout(work), batch_layout(work)
        return Buffers(
            work=work,
            device=device,
            raw=tuple(raw.allocate(device) for _ in range(slots)),
            scratch=scratch.allocate(device),
            results=tuple(results) or tuple(batch.allocate(device) for _ in range(slots)),
            layouts=(raw, scratch, batch),
        )

    @property
    def slots(self) -> int:
        """How many batches can be in the works."""
        return len(self.results)

    def result(self, slot: int, name: str) -> torch.Tensor:
        """A tensor that the trainer takes."""
        return self.layouts[2].view(self.results[slot], name)

    def value(self, slot: int, key: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Values and lengths of a source or an instance, wherever they lie.

        An operator that keeps the width has its input's lengths, unless they go to the trainer.
        """
        raw, scratch, _ = self.layouts
        if f"{key}/valid" in raw.places:
            return self._pair(raw, self.raw[slot], key)
        for piece in self.work.made_here:
            if piece.key == key:
                return self.piece(slot, piece)
        name, batch = key.rsplit("@", 1)
        if batch == "dense" and name in self.work.plan.dense:
            return self.result(slot, f"dense/{name}"), None
        values, lengths = self._pair(scratch, self.scratch, key)
        instance = self.work.instance[key]
        if instance.gives.ragged and not instance.resizes:
            lengths = self.value(slot, instance.input)[1]
        return values, lengths

    def valid(self, slot: int, key: str) -> torch.Tensor:
        """The mask of a source, uint8 like its values."""
        return self.layouts[0].view(self.raw[slot], f"{key}/valid")

    def piece(self, slot: int, piece: Piece) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Ids [rows, width] and lengths [rows] of a piece on the rank that makes or takes it."""
        sent = piece.made == self.work.rank and piece.home != self.work.rank
        name = ("send/" if sent else "") + piece.name
        ids = self.result(slot, f"{name}/ids")
        if not piece.type.ragged:
            return ids, None
        return ids, self.result(slot, f"{name}/lengths")[: piece.rows]

    def span(self, slot: int, prefix: str) -> torch.Tensor:
        """All bytes under `send/` or `receive/`."""
        layout = self.layouts[2]
        start, end = layout.places[f"{prefix}start"][0], layout.places[f"{prefix}end"][0]
        return self.results[slot][start:end]

    @staticmethod
    def _pair(
        layout: Layout, storage: torch.Tensor, key: str
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        values = layout.view(storage, f"{key}/values")
        if f"{key}/lengths" not in layout.places:
            return values, None
        return values, layout.view(storage, f"{key}/lengths")

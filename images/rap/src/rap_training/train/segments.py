"""What a rank looks up: runs of ids of one of its tables, wherever they were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rap_training.memory import Buffers


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Ids int64 [rows, width] and lengths int32 [rows] for rows `start`.. of the global batch.

    `place` is the table's number among those of this rank, `first` its first row in the rank's
    weights, `limit` its rows.
    """

    place: int
    first: int
    limit: int
    start: int
    ids: torch.Tensor
    lengths: torch.Tensor | None


def segments(buffers: Buffers, slot: int, rows: Sequence[int]) -> tuple[Segment, ...]:
    """The segments of one slot. `rows[t]` are the rows of table t, for all tables."""
    work = buffers.work
    first: dict[int, int] = {}
    total = 0
    for table in work.tables:
        first[table] = total
        total += rows[table]
    found = []
    for piece in work.needed_here:
        ids, lengths = buffers.piece(slot, piece)
        found.append(
            Segment(
                place=work.tables.index(piece.table),
                first=first[piece.table],
                limit=rows[piece.table],
                start=piece.start,
                ids=ids,
                lengths=lengths,
            )
        )
    return tuple(found)

"""The kernels of table-batched embedding against the plain version: look-up and update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from rap_training.train.embedding import Embedding, TorchEmbedding
from rap_training.train.segments import Segment

pytest.importorskip("triton", reason="Triton is not installed: pip install --no-deps triton")

DEVICES = [
    pytest.param("cpu", id="interpreter"),
    pytest.param("cuda", marks=pytest.mark.gpu, id="gpu"),
]
BATCH = 20  # a rank's rows: no multiple of what a program takes
ROWS = (5, 1, 64, 9)


@dataclass(frozen=True)
class Run:
    """One table's ids for rows `start` to `start + rows` of the global batch."""

    table: int
    start: int
    rows: int
    width: int = 1
    ragged: bool = False


LAYOUTS = {
    # Tables of one rank of one: fixed lists, ragged ones, some wide.
    "one rank": (1, [Run(0, 0, 20), Run(1, 0, 20, 3, True), Run(2, 0, 20, 7, True),
                     Run(3, 0, 20, 2)]),
    # Made by one rank for all rows, and by every rank for its own.
    "two ranks": (2, [Run(0, 0, 40, 4, True), Run(1, 0, 20), Run(1, 20, 20),
                      Run(2, 0, 20, 5, True), Run(2, 20, 20, 5, True), Run(3, 0, 40, 3)]),
    "three ranks": (3, [Run(0, 0, 60), Run(1, 20, 20, 2, True), Run(1, 0, 20, 2, True),
                        Run(1, 40, 20, 2, True), Run(2, 0, 60, 2), Run(3, 0, 60)]),
}  # fmt: skip


class Tables:
    """Two slots of ids, and memory for what is looked up; equal for equal arguments."""

    def __init__(self, layout: str, dim: int, device: torch.device, *, bad: int = 0) -> None:
        world, runs = LAYOUTS[layout]
        draw = torch.Generator().manual_seed(11)
        tables = len(ROWS)

        def to(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device)

        self.weights = to(torch.randn(sum(ROWS), dim, generator=draw))
        self.pooled = to(torch.full((world, tables, BATCH, dim), float("nan")))
        self.gradient = to(torch.randn(world, tables, BATCH, dim, generator=draw))
        self.bad = to(torch.zeros(tables, dtype=torch.int64))
        self.rate = to(torch.full((1,), 0.3))
        self.slots = []
        for _ in range(2):
            segments = []
            for run in runs:
                ids = torch.randint(0, ROWS[run.table], (run.rows, run.width), generator=draw)
                lengths = None
                if run.ragged:
                    lengths = torch.randint(
                        0, run.width + 1, (run.rows,), generator=draw, dtype=torch.int32
                    )
                    ids[torch.arange(run.width) >= lengths[:, None]] = -(10**15)  # never read
                first = sum(ROWS[: run.table])
                segments.append(
                    Segment(
                        place=run.table, first=first, limit=ROWS[run.table], start=run.start,
                        ids=to(ids), lengths=None if lengths is None else to(lengths),
                    )
                )  # fmt: skip
            self.slots.append(tuple(segments))
        for at in range(bad):  # in lists without lengths, where each is listed
            fixed = [segment for segment in self.slots[0] if segment.lengths is None]
            segment = fixed[at % len(fixed)]
            segment.ids[at, 0] = (segment.limit, -1, 2**62, -(2**62))[at % 4]

    def bound(self, kind: Callable[..., Embedding]) -> Embedding:
        """The tables under one way to look up."""
        return kind(self.weights, self.pooled, self.gradient, self.slots, self.bad, self.rate)


def both(layout: str, dim: int, device: str, bad: int = 0) -> tuple[Tables, Tables]:
    """Tables after both slots were looked up and updated: by kernels, and by the plain version."""
    from rap_training.kernels.embedding import TritonEmbedding

    found = []
    for kind, where in ((TritonEmbedding, device), (TorchEmbedding, "cpu")):
        there = Tables(layout, dim, torch.device(where), bad=bad)
        embedding = there.bound(kind)
        for slot in range(2):
            embedding.forward(slot)
            embedding.backward(slot)
        found.append(there)
    return found[0], found[1]


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dim", [12, 16])
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("device", DEVICES)
def test_kernels_look_up_and_update_as_the_plain_version(
    device: str, layout: str, dim: int
) -> None:
    kernels, plain = both(layout, dim, device)
    close(kernels.pooled, plain.pooled)
    close(kernels.weights, plain.weights)
    assert not plain.pooled.isnan().any(), "a place that nothing is written to"
    fresh = Tables(layout, dim, torch.device("cpu")).weights
    assert ((plain.weights - fresh).abs().amax(1) > 1e-3).float().mean() > 0.5
    assert kernels.bad.tolist() == plain.bad.tolist() == [0] * len(ROWS)


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("device", DEVICES)
def test_ids_outside_of_their_table_are_counted_and_left_out(device: str, layout: str) -> None:
    kernels, plain = both(layout, 12, device, bad=9)
    fixed = {segment.place for segment in plain.slots[0] if segment.lengths is None}
    assert int(plain.bad.sum()) == 9
    assert set(plain.bad.nonzero().flatten().tolist()) <= fixed  # each by its own table
    assert kernels.bad.tolist() == plain.bad.tolist()
    close(kernels.pooled, plain.pooled)
    close(kernels.weights, plain.weights)


@pytest.mark.parametrize("device", DEVICES)
def test_a_rank_without_tables_has_nothing_to_do(device: str) -> None:
    from rap_training.kernels.embedding import TritonEmbedding

    there = torch.device(device)
    empty = torch.zeros(2, 0, BATCH, 12, device=there)
    weights, bad = torch.zeros(0, 12, device=there), torch.zeros(0, dtype=torch.int64, device=there)
    for kind in (TritonEmbedding, TorchEmbedding):
        embedding = kind(weights, empty, empty, [(), ()], bad, torch.ones(1, device=there))
        embedding.forward(1)
        embedding.backward(1)
    assert bad.tolist() == []


def test_the_plain_version_sums_and_updates_as_autograd_does() -> None:
    there = Tables("two ranks", 12, torch.device("cpu"))
    start = there.weights.clone().requires_grad_()
    place = {(rank, table, row): [] for rank in range(2) for table in range(4)
             for row in range(BATCH)}  # fmt: skip
    for segment in there.slots[0]:
        for row, ids in enumerate(segment.ids.tolist()):
            count = len(ids) if segment.lengths is None else int(segment.lengths[row])
            rank, at = divmod(segment.start + row, BATCH)
            place[rank, segment.place, at] = [segment.first + id_ for id_ in ids[:count]]
    sums = torch.stack([start[rows].sum(0) for rows in place.values()])
    embedding = there.bound(TorchEmbedding)
    embedding.forward(0)
    close(there.pooled.view(-1, 12), sums.detach())
    (gradient,) = torch.autograd.grad(sums, start, there.gradient.view(-1, 12))
    embedding.backward(0)
    close(there.weights, start.detach() - 0.3 * gradient)

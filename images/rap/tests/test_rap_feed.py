"""The feed: the rows a rank reads, batch by batch, whatever the loader."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from rap_plans import ROWS, batch, every_operator
from rap_training.config import LOADERS
from rap_training.feed import Feed
from rap_training.memory import Buffers
from rap_training.work import Work

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
BATCHES = [batch(ROWS, seed) for seed in range(3)]
MIXED = (0, 1, -1, 0, 1, -1)
DEVICES = [pytest.param("cpu", id="cpu"), pytest.param("cuda", marks=pytest.mark.gpu, id="gpu")]


def works() -> Iterator[Work]:
    plan = every_operator()
    home = tuple(table % 2 for table in range(len(plan.sparse)))
    for rank in range(2):
        yield Work(plan=plan, rank=rank, world=2, batch=ROWS // 2, home=home, mapping=MIXED)


def check(buffers: Buffers, slot: int, number: int) -> None:
    """All columns that the rank reads hold its rows of batch `number`, nulls and garbage too."""
    work, given = buffers.work, BATCHES[number % len(BATCHES)]
    own = slice(work.rank * work.batch, (work.rank + 1) * work.batch)
    np.testing.assert_array_equal(buffers.result(slot, "labels").cpu(), given.labels[own])
    assert {source.batch for source in work.sources} == {"dense", "local", "global"}
    for source in work.sources:
        rows = slice(None) if source.batch == "global" else own
        values, lengths = buffers.value(slot, source.key)
        valid = buffers.valid(slot, source.key)
        if source.column.kind == "dense":
            wanted, wanted_valid = given.dense[source.column.name]
            wanted_lengths = None
        else:
            wanted, wanted_valid, wanted_lengths = given.sparse[source.column.name]
        shape = (source.rows, source.column.width)
        np.testing.assert_array_equal(values.cpu(), wanted[rows].reshape(shape))
        np.testing.assert_array_equal(valid.cpu(), wanted_valid[rows].reshape(shape))
        assert (lengths is None) == (wanted_lengths is None)
        if lengths is not None and wanted_lengths is not None:
            np.testing.assert_array_equal(lengths.cpu(), wanted_lengths[rows])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("loader", LOADERS)
def test_batches_go_round(loader: str, device: str) -> None:
    for work in works():
        buffers = Buffers.allocate(work, torch.device(device), slots=2)
        feed = Feed(work, BATCHES, torch.device(device), loader)
        for number in range(7):
            feed.load(number, buffers, number % 2)
            feed.ahead(number + 1)
            check(buffers, number % 2, number)
            if number:  # the other slot is left alone
                check(buffers, (number - 1) % 2, number - 1)
        assert feed.nbytes >= sum(source.rows * source.column.width for source in work.sources)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("loader", LOADERS)
def test_a_loop_may_begin_anew_after_another(loader: str, device: str) -> None:
    """What was announced for the last loop and never taken is not handed to the next."""
    for work in works():
        buffers = Buffers.allocate(work, torch.device(device), slots=2)
        feed = Feed(work, BATCHES, torch.device(device), loader)
        for last in (3, 4, 5):
            for number in range(last):
                feed.load(number, buffers, number % 2)
                feed.ahead(number + 1)
                check(buffers, number % 2, number)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_batch_with_too_few_rows_is_refused(loader: str) -> None:
    work = next(works())
    short = [batch(ROWS // 4, 0)]
    buffers = Buffers.allocate(work, CPU, slots=1)
    with pytest.raises((ValueError, RuntimeError)):
        Feed(work, short, CPU, loader).load(0, buffers, 0)

"""Work and memory of ranks fit each other: what one sends is what the other receives."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest
import torch
from rap_plans import ROWS, batch, every_operator
from rap_training import reference
from rap_training.backends import NumpyBackend
from rap_training.feed import Feed
from rap_training.launches import fused, unfused
from rap_training.memory import Buffers, batch_layout, final_keys, incoming, outgoing
from rap_training.plan.graph import PlanError
from rap_training.work import DATA_PARALLEL, Work, data_parallel, locality

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
PLAN = every_operator()
TABLES = len(PLAN.sparse)


def works(world: int, mapping: tuple[int, ...], home: tuple[int, ...] | None = None) -> list[Work]:
    """The work of all ranks, `ROWS` rows together."""
    places = home or tuple(table % world for table in range(TABLES))
    return [
        Work(plan=PLAN, rank=rank, world=world, batch=ROWS // world, home=places, mapping=mapping)
        for rank in range(world)
    ]


def mappings(world: int) -> list[tuple[int, ...]]:
    """The named ones and random mixtures."""
    dice = random.Random(world)
    home = tuple(table % world for table in range(TABLES))
    mixed = [
        tuple(dice.randrange(-1, world) for _ in range(TABLES)) for _ in range(6)
    ]  # fmt: skip
    return [locality(home), data_parallel(TABLES), *mixed]


CASES = [(world, mapping) for world in (1, 2, 4) for mapping in mappings(world)]


@pytest.mark.parametrize(("world", "mapping"), CASES)
def test_every_row_of_every_table_is_made_once(world: int, mapping: tuple[int, ...]) -> None:
    for work in works(world, mapping):
        made = np.zeros((TABLES, ROWS), int)
        for piece in work.pieces:
            assert piece.home == work.home[piece.table]
            made[piece.table, piece.start : piece.start + piece.rows] += 1
        assert (made == 1).all()
        assert set(work.needed_here) == {p for p in work.pieces if p.home == work.rank}
        assert set(work.made_here) == {p for p in work.pieces if p.made == work.rank}
    assert all(work.pieces == works(world, mapping)[0].pieces for work in works(world, mapping))


@pytest.mark.parametrize(("world", "mapping"), CASES)
def test_bytes_that_are_sent_are_those_received(world: int, mapping: tuple[int, ...]) -> None:
    ranks = works(world, mapping)
    buffers = [Buffers.allocate(work, CPU, 1) for work in ranks]
    for sender, receiver in product(range(world), repeat=2):
        names = [p.name for p in outgoing(ranks[sender]) if p.home == receiver]
        assert names == [p.name for p in incoming(ranks[receiver]) if p.made == sender]
        assert {work.bytes_to(sender, receiver) for work in ranks} == {
            sum(
                p.ids_bytes + p.lengths_bytes for p in outgoing(ranks[sender]) if p.home == receiver
            )
        }
    for work, memory in zip(ranks, buffers, strict=True):
        sent = sum(work.bytes_to(work.rank, other) for other in range(world))
        received = sum(work.bytes_to(other, work.rank) for other in range(world))
        assert len(memory.span(0, "send/")) == sent
        assert len(memory.span(0, "receive/")) == received
        assert work.exchanges == any(w.bytes_to(a, b) for w in ranks for a in range(world)
                                     for b in range(world))  # fmt: skip


@pytest.mark.parametrize("how", ["unfused", "fused", "chains"])
@pytest.mark.parametrize(("world", "mapping"), [case for case in CASES if case[0] > 1])
def test_ids_arrive_whole(world: int, mapping: tuple[int, ...], how: str) -> None:
    """Bytes copied from rank to rank, as the exchange does, are the ids of the reference."""
    ranks = works(world, mapping)
    given = batch(ROWS, seed=5)
    buffers = []
    for work in ranks:
        memory = Buffers.allocate(work, CPU, 1)
        memory.results[0].fill_(0xAB)  # what was there before must not matter
        Feed(work, [given], CPU, "resident").load(0, memory, 0)
        if how == "chains":
            calls = NumpyBackend().bind_chains(final_keys(work), memory, 0)
        else:
            launches = unfused(work) if how == "unfused" else fused(work)[0]
            calls = [NumpyBackend().bind(launch, memory, 0) for launch in launches]
        for call in calls:
            call()
        buffers.append(memory)
    for receiver, target in enumerate(buffers):
        at = 0
        for sender, source in enumerate(buffers):
            start = sum(ranks[sender].bytes_to(sender, other) for other in range(receiver))
            size = ranks[sender].bytes_to(sender, receiver)
            piece = source.span(0, "send/")[start : start + size]
            target.span(0, "receive/")[at : at + size] = piece
            at += size
    wanted = reference.evaluate(PLAN, given)
    for work, memory in zip(ranks, buffers, strict=True):
        own = slice(work.rank * work.batch, (work.rank + 1) * work.batch)
        np.testing.assert_array_equal(memory.result(0, "labels"), given.labels[own])
        for name in PLAN.dense:
            found = memory.result(0, f"dense/{name}").numpy()
            np.testing.assert_array_equal(found, wanted[name].values[own], err_msg=name)
        for piece in work.needed_here:
            ids, lengths = memory.piece(0, piece)
            value = wanted[PLAN.sparse[piece.table].node]
            rows = slice(piece.start, piece.start + piece.rows)
            if value.lengths is not None:
                assert lengths is not None
                np.testing.assert_array_equal(lengths, value.lengths[rows])
            keep = value.mask()[rows]
            np.testing.assert_array_equal(ids.numpy()[keep], value.values[rows][keep])


def test_inputs_come_first_and_no_operator_twice() -> None:
    for world, mapping in CASES:
        for work in works(world, mapping):
            known = {source.key for source in work.sources}
            for instance in work.instances:
                assert instance.key not in known
                assert instance.input in known
                known.add(instance.key)
            assert set(final_keys(work)) <= known


def test_a_rank_without_tables_still_trains_its_rows() -> None:
    ranks = works(2, data_parallel(TABLES), home=(0,) * TABLES)
    assert ranks[1].tables == ()
    assert ranks[1].needed_here == ()
    assert ranks[1].bytes_to(0, 1) == 0
    assert ranks[1].bytes_to(1, 0) > 0
    assert "labels" in batch_layout(ranks[1]).places


def test_every_table_is_placed_and_mapped() -> None:
    with pytest.raises(PlanError, match="has 6 tables; fix: place and map each"):
        Work(plan=PLAN, rank=0, world=1, batch=4, home=(0,), mapping=(DATA_PARALLEL,) * TABLES)

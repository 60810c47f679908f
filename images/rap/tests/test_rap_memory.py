"""Arenas: places that do not overlap, do not move, and hold what was put there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from rap_plans import ROWS, every_operator
from rap_training.memory import Buffers, Layout, batch_layout, raw_layout, scratch_layout
from rap_training.plan.graph import PlanError, SparseOutput
from rap_training.work import Work

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
MIXED = (0, 1, -1, 0, 1, -1)


def work(rank: int = 0) -> Work:
    plan = every_operator()
    home = tuple(table % 2 for table in range(len(plan.sparse)))
    return Work(plan=plan, rank=rank, world=2, batch=ROWS // 2, home=home, mapping=MIXED)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("make", [raw_layout, scratch_layout, batch_layout])
def test_places_lie_within_the_arena_and_apart(make, rank: int) -> None:  # type: ignore[no-untyped-def]
    layout = make(work(rank))
    end = 0
    for start, dtype, shape in sorted(layout.places.values(), key=lambda place: place[0]):
        assert start >= end
        assert start % dtype.itemsize == 0
        end = start + dtype.itemsize * torch.Size(shape).numel()
    assert end <= layout.size


def test_a_view_is_the_memory_itself() -> None:
    layout = Layout()
    layout.add("bytes", torch.uint8, (3,))
    layout.add("ids", torch.int64, (2, 3))
    layout.add("nothing", torch.float32, (0, 4))
    layout.add("tight", torch.int32, (1,), align=4)
    storage = layout.allocate(CPU)
    layout.view(storage, "ids").fill_(-1)
    assert int((storage == 255).sum()) == 2 * 3 * 8
    assert layout.view(storage, "ids").data_ptr() % 256 == storage.data_ptr() % 256
    assert layout.view(storage, "nothing").shape == (0, 4)
    assert layout.view(storage, "tight").tolist() == [0]
    assert Layout().allocate(CPU).numel() == 1  # an address, although nothing is in it


def test_slots_share_scratch_and_nothing_else() -> None:
    buffers = Buffers.allocate(work(), CPU, slots=2)
    for name in ("labels", "dense/d1.box"):
        one, other = buffers.result(0, name), buffers.result(1, name)
        assert one.data_ptr() != other.data_ptr()
        one.fill_(1)
        assert not other.any()
    assert buffers.slots == 2
    key = "s1.gram@global" if "s1.gram@global" in work().instance else "s1.gram@local"
    ranks = [w for w in (work(0), work(1)) if key in w.instance]
    memory = Buffers.allocate(ranks[0], CPU, slots=2)
    assert memory.value(0, key)[0].data_ptr() == memory.value(1, key)[0].data_ptr()


def test_lengths_are_those_of_the_input_unless_an_operator_makes_new_ones() -> None:
    there = next(w for w in (work(0), work(1)) if any(i.node.name == "s1.raw" for i in w.instances))
    buffers = Buffers.allocate(there, CPU, slots=1)
    for instance in there.instances:
        _, lengths = buffers.value(0, instance.key)
        _, given = buffers.value(0, instance.input)
        assert (lengths is not None) == instance.gives.ragged, instance.key
        final = any(piece.key == instance.key for piece in there.made_here)
        if lengths is not None and given is not None:
            own = lengths.data_ptr() != given.data_ptr()
            assert own == (instance.resizes or final), instance.key


def test_results_can_be_another_process_s() -> None:
    there = work()
    one = Buffers.allocate(there, CPU, slots=2)
    other = Buffers.allocate(there, CPU, slots=2, results=one.results)
    other.result(1, "labels").fill_(7)
    assert (one.result(1, "labels") == 7).all()
    assert one.scratch.data_ptr() != other.scratch.data_ptr()


def test_two_tables_cannot_take_one_node() -> None:
    """There is one place for a node's ids, so the second table would read nothing."""
    plan = every_operator()
    with pytest.raises(PlanError, match=r"two tables take s1.hash; fix: "):
        replace(plan, sparse=(*plan.sparse, SparseOutput(node="s1.hash", rows=11)))

"""The contract between planner and executor: graphs, plans, and their JSON."""

from __future__ import annotations

import pytest
from autotm.graph import Graph, Op, Plan, Stay, Tensor

CHAIN = Graph(
    (
        Tensor(0, 100, "parameter", "w"),
        Tensor(1, 40, "input", "x"),
        Tensor(2, 10, "activation", "h"),
        Tensor(3, 7, "activation", "scratch"),
        Tensor(4, 1, "output", "loss"),
        Tensor(5, 100, "output", "dw"),
    ),
    (
        Op(0, "mm", (0, 1), (2, 3), 2.0),
        Op(1, "sum", (2,), (4,), 1.0),
        Op(2, "mm_backward", (1, 2), (5,), 4.0, recomputable=False),
    ),
    "chain",
)


def test_a_graph_knows_uses_lives_and_its_peak() -> None:
    assert CHAIN.producer == (None, None, 0, 0, 1, 2)
    assert CHAIN.uses[2] == (1, 2)
    assert [CHAIN.life(tensor) for tensor in (0, 2, 3, 4)] == [(0, 2), (0, 2), (0, 0), (1, 2)]
    assert CHAIN.live_bytes == (157, 151, 251)
    assert CHAIN.peak_bytes == 251
    assert CHAIN.seconds == 7.0


def test_a_plan_knows_where_a_tensor_is_and_its_copies() -> None:
    stays = (Stay(2, 0, 0, 1, "op", 0, saved=0), Stay(2, 64, 2, 2, "host", 2))
    plan = Plan("chain", "ours", (0, 1, 2), stays, ("offload",), 9.0, 74, 9.0, 0.0, 0.1, {"a": 1.0})
    assert plan.read_at(2, 1).address == 0
    assert plan.read_at(2, 2).address == 64
    assert [(way, stay.address) for way, stay in plan.copies()] == [("out", 0), ("in", 64)]
    with pytest.raises(KeyError, match="away at step 1"):
        plan.read_at(5, 1)


@pytest.mark.parametrize(
    ("ops", "words"),
    [
        ((Op(0, "a", (1,), (), 1.0), Op(1, "b", (0,), (1,), 1.0)), "too early"),
        ((Op(0, "a", (0,), (1,), 1.0), Op(1, "b", (0,), (1,), 1.0)), "again"),
        ((Op(0, "a", (0, 0), (1,), 1.0),), "twice"),
        ((Op(0, "a", (0,), (), 1.0),), "no op writes"),
        ((Op(1, "a", (0,), (1,), 1.0),), "malformed"),
        ((Op(0, "a", (0,), (1,), 1.0, placed=(1.0,)),), "lacks times"),
    ],
)
def test_a_graph_that_contradicts_itself_is_refused(ops: tuple[Op, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Graph((Tensor(0, 1, "input"), Tensor(1, 1, "activation")), ops)

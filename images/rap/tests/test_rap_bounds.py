"""What values a plan's ids can have is known before anything runs."""

import math

import pytest
from rap_training.plan.builtin import builtin
from rap_training.plan.graph import Column, Plan, PlanError, SparseOutput
from rap_training.plan.steps import chain, step


def plan_of(*steps, rows=100, kind="sparse"):
    """A plan whose only table gets a column through fill_null and `steps`."""
    price = chain("price", (step("fill_null", value=0),))
    ids = chain("item", (step("fill_null", value=0), *steps))
    return Plan(
        name="mine",
        columns=(
            Column(name="price", kind="dense"),
            Column(name="item", kind=kind, width=1 if kind == "dense" else 4, ids=10),
        ),
        nodes=(*price, *ids), dense=(price[-1].name,),
        sparse=(SparseOutput(node=ids[-1].name, rows=rows),),
    )  # fmt: skip


HASH = step("sigrid_hash", salt=1, modulus=100)
TO_FLOAT, TO_INT = step("cast", dtype="float32"), step("cast", dtype="int64")


@pytest.mark.parametrize(
    ("kind", "steps", "reach"),
    [
        ("sparse", (HASH,), (0, 99)),
        ("sparse", (HASH, step("first_x", x=2), step("ngram", n=2)), (0, 99)),
        ("sparse", (step("map_id", size=70, seed=1),), (0, 69)),
        ("sparse", (step("clamp", lo=-5, hi=2.9),), (-5, 2)),
        ("sparse", (HASH, step("clamp", lo=40, hi=1000)), (40, 99)),
        ("sparse", (HASH, step("clamp", lo=200, hi=1000)), (200, 200)),
        ("sparse", (HASH, TO_FLOAT, TO_INT), (0, 99)),
        ("sparse", (HASH, TO_FLOAT, step("clamp", lo=-7.5, hi=3.5), TO_INT), (0, 3)),
        ("sparse", (TO_FLOAT, step("clamp", lo=5.5, hi=7.5), TO_INT), (0, 7)),  # NaN becomes 0
        ("sparse", (), None),
        ("sparse", (TO_FLOAT, TO_INT), None),
        ("sparse", (HASH, TO_FLOAT, step("boxcox", lam=0.5), TO_INT), None),
        ("dense", (step("bucketize", borders=(0.5, 1.0)),), (0, 2)),
        ("dense", (step("one_hot", lo=0, hi=8, k=4), TO_INT), (0, 1)),
        ("dense", (step("clamp", lo=-math.inf, hi=5.0), TO_INT), None),
    ],
)
def test_bounds_follow_the_chain(kind, steps, reach):
    plan = plan_of(*steps, rows=2**20, kind=kind) if not reach or reach[0] >= 0 else None
    if plan is None:
        with pytest.raises(PlanError, match=rf"go from {reach[0]} to {reach[1]}, "):
            plan_of(*steps, rows=2**20, kind=kind)
    else:
        assert plan.bounds[plan.sparse[0].node] == reach


def test_ids_that_may_lie_outside_name_table_and_node():
    plan_of(HASH, rows=100)
    words = (
        "plan mine: the ids of table 0, node item_1_sigrid_hash, go from 0 to 99, and the table "
        "has 99 rows; fix: end the chain with sigrid_hash modulo"
    )
    with pytest.raises(PlanError) as error:
        plan_of(HASH, rows=99)
    assert str(error.value).startswith(words)


@pytest.mark.parametrize("scale", [1.0, 0.001, 1e-9])
def test_built_in_plans_keep_their_ids_inside_and_it_is_known(scale):
    for number in range(4):
        plan = builtin(number, scale=scale)
        assert all(plan.bounds[output.node] for output in plan.sparse)

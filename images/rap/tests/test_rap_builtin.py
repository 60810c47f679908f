from collections import Counter

import numpy as np
import pytest
from rap_training import reference
from rap_training.data import generate
from rap_training.plan.builtin import builtin
from rap_training.plan.graph import PlanError

DISCRETE = ("bucketize", "one_hot")
ROUNDED = ("logit", "boxcox")


def ops(plan):
    return Counter(node.op for node in plan.nodes)


@pytest.mark.parametrize(("number", "rows"), [(0, 33_828_113), (1, 178_009_811)])
def test_plans_0_and_1_are_the_papers(number, rows):
    plan = builtin(number)
    assert ops(plan) == {
        "fill_null": 39, "bucketize": 1, "sigrid_hash": 26, "first_x": 26, "logit": 13,
    }  # fmt: skip
    assert len(plan.nodes) == 105
    assert Counter(column.kind for column in plan.columns) == {"dense": 13, "sparse": 26}
    assert {(column.width, column.ragged) for column in plan.columns} == {(1, False)}
    assert (len(plan.dense), len(plan.sparse)) == (13, 27)
    assert {len(plan.chain(name)) for name in plan.dense} == {2}
    assert plan.depth() == 3
    assert sum(output.rows for output in plan.sparse) == rows
    assert plan.source(plan.sparse[26].node).name == "int_0"
    assert plan.node["cat_26"].parameters == {"borders": (0.5, 1.0, 1.5)}
    hashes = [node for node in plan.nodes if node.op == "sigrid_hash"]
    assert [node.parameters["modulus"] for node in hashes] == [o.rows for o in plan.sparse[:26]]
    assert {node.parameters["salt"] for node in hashes} == {0}


@pytest.mark.parametrize(
    ("number", "dense", "sparse", "operators"), [(2, 26, 52, 472), (3, 52, 104, 953)]
)
def test_plans_2_and_3_are_of_the_papers_size(number, dense, sparse, operators):
    plan = builtin(number)
    assert Counter(column.kind for column in plan.columns) == {"dense": dense, "sparse": sparse}
    assert (len(plan.dense), len(plan.sparse)) == (dense, sparse)
    assert {output.rows for output in plan.sparse} == {65_536}
    assert len(plan.nodes) == operators
    assert len(ops(plan)) == 11  # every operator there is
    outputs = [*plan.dense, *(output.node for output in plan.sparse)]
    assert {len(plan.chain(name)) for name in outputs} == {4, 5, 6, 7, 8}
    assert sum(column.ragged for column in plan.columns) == sparse // 2
    assert max(column.width for column in plan.columns) == 20
    assert max(plan.types[output.node].width for output in plan.sparse) == 8


@pytest.mark.parametrize("number", [2, 3])
def test_chains_are_of_many_orders(number):
    plan = builtin(number)
    outputs = [*plan.dense, *(output.node for output in plan.sparse)]
    assert len({tuple(node.op for node in plan.chain(name)) for name in outputs}) == 14


@pytest.mark.parametrize("number", range(4))
def test_no_id_hangs_on_the_last_bit_of_a_float(number):
    plan = builtin(number)
    for node in plan.nodes:
        to_ids = node.op == "cast" and node.parameters["dtype"] == "int64"
        if node.op in DISCRETE or to_ids:
            assert not {before.op for before in plan.chain(node.name)}.intersection(ROUNDED)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_ids_are_in_range_and_floats_finite(number, scale):
    plan = builtin(number, scale=scale)
    batch = generate.batch(plan, rows=200, seed=number)
    values = reference.evaluate(plan, batch)
    for name in plan.dense:
        assert values[name].values.shape == (200, plan.types[name].width)
        assert np.isfinite(values[name].values).all()
        assert values[name].values.std() > 0
    for output in plan.sparse:
        ids = values[output.node].elements()
        assert ids.min() >= 0
        assert ids.max() < output.rows
        assert len(np.unique(ids)) > 1 or output.rows < 10
        assert values[output.node].width == plan.types[output.node].width


def test_small_tables_stay_as_they_are_and_others_keep_four_rows():
    rows = [output.rows for output in builtin(0, scale=1e-6).sparse]
    assert rows[8] == 3
    assert rows[2] == 10
    assert set(rows) == {3, 4, 5, 7, 8, 10}
    assert [output.rows for output in builtin(0, scale=2).sparse][:2] == [2920, 1166]


def test_another_plan_or_scale_is_refused():
    with pytest.raises(PlanError, match="no plan 4; fix: 0, 1, 2 or 3"):
        builtin(4)
    with pytest.raises(PlanError, match="scaled by 0; fix"):
        builtin(0, scale=0)

from collections import Counter

import numpy as np
import pytest
from rap_training import reference
from rap_training.data import generate as data
from rap_training.plan.builtin import builtin
from rap_training.plan.generator import KINDS, chains, generate, heavier
from rap_training.plan.graph import Column, Node, Plan, PlanError, SparseOutput

SEEDS = range(12)


def sized(seed):
    """A plan whose size follows from the seed, from the smallest to hundreds of operators."""
    draw = np.random.default_rng(seed)
    return generate(
        dense=int(draw.integers(1, 20)),
        sparse=int(draw.integers(1, 20)),
        depth=int(draw.integers(3, 14)),
        width=int(draw.integers(1, 24)),
        seed=seed,
        rows_per_table=int(draw.choice([1, 2, 1000, 65_536])),
    )


def check(plan, batch):
    """Ids in range, floats finite, and the same result for a batch in two parts as in one."""
    whole = reference.evaluate(plan, batch)
    cut = batch.row_count // 3
    parts = [reference.evaluate(plan, batch.rows(*ends)) for ends in ((0, cut), (cut, 120))]
    for name, value in whole.items():
        assert value.width == plan.types[name].width
        assert (value.lengths is not None) == plan.types[name].ragged
        assert value.values.dtype.name == plan.types[name].dtype
        assert value.values.flags.c_contiguous
        both = np.concatenate([part[name].elements() for part in parts])
        bit = 1e-6 if both.dtype == np.float32 else 0
        np.testing.assert_allclose(both, value.elements(), rtol=bit, atol=bit)
        if value.lengths is not None:
            both = np.concatenate([part[name].lengths for part in parts])
            np.testing.assert_array_equal(both, value.lengths)
    for name in plan.dense:
        assert np.isfinite(whole[name].values).all()
    for output in plan.sparse:
        ids = whole[output.node].elements()
        assert ids.min(initial=0) >= 0
        assert ids.max(initial=0) < output.rows


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_plan_runs_and_its_ids_are_in_range(seed):
    plan = sized(seed)
    check(plan, data.batch(plan, rows=120, seed=seed))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("factor", [1.3, 2, 5])
def test_a_heavier_random_plan_does_too(seed, factor):
    plan = heavier(sized(seed), factor)
    check(plan, data.batch(plan, rows=120, seed=seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_plan_is_of_the_asked_size(seed):
    plan = generate(dense=7, sparse=9, depth=8, width=10, seed=seed)
    assert Counter(column.kind for column in plan.columns) == {"dense": 7, "sparse": 9}
    assert (len(plan.dense), len(plan.sparse)) == (7, 9)
    lengths = [len(plan.chain(name)) for name in (*plan.dense, *(o.node for o in plan.sparse))]
    assert min(lengths) >= 3
    assert max(lengths) <= 8
    assert sum(lengths) == len(plan.nodes)
    assert {output.rows for output in plan.sparse} == {65_536}
    assert max(column.width for column in plan.columns) <= 10
    assert max(kind.width for kind in plan.types.values()) <= 256


@pytest.mark.parametrize("number", [2, 3])
def test_a_heavier_plan_has_as_many_operators_as_asked(number):
    """To one operator an output that the plan already shares: parts of an operator add up."""
    plan = builtin(number, scale=0.001)
    chains_of = [plan.chain(name) for name in (*plan.dense, *(o.node for o in plan.sparse))]
    own = sum(map(len, chains_of))
    sizes = []
    for factor in (1, 1.001, 1.25, 1.5, 2, 2.9, 3):
        heavy = heavier(plan, factor)
        sizes.append(len(heavy.nodes))
        assert sizes[-1] == pytest.approx(len(plan.nodes) + (factor - 1) * own, abs=1)
        assert [c.name for c in heavy.columns] == [c.name for c in plan.columns]
    assert sizes == sorted(sizes)


def test_the_seed_decides():
    plans = [generate(dense=5, sparse=5, depth=9, width=9, seed=seed) for seed in (3, 3, 4)]
    assert plans[0] == plans[1]
    assert plans[0].nodes != plans[2].nodes
    more = generate(dense=6, sparse=5, depth=9, width=9, seed=3)
    assert [n for n in more.nodes if not n.name.startswith("int_5_")] == list(plans[0].nodes)


def test_every_operator_comes_up_in_many_orders():
    plan = generate(dense=60, sparse=60, depth=10, width=12, seed=0)
    assert len({node.op for node in plan.nodes}) == 11
    orders = {tuple(node.op for node in plan.chain(output.node)) for output in plan.sparse}
    assert len(orders) > 40
    assert any(column.ragged for column in plan.columns)
    assert any(not column.ragged and column.width > 1 for column in plan.columns)


@pytest.mark.parametrize("factor", [1, 3])
def test_no_id_hangs_on_the_last_bit_of_a_float(factor):
    plan = heavier(generate(dense=60, sparse=60, depth=12, width=12, seed=1), factor)
    discrete = [
        node
        for node in plan.nodes
        if node.op in ("bucketize", "one_hot") or node.parameters.get("dtype") == "int64"
    ]
    assert len(discrete) > 50
    for node in discrete:
        assert not {before.op for before in plan.chain(node.name)} & {"logit", "boxcox"}


@pytest.mark.parametrize(
    ("bad", "words"),
    [({"dense": 0}, "dense .* 1 or more"), ({"sparse": 0}, "sparse .* 1 or more"),
     ({"depth": 2}, "depth .* 3 or more"), ({"width": 0}, "width .* 1 or more"),
     ({"rows_per_table": 0}, "rows_per_table .* 1 or more"), ({"seed": -1}, "seed .* 0 or more")],
)  # fmt: skip
def test_sizes_too_small_are_refused(bad, words):
    with pytest.raises(PlanError, match=words):
        generate(**{"dense": 1, "sparse": 1, "depth": 3, "width": 1, "seed": 0, **bad})


@pytest.mark.parametrize("number", range(4))
def test_a_heavier_plan_has_the_same_columns_outputs_and_types(number):
    plan = builtin(number)
    more = heavier(plan, 3)
    assert more.columns == plan.columns
    assert more.dense == plan.dense
    assert more.sparse == plan.sparse
    assert more.over_arch == plan.over_arch
    for name in (*plan.dense, *(output.node for output in plan.sparse)):
        assert more.types[name] == plan.types[name]
    assert len(more.nodes) == pytest.approx(3 * len(plan.nodes), rel=0.02)
    check(more, data.batch(more, rows=120, seed=1))


def test_heavier_twice_and_by_one():
    plan = builtin(0)
    assert heavier(plan, 1) is plan
    assert heavier(plan, 2).name == "plan0_x2"
    twice = heavier(heavier(plan, 2), 2)
    assert len(twice.nodes) == pytest.approx(420, rel=0.02)
    check(twice, data.batch(twice, rows=120, seed=1))
    with pytest.raises(PlanError, match="0 times as heavy; fix"):
        heavier(plan, 0)


def test_who_reads_an_output_reads_the_same_in_a_heavier_plan():
    fill = Node(name="f", op="fill_null", input="d", parameters={"value": 0})
    plan = Plan(
        name="shared",
        columns=(Column(name="d", kind="dense"),),
        nodes=(fill, Node(name="b", op="bucketize", input="f", parameters={"borders": (1.0, 3.0)})),
        dense=("f",),
        sparse=(SparseOutput(node="b", rows=3),),
    )
    batch = data.batch(plan, rows=120, seed=0)
    more = heavier(plan, 2)
    check(more, batch)
    assert more.node["f"].op == "clamp"
    before = reference.evaluate(plan, batch, ["b"])["b"].values
    base = more.chain("b")[:2]
    assert [node.op for node in base] == ["fill_null", "bucketize"]
    bucket = reference.evaluate(more, batch, [base[1].name])[base[1].name].values
    np.testing.assert_array_equal(bucket, before)


def test_chains_are_drawn_from_the_kinds():
    drawn = chains(13, 6, seed=0)
    assert [len(chain) for chain in drawn] == [6] * 13
    assert {kind for chain in drawn for kind in chain} == set(KINDS)
    assert drawn == chains(13, 6, KINDS, 0)
    assert drawn != chains(13, 6, KINDS, 1)
    assert chains(2, 3, ["a"], 5) == [["a"] * 3] * 2

import time

import numpy as np
import pytest
from rap_training.data import generate
from rap_training.data.columns import DataError
from rap_training.plan.builtin import builtin
from rap_training.plan.graph import Column, Node, Plan, SparseOutput

FILL = {"value": 0}


def plan_of(*columns):
    """A plan that reads a dense column `d`, a sparse one `s`, and has `columns` besides."""
    return Plan(
        name="p",
        columns=(Column(name="d", kind="dense"), Column(name="s", kind="sparse", ids=9), *columns),
        nodes=(
            Node(name="df", op="fill_null", input="d", parameters=FILL),
            Node(name="sf", op="fill_null", input="s", parameters=FILL),
        ),
        dense=("df",),
        sparse=(SparseOutput(node="sf", rows=9),),
    )


def arrays(batch):
    parts = [*batch.dense.values(), *batch.sparse.values(), (batch.labels,)]
    return [array for part in parts for array in part if array is not None]


def same(one, other):
    return len(one) == len(other) and all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(one, other, strict=True)
    )


@pytest.fixture(scope="module")
def small():
    return builtin(2)


def test_shapes_and_types_are_those_of_the_columns(small):
    batch = generate.batch(small, rows=100, seed=3)
    assert batch.names == tuple(column.name for column in small.columns)
    for column in small.columns:
        if column.kind == "dense":
            values, valid = batch.dense[column.name]
            assert (values.dtype, values.shape) == (np.float32, (100,))
            lengths = None
        else:
            values, valid, lengths = batch.sparse[column.name]
            assert (values.dtype, values.shape) == (np.int64, (100, column.width))
            assert (lengths is not None) == column.ragged
        assert (valid.dtype, valid.shape) == (np.uint8, values.shape)
        if lengths is not None:
            assert lengths.dtype == np.int32
            assert (lengths.min(), lengths.max()) == (0, column.width)
    assert all(array.flags.c_contiguous for array in arrays(batch))
    assert set(batch.labels.tolist()) == {0.0, 1.0}


def test_it_depends_on_seed_and_number_alone(small):
    one = arrays(generate.batch(small, rows=50, seed=3, number=4))
    assert same(one, arrays(generate.batch(small, rows=50, seed=3, number=4)))
    assert not same(one, arrays(generate.batch(small, rows=50, seed=3, number=5)))
    assert not same(one, arrays(generate.batch(small, rows=50, seed=4, number=4)))
    listed = list(generate.batches(small, rows=50, seed=3, count=2, first=3))
    assert len(listed) == 2
    assert same(one, arrays(listed[1]))


def test_a_shorter_batch_is_the_beginning_of_a_longer_one(small):
    long = generate.batch(small, rows=300, seed=1)
    assert same(arrays(generate.batch(small, rows=77, seed=1)), arrays(long.rows(0, 77)))


def test_a_column_does_not_depend_on_the_others():
    extra = Column(name="a", kind="sparse", width=7, ragged=True, ids=5)
    one = generate.batch(plan_of(), rows=50, seed=1)
    other = generate.batch(plan_of(extra), rows=50, seed=1)
    assert same(arrays(one), arrays(other.select(["d", "s"])))


def test_null_rates_and_garbage_are_as_asked():
    columns = (
        Column(name="dn", kind="dense", null_rate=0.25),
        Column(name="sn", kind="sparse", width=3, null_rate=0.8, ids=7),
        Column(name="all", kind="sparse", null_rate=1.0, ids=7),
    )
    batch = generate.batch(plan_of(*columns), rows=20_000, seed=0)
    values, valid = batch.dense["dn"]
    assert valid.mean() == pytest.approx(0.75, abs=0.01)
    assert np.array_equal(np.isnan(values), valid == 0)
    ids, valid, _ = batch.sparse["sn"]
    assert valid.mean() == pytest.approx(0.2, abs=0.01)
    assert (ids[valid == 0] == generate.NULL_ID).all()
    assert len(set(ids[valid == 1].tolist())) == 7
    assert not batch.sparse["all"][1].any()
    assert batch.dense["d"][1].all()


def test_padding_is_garbage_and_ids_are_not():
    column = Column(name="r", kind="sparse", width=5, ragged=True, ids=100)
    ids, _, lengths = generate.batch(plan_of(column), rows=1000, seed=0).sparse["r"]
    padding = np.arange(5) >= lengths[:, None]
    assert (ids[padding] == generate.PADDING_ID).all()
    assert (ids[~padding] != generate.PADDING_ID).all()
    assert lengths.mean() == pytest.approx(2.5, abs=0.2)


@pytest.mark.parametrize("count", [1, 2, 50, 48_937_457])
def test_ids_are_of_the_cardinality_and_follow_zipf(count):
    draw = np.random.default_rng(0)
    ranks = generate._zipf(draw, count, (100_000,))
    assert ranks.max() < count
    share = np.bincount(ranks[ranks < 2].astype(np.int64), minlength=2) / len(ranks)
    edges = np.array([1.0, 2.0, 3.0, count + 1.0]) ** (1 - generate.ZIPF)
    expected = (edges[:-1] - edges[1:]) / (edges[0] - edges[-1])
    assert share == pytest.approx(expected[:2] if count > 1 else [1, 0], abs=0.01)
    if count == 50:
        assert len(np.unique(ranks)) == 50


def test_ids_are_spread_over_all_of_int64():
    column = Column(name="r", kind="sparse", ids=10_000)
    ids = generate.batch(plan_of(column), rows=50_000, seed=0).sparse["r"][0]
    distinct = np.unique(ids)
    assert len(distinct) > 3000
    assert (distinct < 0).mean() == pytest.approx(0.5, abs=0.05)
    assert (np.abs(distinct.astype(np.float64)) > 2**60).mean() > 0.8


def test_dense_values_are_long_tailed_counts():
    values = generate.batch(plan_of(), rows=50_000, seed=0).dense["d"][0]
    assert values.min() == 0
    assert (values == np.floor(values)).all()
    assert values.max() > 20 * values.mean()


def test_a_large_batch_takes_well_under_a_second():
    plan = builtin(1)
    took = []
    for _ in range(3):  # the machine may be busy
        start = time.perf_counter()
        generate.batch(plan, rows=65_536, seed=0)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.8


@pytest.mark.parametrize("bad", [{"rows": 0}, {"seed": -1}, {"number": -1}])
def test_sizes_that_make_no_sense_are_refused(bad):
    with pytest.raises(DataError, match=r"cannot generate batch .*; fix: at least one row"):
        generate.batch(plan_of(), **{"rows": 5, "seed": 0, **bad})


def test_a_sparse_column_must_say_how_many_ids_it_has():
    with pytest.raises(DataError, match="column x does not say how many ids it has; fix"):
        generate.batch(plan_of(Column(name="x", kind="sparse")), rows=5, seed=0)

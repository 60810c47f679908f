import numpy as np
import pytest
from rap_training import reference
from rap_training.data import generate
from rap_training.data.columns import DataError
from rap_training.plan.builtin import builtin
from rap_training.plan.generator import generate as random_plan
from rap_training.plan.graph import Column

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
from rap_training.data import parquet  # noqa: E402

DENSE = Column(name="d", kind="dense")
ONE = Column(name="one", kind="sparse")
FIXED = Column(name="fixed", kind="sparse", width=2)
RAGGED = Column(name="ragged", kind="sparse", width=3, ragged=True)


def file(path, **columns):
    """A parquet file with the given columns; a label per row is added."""
    count = len(next(iter(columns.values())))
    columns.setdefault("label", [0.0] * count)
    pq.write_table(pa.table(columns), path)
    return path


def equal(one, other):
    """Nothing differs but what null slots and padding hold."""
    assert one.names == other.names
    np.testing.assert_array_equal(one.labels, other.labels)
    for name, (values, valid) in one.dense.items():
        np.testing.assert_array_equal(valid, other.dense[name][1])
        np.testing.assert_array_equal(values, other.dense[name][0])
    for name, (values, valid, lengths) in one.sparse.items():
        theirs, valid_too, lengths_too = other.sparse[name]
        real = np.ones(values.shape, dtype=bool)
        assert (lengths is None) == (lengths_too is None)
        if lengths is not None:
            np.testing.assert_array_equal(lengths, lengths_too)
            assert lengths_too.dtype == np.int32
            real = np.arange(values.shape[1]) < lengths[:, None]
        assert values.shape == theirs.shape
        np.testing.assert_array_equal(values[real], theirs[real])
        np.testing.assert_array_equal(valid[real], valid_too[real])
        assert (theirs.dtype, valid_too.dtype) == (np.int64, np.uint8)
        assert theirs.flags.c_contiguous


@pytest.mark.parametrize("seed", range(4))
def test_batches_come_back_one_per_row_group(tmp_path, seed):
    plan = builtin(0) if seed == 0 else random_plan(dense=3, sparse=9, depth=5, width=9, seed=seed)
    batches = list(generate.batches(plan, rows=40, seed=seed, count=3))
    batches[2] = batches[2].rows(0, 7)
    path = tmp_path / "data.parquet"
    assert parquet.write(path, plan.columns, batches) == 87
    back = list(parquet.read(path, plan.columns))
    assert [batch.row_count for batch in back] == [40, 40, 7]
    for one, other in zip(batches, back, strict=True):
        equal(one, other)
    results = [reference.evaluate(plan, batch) for batch in (batches[1], back[1])]
    for name, value in results[0].items():
        np.testing.assert_array_equal(value.elements(), results[1][name].elements())
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_read_can_be_written_to_and_holds_garbage_where_null(tmp_path):
    path = file(tmp_path / "a", d=[1.0, None], one=[None, 5], ragged=[[1, None], [2]])
    batch = next(parquet.read(path, (DENSE, ONE, RAGGED)))
    assert np.isnan(batch.dense["d"][0]).tolist() == [False, True]
    assert batch.sparse["one"][0].tolist() == [[generate.NULL_ID], [5]]
    padding = generate.PADDING_ID
    assert batch.sparse["ragged"][0].tolist() == [
        [1, generate.NULL_ID, padding], [2, padding, padding],
    ]  # fmt: skip
    batch.sparse["one"][0][0] = 1


def test_all_null_columns_are_legal(tmp_path):
    lists = pa.list_(pa.int64())
    path = file(
        tmp_path / "a",
        d=pa.array([None, None], pa.float32()),
        untyped=pa.nulls(2),
        one=pa.array([None, None], pa.int64()),
        fixed=pa.array([None, [None, None]], lists),
        ragged=pa.array([None, []], lists),
        r2=pa.nulls(2),
        f2=pa.nulls(2),
    )
    columns = (
        DENSE, ONE, FIXED, RAGGED, Column(name="untyped", kind="dense"),
        Column(name="r2", kind="sparse", width=3, ragged=True),
        Column(name="f2", kind="sparse", width=2),
    )  # fmt: skip
    batch = next(parquet.read(path, columns))
    assert not any(valid.any() for _, valid in batch.dense.values())
    assert not any(valid.any() for _, valid, _ in batch.sparse.values())
    assert batch.sparse["ragged"][2].tolist() == batch.sparse["r2"][2].tolist() == [0, 0]
    assert batch.sparse["f2"][2] is None
    assert batch.sparse["f2"][0].shape == (2, 2)


def test_numbers_and_lists_of_other_types_are_read(tmp_path):
    path = file(
        tmp_path / "a",
        d=pa.array([2**24 + 1, None], pa.int32()),
        one=pa.array([2**31 + 5, None], pa.uint32()),
        fixed=pa.array([[1, 2], [3, None]], pa.list_(pa.int16(), 2)),
        ragged=pa.array([[], [7]], pa.large_list(pa.int32())),
        label=pa.array([0, 1], pa.int8()),
    )
    batch = next(parquet.read(path, (DENSE, ONE, FIXED, RAGGED)))
    assert batch.dense["d"][0][0] == 2**24
    assert batch.sparse["one"][0][0] == 2**31 + 5
    assert batch.sparse["fixed"][0][0].tolist() == [1, 2]
    assert batch.sparse["fixed"][1].tolist() == [[1, 1], [1, 0]]
    assert batch.sparse["ragged"][2].tolist() == [0, 1]
    assert batch.labels.tolist() == [0, 1]


def test_empty_row_groups_are_left_out(tmp_path):
    path = tmp_path / "a"
    table = pa.table({"d": [1.0, 2.0], "label": [0.0, 1.0]})
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table.slice(0, 0))
        writer.write_table(table)
    assert [batch.row_count for batch in parquet.read(path, (DENSE,))] == [2]


FAULTS = {
    "dense of words": (DENSE, {"d": ["a"]}, r"group 0, column d holds string; fix: numbers"),
    "ids of floats": (ONE, {"one": [0.5]}, r"column one holds double; fix: whole numbers"),
    "lists of floats": (FIXED, {"fixed": [[0.5, 1.0]]}, r"column fixed holds double; fix: whole"),
    "no lists": (RAGGED, {"ragged": [1]}, r"ragged holds int64; fix: lists of whole numbers"),
    "too long": (RAGGED, {"ragged": [[1], [1] * 4]}, r"row 1 has a list of 4, .* at most 3; fix"),
    "too short": (FIXED, {"fixed": [[1]]}, r"row 0 has a list of 1, and the plan says 2; fix"),
    "beyond int64": (
        ONE,
        {"one": pa.array([2**63], pa.uint64())},
        r"column one has ids beyond int64; fix",
    ),
    "missing": (ONE, {"d": [1.0]}, r"there is no column one; fix: .*\(it has d, label\)"),
    "label null": (DENSE, {"d": [1.0], "label": [None]}, r"label of row 0 is null; fix: 0 or 1"),
    "label 2": (DENSE, {"d": [1.0, 1.0], "label": [0, 2]}, r"label of row 1 is 2; fix: 0 or 1"),
    "no rows": (DENSE, {"d": pa.array([], pa.float32())}, r"its columns have no rows; fix"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_sentence_with_a_fix(tmp_path, fault):
    column, columns, words = FAULTS[fault]
    path = file(tmp_path / "a.parquet", **columns)
    with pytest.raises(DataError, match=words) as caught:
        list(parquet.read(path, (column,)))
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_column_given_twice_is_a_fault_where_the_plan_reads_it(tmp_path):
    path = tmp_path / "a"
    arrays = [pa.array([1.0]), pa.array([2.0]), pa.array([5]), pa.array([1.0])]
    pq.write_table(pa.Table.from_arrays(arrays, names=["d", "d", "one", "label"]), path)
    with pytest.raises(DataError, match=r"a: there are two columns d; fix: rename or drop one$"):
        list(parquet.read(path, (DENSE,)))
    assert next(parquet.read(path, (ONE,))).sparse["one"][0].tolist() == [[5]]


def test_a_column_with_the_labels_name_is_neither_written_nor_read(tmp_path):
    path = file(tmp_path / "a", d=[1.0])
    words = r"the plan has a column label, where the file has the labels; fix: rename the"
    with pytest.raises(DataError, match=words):
        list(parquet.read(path, (Column(name="label", kind="dense"),)))
    with pytest.raises(DataError, match=words):
        parquet.write(path, (Column(name="label", kind="dense"),), [])


def test_files_that_are_none(tmp_path):
    with pytest.raises(DataError, match="there is no such file; fix"):
        list(parquet.read(tmp_path, ()))
    path = tmp_path / "a.parquet"
    path.write_text("label\n0\n")
    with pytest.raises(DataError, match=r"is not a parquet file \(.*\); fix: write it again"):
        list(parquet.read(path, ()))


def test_a_damaged_row_group_is_an_error_with_its_number(tmp_path):
    path = file(tmp_path / "a", d=np.random.default_rng(0).random(50_000))
    data = bytearray(path.read_bytes())
    data[4:400] = b"\xff" * 396
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"row group 0 cannot be read \(.*\); fix"):
        list(parquet.read(path, (DENSE,)))


def test_nothing_is_left_of_what_could_not_be_written(tmp_path):
    with pytest.raises(DataError, match="there are no rows to write; fix"):
        parquet.write(tmp_path / "a", builtin(0).columns, [])
    batch = generate.batch(builtin(0), rows=3, seed=0)
    with pytest.raises(DataError, match="the batch has no column d; fix"):
        parquet.write(tmp_path / "a", (DENSE,), [batch])
    assert not list(tmp_path.iterdir())
    with pytest.raises(DataError, match=r"cannot be written \(.*\); fix"):
        parquet.write(tmp_path / "no" / "a", builtin(0).columns, [batch])

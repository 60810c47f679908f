import gzip
import re

import numpy as np
import pytest
from rap_training import reference
from rap_training.data.columns import DataError
from rap_training.plan.builtin import builtin

pytest.importorskip("pyarrow")
from rap_training.data import criteo, parquet


def line(row, **changed):
    """A line of made-up values; `changed` are fields by column."""
    fields = {"label": str(row % 2)}
    fields |= {f"int_{i}": str(row * 100 + i - 2) for i in range(13)}
    fields |= {f"cat_{i}": f"{(row * 7919 + i * 104729) % 2**32:08x}" for i in range(26)}
    return "\t".join({**fields, **changed}.values())


def write(path, lines, end="\n"):
    data = (end.join(lines) + end).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["train.txt", "day_0.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_become_batches(tmp_path, name, end, monkeypatch):
    monkeypatch.setattr(criteo, "_BLOCK", 1000)  # a few lines at a time
    path = write(tmp_path / name, [line(row) for row in range(23)], end)
    batches = list(criteo.read(path, rows=10))
    assert [batch.row_count for batch in batches] == [10, 10, 3]
    assert batches[0].names == (*criteo.DENSE, *criteo.SPARSE)
    for at, batch in zip((0, 10, 20), batches, strict=True):
        rows = np.arange(at, at + batch.row_count)
        assert batch.labels.tolist() == (rows % 2).tolist()
        for i in range(13):
            values, valid = batch.dense[f"int_{i}"]
            assert values.tolist() == (rows * 100 + i - 2).tolist()
            assert valid.all()
        for i in range(26):
            ids, valid, lengths = batch.sparse[f"cat_{i}"]
            assert ids[:, 0].tolist() == ((rows * 7919 + i * 104729) % 2**32).tolist()
            assert valid.all()
            assert lengths is None


def test_a_category_is_an_unsigned_number_and_an_empty_field_null(tmp_path):
    path = write(
        tmp_path / "train.txt",
        [line(0, cat_0="ffffffff", cat_1="", cat_25="", int_12="", int_0="-3"), line(1, cat_0="F")],
    )
    (batch,) = criteo.read(path, rows=10)
    assert batch.sparse["cat_0"][0].tolist() == [[2**32 - 1], [15]]
    assert batch.sparse["cat_1"][1].tolist() == [[0], [1]]
    assert batch.sparse["cat_25"][1].tolist() == [[0], [1]]
    assert batch.dense["int_0"][0].tolist() == [-3, 98]
    values, valid = batch.dense["int_12"]
    assert valid.tolist() == [0, 1]
    assert np.isnan(values[0])


def test_a_column_may_be_empty_all_through(tmp_path):
    path = write(tmp_path / "train.txt", [line(row, cat_3="", int_4="") for row in range(3)])
    (batch,) = criteo.read(path, rows=3)
    assert not batch.sparse["cat_3"][1].any()
    assert not batch.dense["int_4"][1].any()


@pytest.mark.parametrize(
    ("limit", "sizes"), [(1, [1]), (10, [10]), (14, [10, 4]), (99, [10, 10, 3])]
)
def test_a_limit_ends_the_reading(tmp_path, limit, sizes):
    path = write(tmp_path / "train.txt", [line(row) for row in range(23)])
    assert [batch.row_count for batch in criteo.read(path, rows=10, limit=limit)] == sizes


def test_conversion_to_parquet_and_through_a_plan(tmp_path):
    nulls = [line(row, cat_2="", int_1="") for row in range(5)]
    one = write(tmp_path / "day_0", [line(row) for row in range(11)] + nulls)
    other = write(tmp_path / "day_1.gz", [line(row) for row in range(50, 57)])
    target = tmp_path / "data.parquet"
    assert criteo.convert([one, other], target, rows=10) == 23
    plan = builtin(0)
    assert [b.row_count for b in parquet.read(target, plan.columns)] == [10, 6, 7]
    read = list(criteo.read(one, rows=10)) + list(criteo.read(other, rows=10))
    for batch, back in zip(read, parquet.read(target, plan.columns), strict=True):
        values = reference.evaluate(plan, batch)
        again = reference.evaluate(plan, back)
        for name, value in values.items():
            np.testing.assert_array_equal(value.values, again[name].values)


FAULTS = {
    "39 fields": ([line(0), line(1).split("\t", 1)[1]], "line 2 has 39 fields; fix: lines of 40"),
    "41 fields": ([line(0), line(1), line(2) + "\tx"], "line 3 has 41 fields; fix: lines of 40"),
    "commas": ([line(0).replace("\t", ",")], "line 1 has 1 fields; fix: lines of 40 fields"),
    "no number": (
        [line(0), line(1, int_3="x1")],
        "line 2: CSV conversion error to int64: invalid value 'x1'",
    ),
    "no category": (
        [line(0), line(1), line(2, cat_5="68fd1g64")],
        "line 3: cat_5 is 68fd1g64; fix: a category of",
    ),
    "long category": (
        [line(0, cat_0="123456789")],
        "line 1: cat_0 is 123456789; fix: a category of",
    ),
    "label 2": ([line(0), line(1, label="2")], "line 2: the label is 2; fix: 0 or 1"),
    "label empty": ([line(0), line(1, label="")], "line 2: the label is empty; fix: 0 or 1"),
    "empty line": ([line(0), line(1), "", line(2)], "line 3: the label is empty; fix: 0 or 1"),
}


@pytest.mark.parametrize("rows", [1, 2, 100])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_sentence_with_its_line(tmp_path, fault, rows):
    lines, words = FAULTS[fault]
    path = write(tmp_path / "train.txt", lines)
    with pytest.raises(DataError, match=re.escape(words)) as caught:
        list(criteo.read(path, rows=rows))
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}: ")
    assert sentence.count("fix: ") == 1
    assert "\n" not in sentence


def test_a_fault_far_into_a_file_has_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr(criteo, "_BLOCK", 1000)
    for number, words in ((301, "line 301 has 39"), (250, "line 250 has 39")):
        lines = [line(row) for row in range(400)]
        lines[number - 1] = lines[number - 1].rsplit("\t", 1)[0]
        with pytest.raises(DataError, match=words):
            list(criteo.read(write(tmp_path / "train.txt", lines), rows=64))
    lines = [line(row, cat_7="-1" if row == 299 else "1") for row in range(400)]
    with pytest.raises(DataError, match="line 300: cat_7 is -1; fix"):
        list(criteo.read(write(tmp_path / "train.txt", lines), rows=64))


def test_files_that_are_none(tmp_path):
    with pytest.raises(DataError, match="there is no such file; fix"):
        list(criteo.read(tmp_path / "train.txt", rows=1))
    empty = tmp_path / "empty.txt"
    empty.write_bytes(b"")
    with pytest.raises(DataError, match="it has no rows; fix"):
        list(criteo.read(empty, rows=1))
    broken = write(tmp_path / "day_0.gz", [line(row) for row in range(50)])
    broken.write_bytes(broken.read_bytes()[:300])
    with pytest.raises(DataError, match=r"day_0.gz: cannot be read \(.*\); fix"):
        list(criteo.read(broken, rows=1))
    with pytest.raises(DataError, match="cannot read 0 rows by 5; fix"):
        list(criteo.read(broken, rows=5, limit=0))
    with pytest.raises(DataError, match="no such file"):
        criteo.convert([tmp_path / "no"], tmp_path / "a.parquet", rows=4)
    assert not (tmp_path / "a.parquet").exists()

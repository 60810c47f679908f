import numpy as np
import pytest
from rap_training.data.columns import DataError, RawBatch


@pytest.fixture
def batch():
    return RawBatch(
        dense={"d": (np.arange(4, dtype=np.float32), np.ones(4, dtype=np.uint8))},
        sparse={
            "s": (
                np.arange(12).reshape(4, 3),
                np.ones((4, 3), dtype=np.uint8),
                np.array([3, 0, 1, 2], dtype=np.int32),
            ),
            "t": (np.arange(4).reshape(4, 1), np.zeros((4, 1), dtype=np.uint8), None),
        },
        labels=np.array([0, 1, 1, 0], dtype=np.float32),
    )


def test_bytes_are_those_of_all_arrays(batch):
    dense, ragged, fixed, labels = 4 * (4 + 1), 12 * (8 + 1) + 4 * 4, 4 * (8 + 1), 4 * 4
    assert batch.nbytes == dense + ragged + fixed + labels
    assert batch.row_count == 4
    assert batch.names == ("d", "s", "t")


def test_a_slice_of_rows_is_a_view_of_every_array(batch):
    part = batch.rows(1, 3)
    assert part.row_count == 2
    assert part.dense["d"][0].tolist() == [1, 2]
    values, valid, lengths = part.sparse["s"]
    assert values.tolist() == [[3, 4, 5], [6, 7, 8]]
    assert lengths.tolist() == [0, 1]
    assert part.sparse["t"][2] is None
    assert np.shares_memory(values, batch.sparse["s"][0])
    assert all(array.flags.c_contiguous for array in (values, valid, lengths))
    assert batch.rows(2, 2).row_count == 0


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 5)])
def test_rows_outside_are_refused(batch, start, stop):
    with pytest.raises(DataError, match=f"rows {start} to {stop} are not within a batch of 4; fix"):
        batch.rows(start, stop)


def test_columns_are_selected_in_the_batch_order(batch):
    part = batch.select(["t", "d"])
    assert part.names == ("d", "t")
    assert part.labels is batch.labels
    with pytest.raises(DataError, match="no column u; fix"):
        batch.select(["d", "u"])

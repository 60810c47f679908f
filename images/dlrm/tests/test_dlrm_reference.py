import numpy as np
import pytest
from dlrm_inference.reference import check_indices, embedding_bag

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_sums_by_hand():
    indices, offsets = np.array([0, 3, 3, 1]), np.array([0, 2, 2, 4])
    sums = embedding_bag(WEIGHT, indices, offsets)
    assert sums.tolist() == [[9, 11, 13], [0, 0, 0], [12, 14, 16]]


def test_rows_are_added_one_after_the_other():
    weight = np.array([[1e8], [1.0], [-1e8]], dtype=np.float32)
    offsets = np.array([0, 3])
    assert embedding_bag(weight, np.array([0, 1, 2]), offsets)[0, 0] == 0  # 1 is lost in 1e8
    assert embedding_bag(weight, np.array([0, 2, 1]), offsets)[0, 0] == 1
    assert embedding_bag(weight, np.array([0, 1, 2]), offsets, np.float64)[0, 0] == 1


@pytest.mark.parametrize("bad", [-1, 4])
def test_an_index_outside_the_table_is_an_index_error(bad):
    with pytest.raises(IndexError, match=f"index {bad} at position 1 is outside 0..3"):
        check_indices(np.array([0, bad, 9]), 4)


@pytest.mark.parametrize(("offsets", "mode"), [([0, 3, 2, 4], "sum"), ([0, 4], "max")])
def test_bags_that_overlap_and_other_modes_are_an_error(offsets, mode):
    with pytest.raises(ValueError, match="offsets must rise, and mode is sum or mean"):
        embedding_bag(np.ones((4, 2)), np.arange(4), np.array(offsets, np.uint64), mode=mode)


@pytest.mark.torch
def test_it_agrees_with_pytorch():
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(0)
    weight = generator.standard_normal((50, 20), dtype=np.float32)
    offsets = np.array([0, 7, 7, 30, 31])
    indices = generator.integers(0, 50, 31)
    theirs = torch.nn.functional.embedding_bag(
        torch.from_numpy(indices), torch.from_numpy(weight), torch.from_numpy(offsets[:-1]),
        mode="sum",
    )  # fmt: skip
    np.testing.assert_allclose(
        embedding_bag(weight, indices, offsets), theirs, rtol=1e-5, atol=1e-5
    )

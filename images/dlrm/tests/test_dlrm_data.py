import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from dlrm_inference import data, hotness
from dlrm_inference.config import DATASETS, Config
from dlrm_inference.data import SPECS, Burst, make_batches, make_table

SMALL = Config(tables=3, rows=4000, batch=32, pooling=50, batches=2)
PAPER = Config(tables=2, batches=2)


def test_random_touches_the_share_of_rows_that_chance_says():
    """Claim D12: N(1-(1-1/N)^n) of 500,000 rows, 74.7 % of 307,200 draws."""
    expected = hotness.expected_unique_uniform(500_000, 307_200)
    assert expected == pytest.approx(500_000 * (1 - (1 - 1 / 500_000) ** 307_200), rel=1e-6)
    assert expected / 307_200 == pytest.approx(0.747, abs=0.0005)
    batches = make_batches(dataclasses.replace(PAPER, dataset="random"))
    for table in range(PAPER.tables):
        for batch in range(PAPER.batches):
            # The count's standard deviation is about 250.
            assert batches.unique_rows(table, batch) == pytest.approx(expected, abs=1500)


@pytest.mark.parametrize("dataset", DATASETS)
def test_a_dataset_keeps_its_stated_hotness(dataset):
    spec = SPECS[dataset]
    batches = make_batches(dataclasses.replace(PAPER, dataset=dataset))
    for table in range(PAPER.tables):
        assert batches.unique_rows(table, 0) == pytest.approx(spec.unique, rel=0.01)
        served = hotness.coverage(batches.indices[table][0], PAPER.rows, (0.001, 0.01, 0.1))
        assert served == pytest.approx(spec.covered, abs=0.006)


def test_datasets_grow_colder_in_the_papers_order():
    unique = [
        make_batches(dataclasses.replace(SMALL, dataset=name)).unique_rows(0, 0)
        for name in DATASETS
    ]
    assert unique == sorted(unique)
    assert unique[0] == 1


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_shapes_types_and_range(dataset, index_dtype):
    config = dataclasses.replace(SMALL, dataset=dataset, index_dtype=index_dtype)
    batches = make_batches(config)
    assert len(batches.indices) == 3
    for ids in batches.indices:
        assert ids.shape == (2, 32 * 50)
        assert ids.dtype == index_dtype
        assert ids.flags.c_contiguous
        assert ids.min() >= 0
        assert ids.max() < 4000
    for offsets in batches.offsets:
        assert offsets.dtype == index_dtype
        assert offsets.tolist() == list(range(0, 32 * 50 + 1, 50))


def test_a_seed_gives_the_same_ids_whatever_else_is_there():
    few = make_batches(dataclasses.replace(SMALL, dataset="med_hot", tables=2, batches=1))
    many = make_batches(dataclasses.replace(SMALL, dataset="med_hot"))
    other = make_batches(dataclasses.replace(SMALL, dataset="med_hot", seed=1))
    np.testing.assert_array_equal(few.indices[1][0], many.indices[1][0])
    assert (many.indices[1][0] != other.indices[1][0]).any()


@pytest.mark.parametrize("dataset", [name for name in DATASETS if name != "one_item"])
def test_no_table_or_batch_is_like_another(dataset):
    batches = make_batches(dataclasses.replace(SMALL, dataset=dataset))
    drawn = [batches.indices[table][batch] for table in range(3) for batch in range(2)]
    sliced = [part for table in range(3) for part in np.split(batches.profile(table), 2)]
    kinds = [*drawn, *sliced]
    assert {len(ids) for ids in kinds} == {SMALL.draws}
    assert len({ids.tobytes() for ids in kinds}) == len(kinds)


def test_every_seed_has_its_own_hot_rows():
    config = dataclasses.replace(SMALL, dataset="high_hot", hot_list="oracle")
    hottest = [
        make_batches(dataclasses.replace(config, seed=seed)).hot_rows(0, 1)[0] for seed in (1, 2, 3)
    ]
    assert len(set(hottest)) == 3


def test_a_short_last_window_bursts_in_proportion():
    ranks = np.full(2300 + 1150, -1)
    data._add_bursts(
        np.random.default_rng(1), data._cumulative(4000, 0.0), ranks, SPECS["med_hot"].burst
    )
    for window, repeats in ((ranks[:2300], 38), (ranks[2300:], 19)):
        _, counts = np.unique(window[window >= 0], return_counts=True)
        assert counts.tolist() == [repeats] * 6


def test_the_source_names_the_seed_and_the_dataset():
    batches = make_batches(dataclasses.replace(SMALL, dataset="low_hot", seed=77))
    assert batches.source == f"generated, seed 77: {SPECS['low_hot'].summary}"


def test_hotness_of_a_stream_that_is_known():
    ids = np.array([[5, 5, 5, 2], [2, 9, 9, 0]])
    assert hotness.unique_rows(ids) == 4
    assert hotness.top_rows(ids, 20, 10).tolist() == [5, 2, 9, 0]  # ties by rising id
    assert hotness.top_rows(ids, 20, 2).tolist() == [5, 2]
    assert hotness.coverage(ids, 20, (0.0, 0.05, 0.1, 1.0)) == (0.375, 0.375, 0.625, 1.0)
    assert hotness.zipf(3, 1.0).tolist() == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    assert hotness.expected_unique(np.array([0.5, 0.5]), 2) == pytest.approx(1.5)


def test_every_table_has_its_own_hot_rows():
    batches = make_batches(dataclasses.replace(SMALL, dataset="high_hot"))
    hottest = {int(batches.hot_rows(table, 1)[0]) for table in range(3)}
    assert len(hottest) == 3


def test_hot_rows_come_from_a_slice_that_is_not_measured():
    config = dataclasses.replace(SMALL, dataset="low_hot")
    profiled, oracle = (
        make_batches(dataclasses.replace(config, hot_list=name)) for name in ("profiled", "oracle")
    )
    np.testing.assert_array_equal(profiled.indices[0], oracle.indices[0])
    assert not np.array_equal(profiled.profile(0), profiled.indices[0].ravel())
    measured = profiled.indices[0]
    hit = {b.hot_list: np.isin(measured, b.hot_rows(0, 200)).mean() for b in (profiled, oracle)}
    assert hit["profiled"] < hit["oracle"]  # an oracle knows what is coming
    counts = np.bincount(measured.ravel())
    assert counts[oracle.hot_rows(0, 200)].tolist() == sorted(counts, reverse=True)[:200]


@pytest.mark.parametrize("dataset", [name for name in DATASETS if name != "one_item"])
def test_tuning_sees_one_batch_of_a_slice_that_is_not_measured(dataset):
    batches = make_batches(dataclasses.replace(SMALL, dataset=dataset, hot_list="oracle"))
    held_out = batches.tuning()
    for table, ids in enumerate(held_out.indices):
        assert ids.shape == (1, SMALL.draws)
        assert ids.dtype == batches.indices[table].dtype
        for measured in batches.indices[table]:
            assert np.mean(ids[0] == measured) < 0.5  # drawn anew, so equal by chance alone
        np.testing.assert_array_equal(ids[0], batches.profile(table)[: SMALL.draws])
        seen = np.unique(batches.profile(table))
        assert np.isin(held_out.hot_rows(table, 50), seen).all()
    assert held_out.hot_list == "profiled"  # an oracle's list would be of the measured rows


def test_a_hot_list_names_only_rows_that_were_seen():
    batches = make_batches(dataclasses.replace(SMALL, dataset="one_item"))
    assert batches.hot_rows(0, 60_000).tolist() == [int(batches.indices[0][0, 0])]


def test_medium_is_bursty_and_low_is_not():
    """docs/papers/dlrm.md, 2: in medium a few ids recur dozens of times within some 2,300 draws."""

    def bursting(dataset):
        """Count (row, window) pairs: 25 times in one window and at most 12 in the one before."""
        ids = make_batches(dataclasses.replace(PAPER, dataset=dataset)).indices[0][0]
        windows = [
            np.bincount(ids[s : s + 2300], minlength=500_000) for s in range(0, 46_000, 2300)
        ]
        pairs = pairwise(windows)
        return sum(int(((now >= 25) & (before <= 12)).sum()) for before, now in pairs)

    assert bursting("med_hot") > 50
    assert bursting("low_hot") == 0
    assert SPECS["med_hot"].burst == Burst(window=2300, ids=6, repeats=38)


def test_table_values_are_uniform_within_the_papers_bound():
    table = make_table(SMALL, 0)
    bound = SMALL.rows**-0.5
    assert table.shape == (4000, 128)
    assert table.dtype == np.float32
    assert np.abs(table).max() <= bound * (1 + 1e-6)
    assert table.mean() == pytest.approx(0, abs=bound / 100)
    assert table.std() == pytest.approx(bound / 3**0.5, rel=0.01)
    assert not np.array_equal(table, make_table(SMALL, 1))
    np.testing.assert_array_equal(table, make_table(SMALL, 0, np.zeros_like(table)))

import itertools
import random
from collections import Counter

import pytest
from rap_training.planner.placement import PlacementError, balance, place_tables, table_room

# Rows of Criteo Kaggle's tables and the one of the bucketised feature, 512 bytes a row.
KAGGLE = [
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992,
    5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572, 65536,
]  # fmt: skip


def loads(sizes, placement, gpus):
    load = [0] * gpus
    for size, gpu in zip(sizes, placement.gpu_of, strict=True):
        load[gpu] += size
    return tuple(load)


@pytest.mark.parametrize(
    ("gpus", "largest"),
    [
        (1, sum(KAGGLE)),
        (2, 10131227 + 7046547),  # no other split of the five large tables is as even
        (4, 10131227),
        (8, 10131227),
    ],
)
def test_kaggle_is_balanced_as_well_as_its_largest_tables_allow(gpus, largest):
    sizes = [512 * rows for rows in KAGGLE]
    found = balance(sizes, gpus)
    assert found.load == loads(sizes, found, gpus)
    assert max(found.load) == 512 * largest
    assert found.optimal


@pytest.mark.parametrize("seed", range(8))
def test_small_instances_match_every_placement_tried(seed):
    dice = random.Random(seed)
    sizes = [dice.randint(1, 60) for _ in range(7)]
    gpus = dice.choice([2, 3])
    best = min(
        max(sum(s for s, g in zip(sizes, gpu_of, strict=True) if g == gpu) for gpu in range(gpus))
        for gpu_of in itertools.product(range(gpus), repeat=len(sizes))
    )
    found = balance(sizes, gpus)
    assert max(found.load) == best
    assert found.load == loads(sizes, found, gpus)


def test_the_solver_beats_longest_first_where_that_is_not_optimal():
    # Longest first gives 7 on the first GPU; 3 + 3 and 2 + 2 + 2 are the optimum.
    found = balance([3, 3, 2, 2, 2], 2)
    assert (sorted(found.load), found.optimal, found.gap) == ([6, 6], True, 0.0)


def test_equal_tables_need_no_solver_and_odd_ones_report_their_bound():
    assert balance([65536 * 512] * 52, 4).load == (13 * 65536 * 512,) * 4
    found = balance([10] * 5, 2)
    assert (max(found.load), found.optimal) == (30, True)


def test_nothing_to_place():
    assert balance([], 3).load == (0, 0, 0)
    assert balance([0, 0], 2).load == (0, 0)


def test_a_table_that_fits_no_gpu_is_named_with_its_bytes():
    with pytest.raises(PlacementError, match="table 1 has 500 bytes and a rank takes 400"):
        balance([10, 500], 2, limit=400)


def test_a_total_that_does_not_fit_is_named():
    with pytest.raises(PlacementError, match=r"tables have 900 bytes and 2 ranks take 800 \(400"):
        balance([300, 300, 300], 2, limit=400)


def test_tables_that_fit_only_in_sum_are_refused_and_a_tight_fit_is_found():
    with pytest.raises(PlacementError, match="puts 600 bytes of tables on one of 2 ranks"):
        balance([300, 300, 300], 2, limit=500)
    assert balance([3, 3, 2, 2, 2], 2, limit=6).load == (6, 6)


@pytest.mark.parametrize(("sizes", "gpus"), [([1], 0), ([-1], 1)])
def test_bad_numbers_are_refused(sizes, gpus):
    with pytest.raises(PlacementError, match="fix: at least one GPU and no negative size"):
        balance(sizes, gpus)


def test_tables_leave_a_tenth_of_the_memory_or_two_gib():
    assert table_room(100 << 30) == 90 << 30
    assert table_room(10 << 30) == 8 << 30
    assert table_room(1 << 30) == 0


def test_look_ups_are_shared_out_beside_bytes_and_the_load_is_bytes():
    # By bytes alone the first table would stand alone, and eight tables' look-ups on the other GPU.
    sizes = [800, *[100] * 8]
    assert sorted(Counter(balance(sizes, 2).gpu_of).values()) == [1, 8]
    found = place_tables(sizes, 2)
    assert sorted(Counter(found.gpu_of).values()) == [3, 6]
    assert found.load == loads(sizes, found, 2)


def test_bytes_alone_decide_where_they_are_tight():
    sizes = [800, *[100] * 8]
    assert place_tables(sizes, 2, limit=800).load == (800, 800)
    with pytest.raises(PlacementError, match="table 0 has 800 bytes and a rank takes 799"):
        place_tables(sizes, 2, limit=799)


def test_a_search_that_is_cut_short_ends_the_same_every_time():
    sizes = [512 * (rows + sum(KAGGLE) // len(KAGGLE)) for rows in KAGGLE]
    found = balance(sizes, 4)
    assert not found.optimal  # so the search was cut short
    assert {balance(sizes, 4) for _ in range(3)} == {found}

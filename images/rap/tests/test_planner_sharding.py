import random

import pytest
from rap_training.planner.sharding import largest_prefix


def test_a_linear_cost_leaves_the_largest_prefix():
    assert largest_prefix(lambda k: 2.0 + k, 10, 7.5) == 5
    assert largest_prefix(lambda k: 2.0 + k, 10, 7.0) == 5
    assert largest_prefix(lambda k: 2.0 + k, 10, 100.0) == 10
    assert largest_prefix(lambda k: 2.0 + k, 10, 2.9) == 0
    assert largest_prefix(lambda k: 2.0 + k, 0, 100.0) == 0


def test_a_dip_behind_a_bump_is_found():
    assert largest_prefix({1: 1.0, 2: 9.0, 3: 9.0, 4: 4.0, 5: 9.0}.__getitem__, 5, 5.0) == 4


def test_random_costs_that_rise_and_fall_match_their_definition():
    dice = random.Random(4)
    for _ in range(200):
        us = {k: dice.uniform(0, 10) for k in range(1, dice.randint(2, 40))}
        room = dice.uniform(-1, 11)
        fitting = [k for k, cost in us.items() if cost <= room]
        assert largest_prefix(us.__getitem__, len(us), room) == max(fitting, default=0)


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="-1 operators"):
        largest_prefix(float, -1, 1.0)

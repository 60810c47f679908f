"""Launches of a graph that need nothing of each other lie in branches of their own."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from rap_plans import every_operator
from rap_training.launches import fused, needs_of, unfused
from rap_training.sharing.captured import branches_of
from rap_training.work import Work, locality

pytestmark = pytest.mark.torch


def work() -> Work:
    plan = every_operator()
    home = (0,) * len(plan.sparse)
    return Work(plan=plan, rank=0, world=1, batch=4, home=home, mapping=locality(home))


@pytest.mark.parametrize("way", ["unfused", "fused"])
def test_a_launch_needs_those_that_make_its_inputs(way: str) -> None:
    launches = unfused(work()) if way == "unfused" else fused(work(), solver="asap")[0]
    needs = needs_of(launches)
    for at, launch in enumerate(launches):
        made = {member.key for other in needs[at] for member in launches[other].members}
        before = {member.key for other in launches[:at] for member in other.members}
        taken = {member.input for member in launch.members}
        assert taken & before <= made
        assert all(taken & {m.key for m in launches[other].members} for other in needs[at])
        assert all(other < at for other in needs[at])
    assert any(len(needed) > 1 for needed in needs) is (way == "fused")


def test_what_is_computed_elsewhere_is_not_waited_for() -> None:
    launches = unfused(work())
    needs = needs_of(launches)
    second = next(at for at, needed in enumerate(needs) if needed)
    assert needs_of(launches[second : second + 1]) == [set()]


def test_a_chain_stays_in_its_branch_and_others_get_their_own() -> None:
    assert branches_of([(), {0}, (), {1}, {2}, ()], 16) == [0, 0, 1, 0, 1, 2]


def test_of_several_branches_that_end_with_what_is_needed_the_shortest_goes_on() -> None:
    assert branches_of([(), {0}, (), {1, 2}], 16) == [0, 0, 1, 1]


def test_a_branch_that_went_on_is_not_waited_for_by_another_s_call() -> None:
    assert branches_of([(), {0}, {0}], 16) == [0, 0, 1]


def test_with_all_branches_begun_the_shortest_takes_what_is_left() -> None:
    assert branches_of([(), (), {0}, (), ()], most=2) == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("most", [1, 2, 16])
def test_no_more_branches_than_asked_for(most: int) -> None:
    numbers = random.Random(most)
    needs = [{numbers.randrange(at) for _ in range(2)} if at % 3 else set() for at in range(200)]
    assert set(branches_of(needs, most)) == set(range(most))

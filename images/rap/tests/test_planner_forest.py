import random
import time

import pytest
from rap_training.planner.forest import FusionError, FusionNode, improve, merge, polish


def random_forest(count, kinds, seed):
    dice = random.Random(seed)
    nodes = []
    for index in range(count):
        above = dice.choice([None, *(node.name for node in nodes)])
        nodes.append(FusionNode(f"n{index}", f"k{dice.randrange(kinds)}", above))
    return nodes


def valid(forest, levels):
    return all(
        forest.earliest[index] <= levels[index] <= forest.latest[index]
        and (item.parent is None or levels[item.parent] < levels[index])
        for index, item in enumerate(forest.items)
    )


@pytest.mark.parametrize("seed", range(10))
def test_merging_keeps_every_operator_and_every_edge(seed):
    nodes = random_forest(30, 2, seed)
    forest = merge(nodes)
    item_of = {name: index for index, item in enumerate(forest.items) for name in item.members}
    assert sorted(item_of) == sorted(node.name for node in nodes)
    for node in nodes:
        item = forest.items[item_of[node.name]]
        assert item.kind == node.kind
        assert item.parent == (None if node.input is None else item_of[node.input])


def test_windows_run_from_depth_to_what_the_longest_path_below_leaves():
    a, b, c = FusionNode("a", "x", None), FusionNode("b", "y", "a"), FusionNode("c", "z", None)
    forest = merge([a, b, c], 4)
    window = {
        item.members[0]: (forest.earliest[index], forest.latest[index])
        for index, item in enumerate(forest.items)
    }
    assert window == {"a": (0, 2), "b": (1, 3), "c": (0, 3)}


def test_operators_of_one_path_never_count_for_one_kernel():
    nodes = [FusionNode(str(i), "x", str(i - 1) if i else None) for i in range(3)]
    forest = merge(nodes, 8)
    assert set(forest.most.values()) == {1}
    assert forest.bound() == 3


def test_the_order_of_the_nodes_does_not_matter():
    nodes = random_forest(20, 3, 1)
    backwards = merge(nodes[::-1], 9)
    assert backwards.bound() == merge(nodes, 9).bound()
    assert len(backwards.items) == len(merge(nodes, 9).items)


@pytest.mark.parametrize("seed", range(10))
def test_local_search_gives_valid_levels_between_the_start_and_the_bound(seed):
    forest = merge(random_forest(25, 3, seed), 25)
    levels, value = improve(
        forest, forest.earliest, rounds=20, seed=seed, deadline=time.monotonic() + 5
    )
    assert valid(forest, levels)
    assert value == forest.objective(levels)
    assert forest.objective(forest.earliest) <= value <= forest.bound()
    polished = polish(forest, forest.latest, random.Random(seed))
    assert valid(forest, polished)
    assert forest.objective(polished) >= forest.objective(forest.latest)


def test_local_search_aligns_chains_that_are_shifted():
    nodes = [
        FusionNode("a0", "x", None), FusionNode("a1", "y", "a0"), FusionNode("a2", "z", "a1"),
        FusionNode("b0", "y", None), FusionNode("b1", "z", "b0"),
    ]  # fmt: skip
    forest = merge(nodes)
    assert forest.objective(forest.earliest) == 5
    assert improve(
        forest, forest.earliest, rounds=5, seed=0, deadline=time.monotonic() + 5
    )[1] == 9  # fmt: skip


@pytest.mark.parametrize("seed", [1, 6, 9])
def test_a_throw_without_gain_does_not_end_the_search(seed):
    forest = merge(random_forest(20, 2, seed), 9)
    one, many = (
        improve(forest, forest.earliest, rounds=rounds, seed=0, deadline=time.monotonic() + 60)[1]
        for rounds in (1, 100)
    )
    assert one < many


def test_a_long_chain_needs_no_recursion():
    nodes = [FusionNode(str(i), "x", str(i - 1) if i else None) for i in range(3000)]
    assert merge(nodes).levels == 3000


def test_too_few_levels_are_refused():
    with pytest.raises(FusionError, match="1 levels are fewer than the longest path of 2"):
        merge([FusionNode("a", "x", None), FusionNode("b", "x", "a")], 1)

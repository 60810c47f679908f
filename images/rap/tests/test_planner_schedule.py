import random

import pytest
from rap_training.planner.cost import StageCapacity, exposed
from rap_training.planner.fusion import FusionNode, Group, fuse
from rap_training.planner.schedule import schedule


def group(kind, level, count):
    return Group(kind, level, tuple(f"{kind}{level}_{index}" for index in range(count)))


def linear(_kind, count):
    return 2.0 + count


def test_the_stage_of_highest_intensity_is_filled_first():
    stages = (StageCapacity("a", 100.0, 10.0), StageCapacity("b", 10.0, 10.0))
    found = schedule([group("x", 0, 3)], stages, linear)
    assert [(part.stage, part.us, part.split) for part in found.placed] == [("b", 5.0, False)]
    assert found.overflow_us == 0.0


def test_selected_stages_are_filled_in_execution_order():
    stages = (StageCapacity("a", 100.0, 6.0), StageCapacity("b", 10.0, 6.0))
    found = schedule([group("x", 0, 3), group("y", 1, 4)], stages, linear)
    assert [(part.stage, part.kind) for part in found.placed] == [("a", "x"), ("b", "y")]


def test_what_fits_nowhere_is_not_put_beside_a_stage_that_hides_nothing():
    stages = (StageCapacity("a", 10.0, 9.0), StageCapacity("b", 10.0, 0.0))
    found = schedule([group("x", 0, 10)], stages, linear)
    assert {part.stage for part in found.placed} == {"a"}
    assert found.overflow_us == 3.0


def test_what_does_not_fit_is_split_at_the_largest_prefix():
    stages = (StageCapacity("a", 10.0, 9.0), StageCapacity("b", 10.0, 9.0))
    found = schedule([group("x", 0, 10)], stages, linear)
    assert [(p.stage, len(p.members), p.us, p.split) for p in found.placed] == [
        ("a", 7, 9.0, True), ("b", 3, 5.0, True),
    ]  # fmt: skip
    assert found.overflow_us == 0.0


def test_a_split_that_costs_a_launch_gets_one_more_stage():
    # 12 us in all fit into a and b; split they take 2 us more, which c has room for.
    stages = tuple(StageCapacity(name, 10.0, 6.0) for name in "abc")
    found = schedule([group("x", 0, 10)], stages, linear)
    assert [(p.stage, len(p.members)) for p in found.placed] == [("a", 4), ("b", 4), ("c", 2)]
    assert found.overflow_us == 0.0


def test_leftovers_go_to_the_last_selected_stage_and_are_counted():
    stages = (StageCapacity("a", 10.0, 5.0), StageCapacity("b", 10.0, 5.0))
    found = schedule([group("x", 0, 10)], stages, linear)
    assert [(p.stage, len(p.members)) for p in found.placed] == [("a", 3), ("b", 7)]
    assert found.overflow_us == pytest.approx(4.0)


def test_a_stage_without_capacity_takes_nothing_while_another_has_some():
    stages = tuple(StageCapacity(name, 10.0, us) for name, us in zip("abc", (5, 5, 0), strict=True))
    found = schedule([group("x", 0, 10)], stages, linear)
    assert [(p.stage, len(p.members)) for p in found.placed] == [("a", 3), ("b", 7)]


def test_without_capacity_all_is_overflow_of_the_last_stage():
    stages = (StageCapacity("a", 10.0, 0.0), StageCapacity("b", 10.0, 0.0))
    found = schedule([group("x", 0, 3)], stages, linear)
    assert [part.stage for part in found.placed] == ["b"]
    assert found.overflow_us == pytest.approx(5.0)


def test_nothing_to_place_is_an_empty_schedule():
    assert schedule([], (StageCapacity("a", 1.0, 1.0),), linear).placed == ()


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="no stage"):
        schedule([group("x", 0, 1)], (), linear)
    with pytest.raises(ValueError, match="levels fall"):
        schedule([group("x", 1, 1), group("x", 0, 1)], (StageCapacity("a", 1.0, 1.0),), linear)


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_keep_every_rule(seed):
    dice = random.Random(seed)
    nodes = random_forest(dice)
    cost = {kind: (dice.uniform(1, 3), dice.uniform(0.1, 1)) for kind in {n.kind for n in nodes}}
    bumps = {(kind, count): dice.uniform(0.8, 1.2) for kind in cost for count in range(1, 60)}

    def us_of(kind, count):  # not monotone, like a predictor made of trees
        floor, slope = cost[kind]
        return (floor + slope * count) * bumps[kind, count]

    groups = fuse(nodes, solver="asap").groups
    total = sum(us_of(g.kind, len(g.members)) for g in groups)
    stages = tuple(
        StageCapacity(name, dice.uniform(50, 500), dice.uniform(0, 0.5) * total)
        for name in ("emb_fwd", "mlp_fwd", "mlp_bwd", "emb_bwd", "grad_comm")
    )
    found = schedule(groups, stages, us_of)

    placed = [name for part in found.placed for name in part.members]
    assert sorted(placed) == sorted(node.name for node in nodes)
    position = {name: index for index, part in enumerate(found.placed) for name in part.members}
    for node in nodes:
        assert node.input is None or position[node.input] < position[node.name]
    order = [stage.name for stage in stages]
    at = [order.index(part.stage) for part in found.placed]
    assert at == sorted(at)
    kind = {node.name: node.kind for node in nodes}
    for part in found.placed:
        assert {kind[name] for name in part.members} == {part.kind}
        assert part.us == pytest.approx(us_of(part.kind, len(part.members)))
    load = {name: sum(p.us for p in found.of(name)) for name in order}
    for stage in stages[: max(at)]:
        assert load[stage.name] <= stage.capacity_us + 1e-6
    assert found.overflow_us == pytest.approx(exposed(load, stages), abs=1e-6)


def random_forest(dice):
    nodes = []
    for index in range(dice.randint(1, 50)):
        above = dice.choice([None, *(node.name for node in nodes)])
        nodes.append(FusionNode(f"n{index}", dice.choice("abcd"), above))
    return nodes

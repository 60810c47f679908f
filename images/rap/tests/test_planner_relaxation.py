import itertools
import random
import time

import pytest
from rap_training.planner.forest import FusionNode, merge
from rap_training.planner.relaxation import branch_and_bound, relax, tighten_by_triples


def random_chains(count, length, kinds, seed):
    dice = random.Random(seed)
    return [
        FusionNode(f"c{c}_{i}", f"k{dice.randrange(kinds)}", f"c{c}_{i - 1}" if i else None)
        for c in range(count)
        for i in range(length - (c == 0))
    ]


def objectives(forest, tables):
    """Every choice of schedules: what the tables sum to, and the forest's own objective."""
    for chosen in itertools.product(*(range(len(rows)) for rows in tables.schedules)):
        levels = list(forest.earliest)
        total = tables.constant
        for i, row in enumerate(chosen):
            total += tables.unary[i][row]
            total += sum(tables.pair[i, j][row, chosen[j]] for j in range(i))
            for index, level in zip(tables.trees[i], tables.schedules[i][row], strict=True):
                levels[index] = int(level)
        yield total, forest.objective(levels)


@pytest.mark.parametrize("seed", range(5))
def test_tables_sum_to_the_objective_before_and_after_sweeps(seed):
    long = [FusionNode(f"d{i}", f"k{i % 2}", f"d{i - 1}" if i else None) for i in range(4)]
    forest = merge(random_chains(4, 3, 2, seed) + long, 4)  # the long one has no choice
    tables = relax(forest)
    for sweep in range(4):
        for total, objective in objectives(forest, tables):
            assert total == pytest.approx(objective)
        tables.sweep(backwards=bool(sweep % 2))


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_falls_and_never_below_the_optimum(seed):
    forest = merge(random_chains(4, 3, 2, seed), 5)
    tables = relax(forest)
    optimum = max(objective for _, objective in objectives(forest, tables))
    bounds = [tables.bound()]
    for sweep in range(10):
        tables.sweep(backwards=bool(sweep % 2))
        bounds.append(tables.bound())
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(bounds))
    assert bounds[-1] >= optimum - 1e-6
    assert bounds[-1] <= forest.bound() + 1e-6


class Best:
    """The best plan seen among those that a search suggests."""

    def __init__(self, forest):
        self.forest, self.value = forest, forest.objective(forest.earliest)

    def __call__(self, suggested):
        levels = [suggested.get(i, level) for i, level in enumerate(self.forest.earliest)]
        self.value = max(self.value, self.forest.objective(levels))
        return self.value


@pytest.mark.parametrize("seed", range(5))
def test_branch_and_bound_ends_at_the_optimum(seed):
    forest = merge(random_chains(5, 4, 3, seed), 5)
    best = Best(forest)
    optimum = max(objective for _, objective in objectives(forest, relax(forest)))
    bound = branch_and_bound(relax(forest), stop_at=best, deadline=time.monotonic() + 30)
    assert best.value == bound == optimum


@pytest.mark.parametrize("seed", range(12))
def test_triples_lower_the_bound_and_never_below_the_optimum(seed):
    forest = merge(random_chains(5, 4, 2, seed), 5)
    tables = relax(forest)
    optimum = max(objective for _, objective in objectives(forest, relax(forest)))
    pairs = tables.tighten(200, enough=0.0, deadline=time.monotonic() + 30)
    triples = tighten_by_triples(tables, stop_at=lambda _: 0.0, deadline=time.monotonic() + 30)
    assert optimum - 1e-6 <= triples <= pairs + 1e-6
    assert tables.bound() == pytest.approx(triples)
    best = Best(forest)
    bound = branch_and_bound(tables, stop_at=best, deadline=time.monotonic() + 30)
    assert best.value == bound == optimum


def test_triples_lower_the_bound_by_much_on_mixed_orders():
    forest = merge(random_chains(13, 6, 5, 0), 8)
    tables = relax(forest)
    pairs = tables.tighten(200, enough=0.0, deadline=time.monotonic() + 30)
    best = Best(forest)
    triples = tighten_by_triples(tables, stop_at=best, deadline=time.monotonic() + 60)
    assert best.value <= triples
    assert triples < pairs - 2
    assert pairs < 0.7 * forest.bound()


def test_out_of_time_the_bound_is_still_one():
    forest = merge(random_chains(12, 5, 4, 0), 7)
    tables = relax(forest)
    first = tables.bound()
    assert branch_and_bound(tables, stop_at=lambda _: 0.0, deadline=0.0) == first


def test_trees_with_too_many_schedules_are_left_to_the_solver():
    assert relax(merge(random_chains(3, 6, 4, 0), 14)) is None


def test_fixed_trees_count_without_tables():
    nodes = random_chains(4, 3, 2, 0)
    tables = relax(merge(nodes))  # only the shorter chain has a choice
    assert (len(tables.unary), tables.pair) == (1, {})

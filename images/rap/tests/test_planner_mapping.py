import random
from itertools import pairwise

import pytest
from rap_training.planner.mapping import EVERYWHERE, search


class Machine:
    """GPUs that take 100 us plus the work on them; moved features cost 1 us each."""

    def __init__(self, work, home, gpus, *, base=None, per_move=1.0, launch=0.0):
        self.work, self.home, self.gpus, self.calls = work, home, gpus, 0
        self.base, self.per_move, self.launch = base or [100.0] * gpus, per_move, launch

    def time_of(self, mapping):
        self.calls += 1
        times = list(self.base)
        for feature, gpu in mapping.items():
            for each in range(self.gpus) if gpu == EVERYWHERE else (gpu,):
                share = self.gpus if gpu == EVERYWHERE else 1
                times[each] += self.work[feature] / share + self.launch
        return times

    def communication_us(self, mapping):
        return self.per_move * sum(mapping[f] != self.home[f] for f in mapping)

    def search(self, **options):
        return search(
            list(self.work), self.home, self.gpus, self.time_of, self.communication_us, **options
        )


def locality_us(machine):
    return max(machine.time_of(machine.home)) + machine.communication_us(machine.home)


def test_work_moves_off_the_busiest_gpu():
    work = {f"f{index}": 10.0 for index in range(8)}
    machine = Machine(work, dict.fromkeys(work, 0), 2)
    found = machine.search(data_parallel=False)
    # k moves: max(180 - 10 k, 100 + 10 k) + k is least at k = 4.
    assert found.us == pytest.approx(144.0)
    assert sorted(found.gpu_of.values()) == [0] * 4 + [1] * 4
    assert found.moves == 4
    assert found.history == pytest.approx((180.0, 171.0, 162.0, 153.0, 144.0))


def test_a_balanced_mapping_stays():
    work = {f"f{index}": 10.0 for index in range(4)}
    home = {"f0": 0, "f1": 0, "f2": 1, "f3": 1}
    found = Machine(work, home, 2).search()
    assert (found.gpu_of, found.moves, found.history) == (home, 0, (120.0,))


def test_dear_communication_keeps_everything_at_home():
    work = {f"f{index}": 10.0 for index in range(8)}
    machine = Machine(work, dict.fromkeys(work, 0), 2, per_move=50.0)
    assert machine.search().gpu_of == machine.home


def test_one_large_feature_is_shared_by_all_gpus():
    machine = Machine({"f": 80.0}, {"f": 0}, 4)
    found = machine.search()
    assert found.gpu_of == {"f": EVERYWHERE}
    assert found.us == pytest.approx(121.0)
    assert machine.search(data_parallel=False).gpu_of == {"f": 0}


def test_a_feature_that_is_everywhere_moves_to_one_gpu():
    """Leaving home costs 70 us once: from locality no single move pays, from everywhere both do."""
    work = {"a": 10.0, "b": 10.0}
    machine = Machine(work, dict.fromkeys(work, 0), 2, base=[100.0, 0.0], launch=30.0)
    machine.communication_us = lambda mapping: 70.0 * (mapping != machine.home)
    assert locality_us(machine) == 180.0
    found = machine.search()
    assert found.gpu_of == {"a": 1, "b": 1}
    assert found.history == (240.0, 205.0, 170.0)
    assert machine.search(data_parallel=False).gpu_of == machine.home


def test_a_feature_that_is_everywhere_may_go_home():
    """Home is not the idlest GPU, but costs no communication."""
    work = {"a": 20.0, "b": 30.0, "c": 30.0}
    home = {"a": 2, "b": 1, "c": 1}
    machine = Machine(work, home, 3, base=[0.0, 50.0, 100.0], per_move=10.0, launch=10.0)
    assert locality_us(machine) == 130.0
    found = machine.search()
    assert found.gpu_of == {"a": 0, "b": 1, "c": 0}
    assert found.us == 120.0


def test_two_equally_busy_gpus_do_not_end_the_search():
    work = {f"f{index}": 10.0 for index in range(8)}
    home = {name: index % 2 for index, name in enumerate(work)}
    machine = Machine(work, home, 4, per_move=0.0)
    found = machine.search(data_parallel=False)
    assert found.us == pytest.approx(120.0)


@pytest.mark.parametrize("seed", range(20))
def test_the_result_is_never_worse_than_locality_and_is_what_it_says(seed):
    dice = random.Random(seed)
    gpus = dice.randint(1, 4)
    work = {f"f{index}": dice.uniform(0, 30) for index in range(dice.randint(0, 12))}
    home = {name: dice.randrange(gpus) for name in work}
    machine = Machine(
        work, home, gpus, base=[dice.uniform(50, 100) for _ in range(gpus)],
        per_move=dice.uniform(0, 10), launch=dice.uniform(0, 3),
    )  # fmt: skip
    found = machine.search()
    assert found.us <= locality_us(machine) + 1e-9
    again = max(machine.time_of(found.gpu_of)) + machine.communication_us(found.gpu_of)
    assert found.us == pytest.approx(again)
    assert found.history[-1] == found.us
    assert len(found.history) == found.moves + 1
    assert all(later <= before + 1e-3 for before, later in pairwise(found.history))


def test_rounds_bound_the_moves_and_a_mapping_is_evaluated_once():
    work = {f"f{index}": 10.0 for index in range(8)}
    machine = Machine(work, dict.fromkeys(work, 0), 2)
    assert machine.search(rounds=2, data_parallel=False).moves == 2
    machine.calls = 0
    machine.search(rounds=1, data_parallel=False)
    assert machine.calls == 1 + len(work)


def test_only_features_of_the_busiest_gpu_are_tried():
    work = {f"f{index}": 10.0 for index in range(6)}
    machine = Machine(work, {name: int(name in ("f4", "f5")) for name in work}, 3)
    machine.search(rounds=1, data_parallel=False)
    assert machine.calls == 1 + 4


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="feature f has no home among 2 GPUs"):
        search(["f"], {"f": 2}, 2, lambda _: [1.0, 1.0], lambda _: 0.0)
    with pytest.raises(ValueError, match="1 times for 2 GPUs"):
        search(["f"], {"f": 1}, 2, lambda _: [1.0], lambda _: 0.0)

import random

import pytest
from rap_training.planner.capacity import STAGES, search, trimmed_mean


def test_stages_are_the_papers_in_execution_order():
    assert STAGES == ("emb_fwd", "mlp_fwd", "mlp_bwd", "emb_bwd", "grad_comm")


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 17, 64, 100, 1000, 4095])
def test_a_knee_is_found_to_a_window_of_two(limit):
    found = search(lambda probes: 0.0 if probes <= limit else 0.5, safety=1.0)
    assert limit - 2 < found.probes <= limit
    assert found.slowdown == 0.0


def test_safety_takes_a_fifth_off():
    found = search(lambda probes: 0.001 * probes)
    assert 0.8 * 68 - 1 <= found.probes <= 0.8 * 70
    assert found.slowdown == pytest.approx(0.001 * found.probes)


def test_a_stage_without_room_has_capacity_zero():
    found = search(lambda _: 0.2)
    assert (found.probes, found.slowdown) == (0, 0.0)
    assert found.tried == ((1, 0.2),)


def test_a_stage_that_never_slows_ends_at_the_cap():
    assert search(lambda _: 0.0, cap=100).probes == 80
    assert search(lambda _: 0.0, cap=100, safety=1.0).probes == 100
    assert max(probes for probes, _ in search(lambda _: 0.0, cap=100).tried) == 100


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("slope", [0.0003, 0.002, 0.01])
def test_noise_of_two_percent_moves_the_result_little(seed, slope):
    dice = random.Random(seed)
    found = search(lambda probes: slope * probes + dice.gauss(0, 0.02), repeats=10)
    exact = 0.8 * 0.07 / slope
    assert 0.6 * exact - 2 <= found.probes <= 1.35 * exact + 1


def test_a_single_spike_does_not_end_the_search():
    calls = []

    def slowdown_of(probes):
        calls.append(probes)
        return 0.1 if len(calls) == 1 else 0.0 if probes <= 50 else 1.0

    assert search(slowdown_of).probes in (39, 40)


def test_the_result_is_measured_again_and_lowered_until_it_holds():
    seen = []

    def slowdown_of(probes):  # by the end the machine has become slower
        seen.append(probes)
        return probes / 1000 if len(seen) < 10 else probes / 500

    found = search(slowdown_of)
    assert 0 < found.probes <= 35
    assert found.slowdown < 0.07


def test_what_was_tried_doubles_first_and_ends_at_the_result():
    found = search(lambda probes: 0.0 if probes <= 20 else 1.0)
    assert [probes for probes, _ in found.tried[:6]] == [1, 2, 4, 8, 16, 32]
    assert found.tried[-1][0] == found.probes


def test_the_trimmed_mean_drops_a_fifth_at_either_end():
    assert trimmed_mean([100, 0, 3, 4, 5, 6, 5, 4, 99, 1]) == pytest.approx(27 / 6)
    assert trimmed_mean([7.0]) == 7.0


@pytest.mark.parametrize("bad", [{"threshold": 0}, {"safety": 1.1}, {"cap": 0}, {"repeats": 0}])
def test_arguments_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match="fix: threshold above 0"):
        search(lambda _: 0.0, **bad)

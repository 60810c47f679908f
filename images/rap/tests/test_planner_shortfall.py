"""Why an iteration takes longer than training alone: every cause, by numbers of a plan."""

import pytest
from rap_training.planner.cost import StageCapacity
from rap_training.planner.shortfall import ENOUGH, Batch, why_below

# As measured on an H200: stages of 25.8 to 1,189 us.
STAGES = (
    StageCapacity("emb_fwd", 25.8, 39.9),
    StageCapacity("mlp_fwd", 564.8, 73.5),
    StageCapacity("mlp_bwd", 1189.2, 142.9),
    StageCapacity("emb_bwd", 69.9, 109.2),
    StageCapacity("grad_comm", 9.3, 12.6),
)
IDEAL = 1859.0


def batch(**changed):
    given = {"busy_us": 100.0, "kernels": 4, "longest": "chains_1", "longest_us": 60.0}
    return Batch(**{**given, **changed})


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"busy_us": 420.0},
         "keeps the GPU busy for 420.0 us, and training hides 378.1: 41.9 us fit nowhere"),
        ({"busy_us": 378.0}, "378.0 us, over 50% of the 378.1 us that training hides"),
        ({"busy_us": 189.0, "longest_us": 150.0},
         "its longest kernel, chains_1, takes 150.0 us and fits no gap: the roomiest stage, "
         "mlp_bwd, hides 142.9"),
        ({"copy_us": 2000.0, "exchange_us": 1900.0},
         "copies from the host take 2000.0 us, longer than training"),
        ({"copy_us": 30.0, "exchange_us": 1900.0},
         "exchanges between GPUs take 1900.0 us, longer than training"),
        ({}, "the plan's numbers do not explain it"),
    ],
)  # fmt: skip
def test_the_first_cause_that_holds_is_named_with_all_numbers(given, cause):
    there = batch(**given)
    reason = why_below(2 * IDEAL, IDEAL, there, STAGES)
    assert reason.startswith("0.500 of training alone, 1859.0 us an iteration more: ")
    assert cause in reason
    assert reason.endswith(
        f"(idle capacity 378.1 us of 1859.0; GPU busy {there.busy_us:.1f} us in 4 kernels, the "
        f"longest {there.longest_us:.1f}; copies {there.copy_us:.1f} us, "
        f"exchanges {there.exchange_us:.1f})"
    )


def test_kernels_that_cost_what_they_take_alone_were_not_hidden():
    """As lists of 50 ids do on an H200 (docs/rap.md)."""
    reasons = [why_below(IDEAL + us, IDEAL, batch(), STAGES) for us in (89.0, 91.0, 109.0, 111.0)]
    paid = ["cost the 100.0 us that they take alone" in reason for reason in reasons]
    assert paid == [False, True, True, False]
    assert why_below(IDEAL + 37.0, IDEAL, batch(busy_us=35.0), STAGES) == ""


def test_a_slowdown_that_stages_had_when_they_were_measured_is_one():
    there = batch(busy_us=60.0)
    within, beyond = (why_below(IDEAL * more, IDEAL, there, STAGES) for more in (1.069, 1.071))
    assert "become up to 7% slower by it, and this is within that" in within
    assert "do not explain it" in beyond


def test_who_reaches_it_needs_no_reason():
    assert why_below(IDEAL / ENOUGH, IDEAL, batch(busy_us=9999.0), STAGES) == ""
    assert why_below(IDEAL / (ENOUGH - 1e-6), IDEAL, batch(), STAGES)

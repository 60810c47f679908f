"""RAP is the fastest way, of equal ones the simplest, and says which term decided."""

import pytest
from rap_training.planner.choice import WAYS, Estimate, choose


def way(**changed):
    """A schedule of few launches: training of 1,000 us that hides all."""
    given = {"training_us": 1000.0, "overflow_us": 0.0, "launches": 5, "gates": 1,
             "launch_us": 5.0, "gate_us": 4.0}  # fmt: skip
    return Estimate(**{**given, **changed})


def test_an_iteration_is_the_slower_of_host_and_device():
    assert way().us == 1000.0
    assert way(overflow_us=200.0).us == 1200.0
    hosted = way(launches=400)
    assert (hosted.host_us, hosted.device_us, hosted.us) == (2004.0, 1000.0, 2004.0)


def test_a_light_plan_is_a_stream_by_the_model_alone():
    """Few features, a short step: what the gates cost is all there is."""
    small = {"training_us": 30.0, "launches": 4}
    choice = choose({"gated": way(gates=5, **small), "stream": way(gates=1, **small)})
    assert choice.way == "stream"
    assert choice.reason == (
        "a plain stream: 30.0 us an iteration against 40.0 us gated by training stages, predicted; "
        "gates decide: 20.0 us against 4.0"
    )


def test_many_launches_are_worth_gates_and_fusion():
    choice = choose({"gated": way(launches=40, gates=5), "stream": way(launches=495)})
    assert choice.way == "gated"
    assert choice.reason.startswith("gated by training stages: 1000.0 us an iteration against ")
    assert choice.reason.endswith("launches decide: 2475.0 us against 200.0")


def test_work_that_training_does_not_hide_is_a_term():
    choice = choose({"gated": way(gates=5), "stream": way(overflow_us=300.0)})
    assert choice.way == "gated"
    assert choice.reason.endswith("overflow decide: 300.0 us against 0.0")


@pytest.mark.parametrize(
    ("gated", "plain", "stream"),
    [
        ([100.0, 101.0, 99.0], [103.5, 104.0, 103.0], False),
        ([103.5, 104.0, 103.0], [100.0, 101.0, 99.0], True),
        ([100.0] * 3, [100.0] * 3, True),  # not slower
        ([100.0, 101.0, 99.0], [100.1, 101.1, 99.1], False),
        ([100.0, 100.0, 900.0], [101.0, 101.0, 5.0], False),  # one spike decides nothing
    ],
)
def test_what_was_measured_decides_whatever_the_model_says(gated, plain, stream):
    for ours, theirs in ((way(), way(overflow_us=500.0)), (way(overflow_us=500.0), way())):
        choice = choose({"gated": ours, "stream": theirs}, {"gated": gated, "stream": plain})
        assert (choice.way == "stream") is stream
        assert "measured in 3 turns" in choice.reason


@pytest.mark.parametrize(
    ("taken", "wanted"),
    [
        (  # plan 1, batch 4096: 0.968 of training alone as a stream, 0.989 without gates
            {
                "gated": [1904.08, 1909.07, 1909.75],
                "ungated": [1901.43, 1904.75, 1906.23],
                "stream": [1913.15, 1920.84, 1909.89],
            },
            "ungated",
        ),
        (  # RAP+ of plan 3
            {"at_once": [6753.0, 6749.0, 6751.0], "emb_bwd": [6725.0, 6731.0, 6728.0]},
            "emb_bwd",
        ),
        ({way: [100.0, 101.0, 99.0] for way in reversed(WAYS)}, "stream"),
    ],
)
def test_a_small_difference_counts(taken, wanted):
    assert choose({}, taken).way == wanted


def test_a_model_that_sees_no_difference_says_so():
    choice = choose({"gated": way(), "stream": way()}, {"gated": [100.0], "stream": [90.0]})
    assert choice.way == "stream"
    assert choice.reason.endswith("by the cost model no term decides")


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ((300.0, 200.0, 250.0), "ungated"),
        ((200.0, 200.0, 250.0), "ungated"),  # gates bring nothing
        ((200.0, 210.0, 250.0), "gated"),
        ((200.0, 199.5, 199.5), "stream"),
    ],
)
def test_fused_launches_without_gates_are_between_the_two(times, wanted):
    gated, ungated, stream = times
    models = {
        "gated": way(gates=5, overflow_us=900.0), "ungated": way(overflow_us=700.0),
        "stream": way(launches=400, overflow_us=900.0),
    }  # fmt: skip
    taken = {"gated": [gated], "ungated": [ungated], "stream": [stream]}
    choice = choose(models, taken)
    assert choice.way == wanted
    others = [f"{us:.1f} us {WAYS[way]}" for way, (us,) in taken.items() if way != wanted]
    assert choice.reason.startswith(
        f"{WAYS[wanted]}: {taken[wanted][0]:.1f} us an iteration against {', '.join(others)}, "
        "measured in 1 turns; "
    )


def test_ways_without_a_model_are_measured():
    taken = {"at_once": [100.0], "in_line": [99.0], "mlp_bwd": [96.0]}
    choice = choose({}, taken)
    assert choice.way == "mlp_bwd"
    assert choice.reason == (
        "begun with mlp_bwd: 96.0 us an iteration against 100.0 us begun at once, "
        "99.0 us in line with training, measured in 1 turns"
    )
    assert choose({}, {**taken, "mlp_bwd": [99.0]}).way == "in_line"
    assert choose({}, {**taken, "in_line": [100.0], "mlp_bwd": [100.0]}).way == "at_once"

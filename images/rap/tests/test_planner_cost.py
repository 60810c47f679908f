import pytest
from rap_training.planner.cost import StageCapacity, exposed

STAGES = (StageCapacity("a", 100.0, 30.0), StageCapacity("b", 50.0, 25.0))


def test_work_inside_the_capacity_of_its_stage_is_free():
    assert exposed({"a": 30.0, "b": 25.0}, STAGES) == 0.0
    assert exposed({}, STAGES) == 0.0


def test_room_in_one_stage_does_not_pay_for_another():
    assert exposed({"a": 45.0, "b": 5.0}, STAGES) == pytest.approx(15.0)
    assert exposed({"a": 45.0, "b": 26.0}, STAGES) == pytest.approx(16.0)


def test_intensity_is_capacity_per_time():
    assert [stage.intensity for stage in STAGES] == pytest.approx([0.3, 0.5])


@pytest.mark.parametrize(("us", "capacity_us"), [(0.0, 1.0), (1.0, -1.0), (float("nan"), 1.0)])
def test_a_stage_that_cannot_be_is_refused(us, capacity_us):
    with pytest.raises(ValueError, match="stage x takes"):
        StageCapacity("x", us, capacity_us)


def test_an_unknown_stage_is_refused():
    with pytest.raises(ValueError, match="no stage c; fix: one of a, b"):
        exposed({"c": 1.0}, STAGES)

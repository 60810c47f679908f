import time

import pytest
from reprokit.timing import interleave, microseconds


def test_calls_take_turns_and_each_round_starts_with_the_next():
    order = []

    def call(name):
        def sample(number):
            order.append((number, name))
            return float(number)

        return sample

    kept = interleave({name: call(name) for name in "abc"}, samples=2, warmup=1)
    assert order == [
        (0, "a"), (0, "b"), (0, "c"),
        (1, "b"), (1, "c"), (1, "a"),
        (2, "c"), (2, "a"), (2, "b"),
    ]  # fmt: skip
    assert kept == {"a": [1.0, 2.0], "b": [1.0, 2.0], "c": [1.0, 2.0]}


def test_every_finished_round_is_told():
    rounds = []
    interleave({"a": float}, samples=2, warmup=2, on_round=rounds.append)
    assert rounds == [0, 1, 2, 3]


@pytest.mark.parametrize(("samples", "warmup"), [(0, 1), (1, -1)])
def test_senseless_counts_are_refused(samples, warmup):
    with pytest.raises(ValueError, match="at least one sample"):
        interleave({"a": float}, samples=samples, warmup=warmup)


def test_microseconds_are_microseconds():
    assert 10_000 <= microseconds(lambda: time.sleep(0.01)) < 1_000_000

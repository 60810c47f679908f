"""Into what one profiled iteration's time falls."""

from __future__ import annotations

import pytest
from pasta_workloads.breakdown import breakdown

STAGES = {"collection": 99.0, "transfer": 6.0, "analysis": 12.0}  # of all iterations


def test_the_parts_of_an_iteration_add_up() -> None:
    parts = breakdown(2.0, 20.0, STAGES, iterations=3)
    assert parts == {"execution": 2.0, "collection": 12.0, "transfer": 2.0, "analysis": 4.0}
    assert sum(parts.values()) == 20.0


def test_threads_share_the_cpus_work() -> None:
    parts = breakdown(2.0, 20.0, STAGES, iterations=3, threads=4)
    assert (parts["transfer"], parts["analysis"]) == (0.5, 1.0)
    assert sum(parts.values()) == 20.0


def test_nothing_is_left_where_threads_worked_beside_the_program() -> None:
    assert breakdown(2.0, 5.0, STAGES, iterations=1)["collection"] == 0.0


@pytest.mark.parametrize(("iterations", "threads"), [(0, 1), (1, 0)])
def test_what_cannot_be_divided(iterations: int, threads: int) -> None:
    with pytest.raises(ValueError, match="at least 1 of both"):
        breakdown(1.0, 2.0, STAGES, iterations=iterations, threads=threads)

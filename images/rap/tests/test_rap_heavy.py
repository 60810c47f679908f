"""Plans as heavy as wanted by busy time: the search, and what the experiment records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rap_plans import every_operator
from rap_ranks import needs_two_gpus
from rap_training.busy import covered
from rap_training.cli import main
from rap_training.experiments.heavy import CLOSE, TRIES, search
from rap_training.plan.files import dump
from rap_training.timeline import Span

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

WORDS = (
    "--iterations", "4", "--warmup", "1", "--repeats", "2", "--batches", "2",
    "--solver-seconds", "3",
)  # fmt: skip
MACHINES: dict[str, Callable[[float], float]] = {
    "in proportion": lambda factor: 0.34 * factor,
    "with a part that stays": lambda factor: 0.2 + 0.14 * factor,
    "faster when larger": lambda factor: 0.34 * factor**0.8,
    "slower when larger": lambda factor: 0.34 * factor**1.2,
}


@pytest.mark.parametrize("wanted", [1.0, 2.0])
@pytest.mark.parametrize("machine", MACHINES)
def test_a_wanted_ratio_is_met_in_a_few_tries(machine: str, wanted: float) -> None:
    tries = search(wanted, MACHINES[machine])
    assert abs(tries[-1].ratio / wanted - 1) <= CLOSE
    assert len(tries) <= 5
    assert tries[0].factor == 1.0
    assert [each.ratio for each in tries] == [MACHINES[machine](each.factor) for each in tries]
    assert tries == search(wanted, MACHINES[machine])


def test_a_plan_that_is_too_heavy_is_left_as_it_is() -> None:
    assert [each.factor for each in search(1.0, lambda factor: 3.0 * factor)] == [1.0]


def test_a_search_that_leads_nowhere_ends() -> None:
    assert len(search(1.0, lambda factor: 0.3)) == 2
    steps = iter(range(100))
    assert len(search(1.0, lambda factor: 0.1 + 0.001 * next(steps))) <= TRIES


def test_time_that_two_kernels_share_is_counted_once() -> None:
    spans = [(0.0, 10.0), (5.0, 12.0), (6.0, 8.0), (20.0, 21.0)]
    found = [Span(lane="train", name="", start=start, end=end) for start, end in spans]
    assert covered(found) == 13.0
    assert covered([]) == 0.0


def records(out: Path, metric: str) -> list[dict[str, Any]]:
    lines = (out / "records.jsonl").read_text().splitlines()
    return [found for line in lines if (found := json.loads(line))["metric"] == metric]


@pytest.mark.slow
def test_the_search_and_the_gains_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, where busy is what the host takes."""
    monkeypatch.setenv("AE_OUT", str(tmp_path))
    (tmp_path / "every.json").write_text(dump(every_operator()))
    variants = "sequential,sequential_graph,sequential_fused_graph,ideal"
    words = ["heavy", "--plan-file", str(tmp_path / "every.json"), "--batch", "20", "--load", "0.5"]
    assert main([*words, *WORDS, "--variants", variants]) == 0
    tried = records(tmp_path, "tried_busy_ratio")
    assert [each["labels"]["try"] for each in tried] == [str(n) for n in range(len(tried))]
    (reached,) = records(tmp_path, "busy_ratio")
    assert reached["samples"] == tried[-1]["samples"]
    times = {r["labels"]["variant"]: r["samples"] for r in records(tmp_path, "iteration_time")}
    assert set(times) == set(variants.split(","))
    gains = {r["labels"]["part"]: r for r in records(tmp_path, "gain")}
    assert set(gains) == {"graph", "fusion"}
    for part, before, after in (
        ("graph", "sequential", "sequential_graph"),
        ("fusion", "sequential_graph", "sequential_fused_graph"),
    ):
        wanted = [old / new for old, new in zip(times[before], times[after], strict=True)]
        assert gains[part]["samples"] == pytest.approx(wanted)
        assert gains[part]["labels"]["variant"] == after


@pytest.mark.gpu
@pytest.mark.timed
@pytest.mark.parametrize("gpus", [1, pytest.param(2, marks=needs_two_gpus)])
def test_plan_2_keeps_a_gpu_as_busy_as_its_training(
    gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Needs the GPU alone: kernels' own time grows where another process takes turns on it."""
    monkeypatch.setenv("AE_OUT", str(tmp_path))
    words = ["heavy", "--device", "cuda", "--gpus", str(gpus), "--plan", "2", "--scale", "0.01"]
    assert main([*words, *WORDS, "--variants", "sequential,ideal"]) == 0
    (reached,) = records(tmp_path, "busy_ratio")
    assert reached["samples"][0] == pytest.approx(1.0, rel=CLOSE)
    (busy,) = records(tmp_path, "training_busy")
    alone = {r["labels"]["variant"]: r["samples"][-1] for r in records(tmp_path, "iteration_time")}
    least = 0.5 if gpus == 1 else 0.1  # without what GPUs send each other
    assert least * alone["ideal"] < busy["samples"][0] / 1000 <= 1.1 * alone["ideal"]

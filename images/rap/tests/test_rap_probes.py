"""Probes measure what they say: kernels of the asked shape, stages that learn nothing meanwhile."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from rap_plans import every_operator
from rap_ranks import needs_two_gpus
from rap_sessions import SMALL, Told, second_is_slower
from rap_training.backends import NumpyBackend
from rap_training.config import Config
from rap_training.launcher import run_session
from rap_training.launches import Call, Launch
from rap_training.memory import Buffers
from rap_training.plan.files import dump
from rap_training.plan.operators import OPERATORS
from rap_training.planner.capacity import STAGES
from rap_training.planner.latency import Shape, shapes
from rap_training.rank import Rank
from rap_training.sharing import probes
from rap_training.sharing.lanes import lanes
from rap_training.sharing.rap import shape_of
from rap_training.train.collectives import Collectives

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

CPU = torch.device("cpu")


class Noting(NumpyBackend):
    """Keeps what it was asked to bind."""

    def __init__(self) -> None:
        self.launches: list[tuple[Launch, Buffers]] = []

    def bind(self, launch: Launch, buffers: Buffers, slot: int) -> Call:
        self.launches.append((launch, buffers))
        return super().bind(launch, buffers, slot)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("AE_OUT", str(tmp_path))
    (tmp_path / "every.json").write_text(dump(every_operator()))
    return replace(SMALL, gpus=1, batch=20, plan_file=str(tmp_path / "every.json"))


@pytest.fixture
def rank(config: Config) -> Iterator[Rank]:
    there = Rank(config, 0, lambda kind, **what: None)
    yield there
    there.close()


@pytest.mark.parametrize("op", OPERATORS)
def test_a_kernel_has_the_asked_shape(op: str) -> None:
    for width in (1, 2, 3, 4, 7, 8, 30, 64):
        for fused in (1, 3):
            backend = Noting()
            shape = Shape(op=op, rows=11, width=width, fused=fused)
            call = probes.kernel(shape, backend, CPU)
            ((launch, buffers),) = backend.launches
            assert launch.elements == shape.elements
            assert shape_of(launch) == shape  # by which a plan's launches are predicted
            assert {member.node.op for member in launch.members} == {op}
            places = {buffers.value(0, m.key)[0].data_ptr() for m in launch.members}
            assert len(places) == fused
            call()


def test_every_shape_of_the_predictor_can_be_made() -> None:
    asked = shapes([16], seed=1)
    assert {shape.op for shape in asked} == set(OPERATORS)
    for shape in asked:
        width, parameters = probes._inputs(shape)
        assert width >= 1
        assert set(parameters) | {"n"} >= set(OPERATORS[shape.op].parameters)


def test_few_are_the_smallest_of_each_operator() -> None:
    asked = shapes([16, 64], seed=1)
    found = probes.few(asked, 4)
    assert set(Counter(shape.op for shape in found).values()) == {4}
    for op in OPERATORS:
        sizes = sorted(shape.elements for shape in asked if shape.op == op)
        assert [shape.elements for shape in found if shape.op == op] == sizes[:4]


def test_latencies_are_measured_in_the_asked_order() -> None:
    asked = [Shape("clamp", 64, 2, 1), Shape("ngram", 4096, 16, 4)]
    steps: list[int] = []
    found = probes.measure_latencies(asked, NumpyBackend(), CPU, lambda: steps.append(1))
    assert [measured.shape for measured in found] == asked
    assert 0 < found[0].us < found[1].us
    assert len(steps) == 2


def test_stages_are_probed_and_nothing_is_learnt(rank: Rank) -> None:
    trainer = rank.trainer
    before = trainer.weights.clone(), trainer._flat.clone()
    rate = float(trainer._rate)
    found = rank.stage_probes
    assert [probe.stage for probe in found] == list(STAGES)
    for probe in found:
        assert probe.us > 0
        assert probe.probe_us > 0
        assert probe.capacity_us == probe.capacity.probes * probe.probe_us >= 0
        assert probe.cost().name == probe.stage
    assert torch.equal(trainer.weights, before[0])
    assert torch.equal(trainer._flat, before[1])
    assert float(trainer._rate) == rate > 0


def test_a_clock_that_drifts_makes_no_stage_slower(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = count(1000, 10)
    monkeypatch.setattr(probes, "_host_us", lambda call: (call(), float(next(clock)))[1])
    alone, beside = probes._stage_us(
        rank.trainer, "mlp_fwd", rank.lanes(True), [], rank.collectives
    )
    assert (alone, beside) == (1040.0, 1050.0)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_probe_that_outlasts_a_stage_is_not_hidden_by_it(device: str) -> None:
    """Work of a second lane, a tenth and ten times as long as the stage."""
    there = torch.device(device)

    def work(seconds: float) -> Callable[[], object]:
        return lambda: (
            torch.cuda._sleep(int(1e9 * seconds)) if device == "cuda" else time.sleep(seconds)
        )

    class Stage:
        device = there

        def run(self, stage: str, slot: int) -> None:
            work(0.01)()

    def slowdown(seconds: float) -> float:
        stage: Any = Stage()
        own = Collectives(rank=0, world=1)
        alone, beside = probes._stage_us(stage, "emb_fwd", lanes(there), [work(seconds)], own)
        return beside / alone

    assert slowdown(0.001) < 1.5
    assert slowdown(0.1) > 5


def test_one_rank_exchanges_for_nothing() -> None:
    assert probes.exchange_costs(Collectives(rank=0, world=1), CPU) == (0.0, float("inf"))


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_two_gpus])]
)
def test_ranks_probe_in_step_although_one_is_slower(config: Config, device: str) -> None:
    """Every try is of all ranks, so their number must not depend on what one of them measured."""
    told = Told()
    there = replace(config, gpus=2, device=device)
    job = f"rap_sessions:{second_is_slower.__name__}"
    run_session(there, job, told, variants=there.variants)
    (fact,) = [fact["value"] for fact in told.of("fact") if fact["name"] == "found"]
    assert fact[0] == fact[1]
    stages, exchange = fact[0]
    assert [stage for stage, *_ in stages] == list(STAGES)
    assert min(exchange) > 0
    if device == "cuda":
        assert exchange[0] < 1000  # us; the host takes 2 ms to queue one


@pytest.mark.gpu
def test_a_stage_that_a_slow_host_queues_is_not_timed_with_the_host() -> None:
    """One that takes the host 2 ms to queue, and the GPU next to nothing."""

    class Slow:
        device = torch.device("cuda")

        def run(self, stage: str, slot: int) -> None:
            time.sleep(0.002)
            torch.cuda._sleep(1_000)

    slow: Any = Slow()
    found = probes._stage_us(slow, "emb_fwd", lanes(Slow.device), [], Collectives(rank=0, world=1))
    assert max(found) < 200

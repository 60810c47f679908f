"""Real worker processes: their batches, and what becomes of a run when one is gone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rap_plans import ROWS, batch, every_operator
from rap_sessions import SMALL, living
from rap_training import throughput
from rap_training.backends import NumpyBackend
from rap_training.data.columns import RawBatch
from rap_training.feed import Feed
from rap_training.launches import unfused
from rap_training.memory import Buffers
from rap_training.rank import CannotRun, Rank
from rap_training.sharing.lanes import CallerLane, ThreadLane
from rap_training.sharing.shared import PeerLost
from rap_training.sharing.variants import VARIANTS
from rap_training.sharing.workers import FromWorkers, Workers, most_workers
from rap_training.work import Work

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

CPU = torch.device("cpu")
BATCHES = [batch(ROWS, seed) for seed in range(3)]
SECONDS = 5.0


def work() -> Work:
    plan = every_operator()
    home = (0,) * len(plan.sparse)
    return Work(plan=plan, rank=0, world=1, batch=ROWS, home=home, mapping=home)


@pytest.fixture
def workers() -> Iterator[Workers]:
    there = Workers(work(), BATCHES, 3)
    yield there
    pids = pids_of(there)
    there.close()
    assert not living(pids)


def pids_of(workers: Workers) -> list[int]:
    return [process.pid for process in workers._processes if process.pid]


def made_here(number: int, batches: Sequence[RawBatch] = BATCHES) -> Buffers:
    buffers = Buffers.allocate(work(), CPU, 1)
    Feed(work(), batches, CPU, "resident").load(number, buffers, 0)
    for launch in unfused(work()):
        NumpyBackend().bind(launch, buffers, 0)()
    return buffers


def assert_same(found: Buffers, slot: int, wanted: Buffers) -> None:
    """Equal but for padding, which nobody reads."""
    there = wanted.work
    names = ["labels", *(f"dense/{name}" for name in there.plan.dense)]
    for name in names:
        np.testing.assert_array_equal(found.result(slot, name), wanted.result(0, name), name)
    for piece in there.needed_here:
        (ids, lengths), (wanted_ids, wanted_lengths) = (
            found.piece(slot, piece), wanted.piece(0, piece),
        )  # fmt: skip
        keep = torch.ones_like(ids, dtype=torch.bool)
        if lengths is not None and wanted_lengths is not None:
            assert torch.equal(lengths, wanted_lengths)
            keep = torch.arange(ids.shape[1]) < lengths[:, None]
        assert torch.equal(ids[keep], wanted_ids[keep])


@pytest.mark.parametrize("used", [1, 2, 3])
def test_batches_come_in_turn(workers: Workers, used: int) -> None:
    lanes = CallerLane(), ThreadLane()
    buffers = Buffers.allocate(work(), CPU, 2)
    preparation = FromWorkers(workers, used, buffers, *lanes)
    for total in (1, 2, 8):  # fewer batches than workers, and than a worker may be ahead
        preparation.start(total)
        for number in range(total):
            slot = preparation.take(number)
            assert_same(buffers, slot, made_here(number % len(BATCHES)))
            preparation.done(number)
        preparation.stop()
    assert not any(filled.acquire(block=False) for filled in workers.filled)
    lanes[1].close()


def test_a_worker_is_at_most_its_ring_ahead(workers: Workers) -> None:
    workers.begin(1, 10)
    for number in range(2):
        workers.take(number, 1)
    time.sleep(0.5)
    assert not workers.filled[0].acquire(block=False)
    workers.give_back(0, 1)
    workers.take(2, 1)
    assert not workers.filled[0].acquire(block=False)


def test_workers_are_tuned_on_other_batches_than_the_measured() -> None:
    others = [batch(ROWS, 100 + seed) for seed in range(2)]
    there = Workers(work(), BATCHES, 2, tuning=others)
    lanes = CallerLane(), ThreadLane()
    buffers = Buffers.allocate(work(), CPU, 2)
    preparation = FromWorkers(there, 2, buffers, *lanes)
    for preparation.tuning in (True, False, True):
        given = others if preparation.tuning else BATCHES
        preparation.start(5)
        for number in range(5):
            slot = preparation.take(number)
            assert_same(buffers, slot, made_here(number % len(given), given))
            preparation.done(number)
        preparation.stop()
    lanes[1].close()
    there.close()


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        ({1: 2.0, 2: 1.0, 3: 1.1, 4: 0.97}, 4),  # behind a number that brings nothing
        ({1: 2.0, 2: 0.97, 3: 1.1, 4: 1.0}, 2),
        ({1: 2.0, 2: 1.0, 3: 1.004, 4: 1.1}, 3),  # as fast, and with room to spare
    ],
)
def test_the_most_workers_that_are_as_fast_as_any_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], wanted: int
) -> None:
    monkeypatch.setenv("AE_OUT", str(tmp_path))
    monkeypatch.setattr("rap_training.rank.most_workers", lambda world: 8)
    told: list[dict[str, Any]] = []
    config = replace(SMALL, gpus=1, variants=("cpu", "ideal"), workers=(1, 2, 3, 4))
    rank = Rank(config, 0, lambda kind, **what: told.append({"kind": kind, **what}))

    def sample(_: Rank, name: str, preparation: FromWorkers, *counts: int) -> float:
        assert preparation.tuning
        return seconds[preparation.used]

    monkeypatch.setattr(throughput, "sample", sample)
    preparation = rank.preparation(VARIANTS["cpu"])
    assert isinstance(preparation, FromWorkers)
    throughput._sweep_workers(rank, preparation)
    assert (preparation.used, preparation.tuning) == (wanted, False)
    records = [each for each in told if each["kind"] == "record"]
    swept = [each["labels"]["workers"] for each in records if "workers" in each["labels"]]
    assert swept == [1, 2, 3, 4]
    (chosen,) = [each for each in records if each["metric"] == "workers_chosen"]
    assert chosen["samples"] == [float(wanted)]
    own = [one.labels for one in rank.batches]
    for other in rank.tuning:
        assert not any(np.array_equal(other.labels, labels) for labels in own)
    rank.close()


@pytest.mark.parametrize("when", ["before its first batch", "in the middle"])
def test_a_dead_worker_is_told_at_once(workers: Workers, when: str) -> None:
    if when == "in the middle":
        workers.begin(2, 100)
        workers.take(0, 2)
        workers.take(1, 2)
    os.kill(pids_of(workers)[1], signal.SIGKILL)
    began = time.monotonic()

    def take_all() -> None:  # there may be batches that it finished
        for number in range(1, 100, 2):
            workers.take(number, 2)

    with pytest.raises(PeerLost, match=r"^worker 1 ended with exit code -9; fix: "):
        take_all()
    assert time.monotonic() - began < SECONDS


def test_what_a_worker_finished_before_it_died_is_taken(workers: Workers) -> None:
    workers.begin(1, 2)
    process = workers._processes[0]
    while workers.filled[0].get_value() < 2:
        time.sleep(0.01)
    process.kill()
    process.join()
    for number in range(2):
        workers.take(number, 1)
    with pytest.raises(PeerLost, match=r"^worker 0 ended"):
        workers.take(2, 1)


def test_a_worker_that_fails_is_told_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    broken = [batch(ROWS // 2, 0)]  # too few rows
    there = Workers(work(), broken, 1)
    there.begin(1, 2)
    began = time.monotonic()
    with pytest.raises(
        PeerLost, match=r"^worker 0 ended with exit code 1; fix: look for its error"
    ):
        there.take(0, 1)
    assert time.monotonic() - began < SECONDS
    there.close()
    assert "Error" in capfd.readouterr().err


def test_workers_in_the_middle_of_a_run_are_ended_together() -> None:
    there = Workers(work(), BATCHES, 4)
    pids = pids_of(there)
    there.begin(4, 1000)  # and nobody takes
    began = time.monotonic()
    there.close()
    assert time.monotonic() - began < 2 * SECONDS
    assert not living(pids)


def test_workers_leave_a_core_for_every_trainer() -> None:
    cores = len(os.sched_getaffinity(0))
    assert most_workers(1) == max(1, cores - 1)
    assert most_workers(cores) == 1


def test_workers_of_another_plan_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AE_OUT", str(tmp_path))
    config = replace(SMALL, gpus=1, variants=("cpu", "ideal"), workers=(1,))
    rank = Rank(config, 0, lambda kind, **what: None)
    assert isinstance(rank.preparation(VARIANTS["cpu"]), FromWorkers)
    rank.use(replace(rank.plan, over_arch=(8, 1)))
    with pytest.raises(CannotRun, match=r"^cpu's processes were started for another plan$"):
        rank.preparation(VARIANTS["cpu"])
    rank.close()

"""Whether a plain stream is to take the place of RAP's schedule, tried out on a rank."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from rap_training.launches import unfused
from rap_training.planner.choice import Choice, Estimate, choose
from rap_training.rank import Rank
from rap_training.sharing import rap
from rap_training.sharing.preparation import SLOTS, Preparation, Side
from rap_training.sharing.variants import VARIANTS, Variant

TURNS = 5
STREAM = "stream"
_QUEUED = 50  # gates that are timed together
Clock = Callable[[str, Preparation], float]  # us of an iteration of a variant


def choose_way(
    rank: Rank, variant: Variant, schedule: Preparation, clock: Clock
) -> tuple[Preparation, Choice]:
    """`schedule`, or the variant `stream` in its place, whichever `clock` finds not slower.

    All ranks must agree: `clock` gives the same number to each. The choice is told and kept in
    `rank.runs_as` until the plan changes.
    """
    stream = rank.preparation(VARIANTS[STREAM])
    assert isinstance(stream, Side)
    ways = {variant.name: schedule, STREAM: stream}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    rank.runs_as.pop(variant.name, None)
    for turn in range(TURNS):
        for name in list(ways)[:: 1 if turn % 2 == 0 else -1]:
            taken[name].append(clock(name, ways[name]))
    ours, plain = estimates(rank, variant, stream)
    choice = choose(ours, plain, (taken[variant.name], taken[STREAM]))
    if choice.stream:
        rank.runs_as[variant.name] = STREAM
    rank.tell("progress", words=f"{variant.name} is {choice.reason}")
    rank.tell("fact", name=f"{variant.name}_is", value=choice.reason)
    for name, way in ((variant.name, "gated"), (STREAM, "stream")):
        rank.tell(
            "record", metric="tried_iteration_time", unit="us", samples=taken[name],
            labels={**rank.config.labels, "variant": variant.name, "way": way},
            note=f"before the measurement, in turns; {variant.name} is {choice.reason}",
        )  # fmt: skip
    return ways[STREAM if choice.stream else variant.name], choice


def estimates(rank: Rank, variant: Variant, stream: Side) -> tuple[Estimate, Estimate]:
    """The schedule and the plain stream by the cost model, with this host's launch and gate."""
    stages, plan = rank.costs.stages[rank.rank], rank.plans[variant.name]
    launches = unfused(stream.buffers.work)
    alone = sum(rank.costs.latency.predict(rap.shape_of(launch)) for launch in launches)
    launch_us, gate_us = host_costs(rank, stream)
    training = sum(stage.us for stage in stages)
    hidden = sum(stage.capacity_us for stage in stages)

    def estimate(overflow: float, count: int, gates: int) -> Estimate:
        return Estimate(
            training_us=training, overflow_us=overflow, launches=count, gates=gates,
            launch_us=launch_us, gate_us=gate_us,
        )  # fmt: skip

    return (
        estimate(plan.schedule.overflow_us, len(plan.launches), len(plan.stages)),
        estimate(max(0.0, alone - hidden), len(launches), 1),
    )


def host_costs(rank: Rank, stream: Side) -> tuple[float, float]:
    """us that the host takes for one launch and for one gate. Launches count on a GPU alone: on a
    CPU they are the work itself."""
    train, side = rank.lanes(False)
    start = time.perf_counter()
    for _ in range(_QUEUED):
        side.wait(train.record())
    gate = 1e6 * (time.perf_counter() - start) / _QUEUED
    side.finish()
    if rank.device.type == "cpu":
        return 0.0, gate
    torch.cuda.synchronize(rank.device)
    count, start = stream.queue_launches(), time.perf_counter()
    for slot in range(SLOTS):
        stream.queue_launches(slot)
    launch = 1e6 * (time.perf_counter() - start) / max(1, SLOTS * count)
    side.finish()
    return launch, gate

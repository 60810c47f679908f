"""Which of several ways RAP, RAP+ and other graphs are run as, tried out on a rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from rap_training.launches import Launch, unfused
from rap_training.planner.choice import Estimate, choose
from rap_training.rank import Rank
from rap_training.sharing import rap
from rap_training.sharing.preparation import SLOTS, Preparation, Side
from rap_training.sharing.variants import Variant, ways

_QUEUED = 50  # gates that are timed together
Clock = Callable[[str, Preparation], float]  # us of an iteration, made ready in one of the ways


def choose_way(rank: Rank, variant: Variant, own: Preparation, clock: Clock) -> Preparation:
    """`own`, the variant's, or one of `ways` in its place: the one that `clock` finds
    fastest, in as many turns as rounds are measured afterwards.

    All ranks must agree: `clock` gives the same number to each. The choice is told and kept in
    `rank.runs_as` until the plan changes.
    """
    chances = ways(variant, rank.trainer.stages, several=rank.may_branch(variant))
    ready = {
        way: own if each is variant else rank.preparation(each) for way, each in chances.items()
    }
    if len(ready) == 1:
        return own
    taken: dict[str, list[float]] = {way: [] for way in ready}
    for turn in range(rank.config.repeats):
        for way in list(ready)[:: 1 if turn % 2 == 0 else -1]:
            rank.runs_as[variant.name] = chances[way]
            taken[way].append(clock(way, ready[way]))
    models = {} if variant.graph else estimates(rank, variant, ready["stream"])
    choice = choose(models, taken)
    rank.runs_as[variant.name] = chances[choice.way]
    rank.tell("progress", words=f"{variant.name} is {choice.reason}")
    rank.tell_fact(f"{variant.name}_is", choice.reason)
    for way, times in taken.items():
        rank.tell(
            "record", metric="tried_iteration_time", unit="us", samples=times,
            labels={**rank.labels, "variant": variant.name, "way": way},
            note=f"before the measurement, in turns; {variant.name} is {choice.reason}",
        )  # fmt: skip
    return ready[choice.way]


def estimates(rank: Rank, variant: Variant, stream: Preparation) -> dict[str, Estimate]:
    """Every way of RAP by the cost model, with this host's launch and gate."""
    assert isinstance(stream, Side)
    stages, plan = rank.costs.stages[rank.rank], rank.plans[variant.name]
    predict = rank.costs.latency.predict
    launches, together = unfused(stream.buffers.work), plan.fused
    launch_us, gate_us = host_costs(rank, stream)
    training = sum(stage.us for stage in stages)
    hidden = sum(stage.capacity_us for stage in stages)

    def estimate(overflow: float, count: int, gates: int) -> Estimate:
        return Estimate(
            training_us=training, overflow_us=overflow, launches=count, gates=gates,
            launch_us=launch_us, gate_us=gate_us,
        )  # fmt: skip

    def beyond(alone: Sequence[Launch]) -> float:
        return max(0.0, sum(predict(rap.shape_of(launch)) for launch in alone) - hidden)

    return {
        "gated": estimate(plan.schedule.overflow_us, len(plan.launches), len(plan.stages)),
        "ungated": estimate(beyond(together), len(together), 1),
        "stream": estimate(beyond(launches), len(launches), 1),
    }


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

"""What the trainer really sees in every iteration, compared with the reference."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

import numpy as np
from rap_training import reference
from rap_training.measure import train
from rap_training.planner.capacity import STAGES
from rap_training.rank import Rank
from rap_training.sharing.lanes import CallerLane, Lane, ThreadLane
from rap_training.sharing.preparation import SLOTS
from rap_training.sharing.variants import VARIANTS, ways

ITERATIONS, WARMUP = 6, 2
# What a variant that is a graph may be run as instead of what it is.
CHOSEN = {
    f"{variant.name} {way}": each
    for variant in VARIANTS.values()
    if variant.chooses and variant.graph
    for way, each in ways(variant, STAGES, several=True).items()
    if each is not variant
}
SOME = ("rap_plus in_line", "rap_plus mlp_bwd")  # one of each kind
MIXED = (0, 1, -1, 0, 1, -1)  # own rows of two tables, all rows of four; two tables travel


class SlowLane(ThreadLane):
    """A lane whose work begins at odd times, so that a wait that is missing shows."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._dice = random.Random(seed)

    def submit(self, work: Callable[[], object]) -> None:
        delay = self._dice.uniform(0, 0.02)

        def late() -> None:
            time.sleep(delay)
            work()

        super().submit(late)


class DeviceLane(SlowLane):
    """A training lane like a GPU's: the host runs ahead and only queues the stages of a step."""

    def submit(self, work: Callable[[], object]) -> None:
        work()

    def queue(self, work: Callable[[], object]) -> None:
        super().submit(work)


class Watch:
    """Compares a rank's batches where a step begins and where it ends."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.wanted = [reference.evaluate(rank.plan, batch) for batch in rank.batches]
        own = slice(rank.rank * rank.config.batch, (rank.rank + 1) * rank.config.batch)
        self.own = own
        self.labels = [batch.labels[own] for batch in rank.batches]

    def check(self, slot: int, number: int, when: str) -> None:
        """Raises AssertionError unless slot `slot` holds this rank's part of batch `number`."""
        buffers = self.rank.trainer.buffers
        number %= len(self.wanted)
        wanted, words = self.wanted[number], f"batch {number}, {when}"
        found = buffers.result(slot, "labels").numpy()
        np.testing.assert_array_equal(found, self.labels[number], err_msg=words)
        for name in self.rank.plan.dense:
            found = buffers.result(slot, f"dense/{name}").numpy()
            expected = wanted[name].values[self.own]
            np.testing.assert_array_equal(found, expected, err_msg=f"{name}, {words}")
        covered = 0
        for piece in buffers.work.needed_here:
            ids, lengths = buffers.piece(slot, piece)
            name = self.rank.plan.sparse[piece.table].node
            rows = slice(piece.start, piece.start + piece.rows)
            expected, keep = wanted[name].values[rows], np.ones(ids.shape, bool)
            if lengths is not None:
                listed = wanted[name].lengths
                assert listed is not None
                np.testing.assert_array_equal(lengths.numpy(), listed[rows], err_msg=words)
                keep = np.arange(ids.shape[1]) < listed[rows, None]
            where = f"{piece.name} made by {piece.made}, {words}"
            np.testing.assert_array_equal(ids.numpy()[keep], expected[keep], err_msg=where)
            covered += piece.rows
        rows = self.rank.world * self.rank.config.batch
        assert covered == rows * len(buffers.work.tables)


def watch(
    rank: Rank, names: Sequence[str], seed: int = 0, *, ahead: bool = False
) -> dict[str, int]:
    """Train with every variant in odd timing; steps whose batch was as it must be, by variant.

    `ahead`: the host runs ahead of training, as with a GPU (one rank, variants that only ever
    train in the training lane).
    """
    observer = Watch(rank)
    trainer = rank.trainer
    step = trainer.step
    dice = random.Random(100 * seed + rank.rank)
    seen: list[int] = []

    def queue(work: Callable[[], object]) -> None:
        lane = rank.lanes(variant.priority)[0]
        if isinstance(lane, DeviceLane):
            lane.queue(work)
        else:
            time.sleep(dice.uniform(0, 0.01))
            work()

    def spied(slot: int, on_stage: Callable[[str], object]) -> None:
        number = next(numbers)
        # `ideal` has as many batches as slots, made beforehand.
        batch = number % SLOTS if variant.place == "none" else number
        queue(lambda: observer.check(slot, batch, "before the step"))
        for stage in STAGES:
            on_stage(stage)
            queue(partial(trainer.run, stage, slot))
        queue(lambda: observer.check(slot, batch, "after the step"))
        queue(lambda: seen.append(number))

    checked: dict[str, int] = {}
    for name in names:
        variant = CHOSEN.get(name) or VARIANTS[name]
        rank.tell("progress", words=f"watching {name}")
        number = 100 * seed + rank.rank
        pair: tuple[Lane, Lane] = (
            DeviceLane(number + 1) if ahead else CallerLane(), SlowLane(number)
        )  # fmt: skip
        if variant.place == "stages":
            assert rank.costs  # measured in lanes as they are
        rank._lanes[variant.priority] = pair
        preparation = rank.preparation(variant)
        trainer.step = spied  # type: ignore[method-assign]
        for attempt in range(2):  # what the first loop leaves behind must not harm the second
            seen.clear()
            numbers = count()
            train(
                trainer, preparation, pair[0], rank.collectives, warmup=WARMUP,
                iterations=ITERATIONS + attempt, barrier=variant.barrier,
            )  # fmt: skip
            pair[0].finish()
            assert seen == list(range(len(seen)))
            checked[name] = len(seen)
        trainer.step = step  # type: ignore[method-assign]
        for lane in rank._lanes.pop(variant.priority):
            lane.close()
    return checked


# Jobs.


def all_variants(rank: Rank, names: Sequence[str]) -> None:
    """The mapping is what the search finds."""
    rank.tell("fact", name="checked", value=watch(rank, [*names, *SOME]))


def mixed_mapping(rank: Rank, names: Sequence[str]) -> None:
    """Some features are computed by the rank of their table, some by another, some by each."""
    home = rank.home
    mapping = tuple(
        by if by == -1 else (home[table] + by) % rank.world for table, by in enumerate(MIXED)
    )
    rank.__dict__["searched"] = mapping  # a cached property
    assert rank.work(mapping).exchanges
    rank.tell("fact", name="checked", value=watch(rank, [*names, *SOME], seed=1))

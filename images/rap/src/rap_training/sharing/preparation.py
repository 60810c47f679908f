"""How the next batch gets ready while this one trains, within the trainer's process.

Every way gives the loop the same four verbs, so that trainer, data, loop and barriers are one
piece of code for all variants (`rap_training.measure.train`). Two slots: batch i stands in slot
i mod 2; it is written once the trainer has let go of batch i - 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from rap_training.feed import Feed
from rap_training.launches import Call
from rap_training.memory import Buffers
from rap_training.planner.capacity import STAGES
from rap_training.sharing.lanes import Lane
from rap_training.sharing.variants import Variant
from rap_training.train.collectives import Collectives

SLOTS = 2
Part = Callable[[Sequence[Call]], None]  # queues some of a slot's launches


def all_calls(calls: Sequence[Call]) -> None:
    """The part that is everything."""
    for call in calls:
        call()


class Preparation(Protocol):
    """Makes batches ready. The loop calls take, on_stage (five times) and done, in turn."""

    buffers: Buffers
    front: tuple[Call, ...]  # a call a slot that the trainer captures in front of its step
    staged: bool  # whether launches wait for stages of training, which must then be apart

    def start(self, total: int) -> None:
        """Before a loop of `total` iterations: make the first batch ready, as the variant does."""

    def take(self, number: int) -> int:
        """The slot of batch `number`; what the training lane does next finds it ready."""

    def on_stage(self, number: int, stage: str) -> None:
        """A stage of iteration `number` is about to be queued."""

    def done(self, number: int) -> None:
        """All of iteration `number` is queued."""

    def stop(self) -> None:
        """After the loop: nothing of this variant is under way any more."""


class Steps:
    """The calls that make a batch ready in a slot: copy, launches, exchange."""

    def __init__(
        self, feed: Feed, buffers: Buffers, calls: Sequence[Sequence[Call]],
        collectives: Collectives, *, synchronise: Call | None = None,
    ) -> None:  # fmt: skip
        """`calls[slot]` are the launches; `synchronise`, if given, runs after each."""
        self.feed, self.buffers, self.calls = feed, buffers, calls
        self.collectives = collectives
        self._synchronise = synchronise

    def copy(self, number: int, *, ahead: bool = False) -> None:
        """Raw columns of batch `number` into its slot; `ahead`: the CPU begins with the next."""
        self.feed.load(number, self.buffers, number % SLOTS)
        if ahead:
            self.feed.ahead(number + 1)

    def launch(self, number: int) -> None:
        """All launches, in order."""
        for call in self.calls[number % SLOTS]:
            call()
            if self._synchronise:
                self._synchronise()

    def fronts(self) -> tuple[Call, ...]:
        """All launches of each slot as a call, for a trainer that captures them with its step."""
        return tuple(partial(self.launch, slot) for slot in range(SLOTS))

    def launch_part(self, number: int, part: Part) -> None:
        """The launches that a part of a program names."""
        part(self.calls[number % SLOTS])

    def exchange(self, number: int) -> None:
        """Ids to the ranks that train on them."""
        self.collectives.exchange_inputs(self.buffers, number % SLOTS)

    def all(self, number: int, *, ahead: bool = False) -> None:
        """Everything, in order."""
        self.copy(number, ahead=ahead)
        self.launch(number)
        self.exchange(number)


class Prepared:
    """`ideal`: both slots hold finished batches; nothing is computed in the loop."""

    front: tuple[Call, ...] = ()
    staged = False

    def __init__(self, steps: Steps, train: Lane) -> None:
        self.buffers, self._steps, self._train = steps.buffers, steps, train

    def start(self, total: int) -> None:
        """See Preparation."""
        for number in range(SLOTS):
            self._train.submit(lambda n=number: self._steps.all(n))  # type: ignore[misc]

    def take(self, number: int) -> int:
        """See Preparation."""
        return number % SLOTS

    def on_stage(self, number: int, stage: str) -> None:
        """See Preparation."""

    def done(self, number: int) -> None:
        """See Preparation."""

    def stop(self) -> None:
        """See Preparation."""


class Serial(Prepared):
    """`sequential`: the batch is made in the training lane, right before it is trained on."""

    def start(self, total: int) -> None:
        """See Preparation."""

    def take(self, number: int) -> int:
        """See Preparation."""
        self._train.submit(lambda: self._steps.all(number))
        return number % SLOTS


class InStep(Prepared):
    """`sequential_graph`: launches and training step are one CUDA graph, which the trainer makes.

    What comes from the host is copied before it: its address is another for every batch.
    """

    def __init__(self, steps: Steps, train: Lane) -> None:
        super().__init__(steps, train)
        self.front = steps.fronts()

    def start(self, total: int) -> None:
        """See Preparation."""

    def take(self, number: int) -> int:
        """See Preparation."""
        self._train.submit(lambda: self._steps.copy(number))
        return number % SLOTS


class Side:
    """`stream`: the next batch is made in a lane beside, queued behind this iteration's training.

    `side` may be gated: then launches are spread over the stages of training (RAP).
    """

    front: tuple[Call, ...] = ()

    def __init__(
        self, steps: Steps, train: Lane, side: Lane,
        stages: Mapping[str, Part] | None = None,
    ) -> None:  # fmt: skip
        """`stages[s]` queues the launches that start when stage s starts; None: no gates."""
        self.buffers, self._steps, self._train, self._side = steps.buffers, steps, train, side
        self._stages, self.staged = stages, stages is not None
        self._ready: list[Any] = [None] * SLOTS
        self._free: list[Any] = [None] * SLOTS

    def start(self, total: int) -> None:
        """See Preparation."""
        self._ready = [None] * SLOTS
        self._free = [None] * SLOTS
        self._make(0)
        self._ready[0] = self._side.record()

    def take(self, number: int) -> int:
        """See Preparation."""
        slot = number % SLOTS
        self._train.wait(self._ready[slot])
        return slot

    def on_stage(self, number: int, stage: str) -> None:
        """See Preparation. The gate is an event on the device: the host waits for nothing."""
        if self._stages is None:
            return
        following = number + 1
        if stage == STAGES[0]:
            self._side.wait(self._free[following % SLOTS])
            self._side.submit(lambda: self._steps.copy(following, ahead=True))
        part = self._stages.get(stage)
        if part:
            self._side.wait(self._train.record())
            self._side.submit(lambda: self._steps.launch_part(following, part))

    def done(self, number: int) -> None:
        """See Preparation."""
        following = number + 1
        self._free[number % SLOTS] = self._train.record()
        if self._stages is None:
            self._side.wait(self._free[following % SLOTS])
            self._make(following)
        else:
            self._side.submit(lambda: self._steps.exchange(following))
        self._ready[following % SLOTS] = self._side.record()

    def _make(self, number: int) -> None:
        """Queue in the lane beside what makes batch `number`, as far as it is made there."""
        self._side.submit(lambda: self._steps.all(number, ahead=True))

    def queue_launches(self, slot: int = 0) -> int:
        """Queue the launches of a slot by themselves; return how many there are."""
        self._side.submit(lambda: self._steps.launch(slot))
        return len(self._steps.calls[slot])

    def stop(self) -> None:
        """See Preparation."""
        self._side.finish()


class InLine(Side):
    """RAP+ in line: raw columns are copied beside training, all else is in the training lane."""

    def __init__(self, steps: Steps, train: Lane, side: Lane, *, one_graph: bool) -> None:
        """`one_graph`: the launches are one CUDA graph with the step, which the trainer makes."""
        super().__init__(steps, train, side)
        if one_graph:
            self.front = steps.fronts()

    def take(self, number: int) -> int:
        """See Preparation."""
        slot = super().take(number)
        if not self.front:
            self._train.submit(lambda: self._steps.launch(number))
            self._train.submit(lambda: self._steps.exchange(number))
        return slot

    def _make(self, number: int) -> None:
        self._side.submit(lambda: self._steps.copy(number, ahead=True))


def in_lanes(
    variant: Variant, steps: Steps, train: Lane, side: Lane, *, one_graph: bool
) -> Preparation:
    """The preparation of a variant that needs nothing but the trainer's own process and lanes.

    `one_graph`: launches in the training lane are one CUDA graph with the step.
    """
    if variant.place == "side":
        return Side(steps, train, side, {variant.begins: all_calls} if variant.begins else None)
    if variant.place == "line":
        return InLine(steps, train, side, one_graph=one_graph)
    kind = Prepared if variant.place == "none" else InStep if one_graph else Serial
    return kind(steps, train)

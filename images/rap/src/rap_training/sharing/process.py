"""Variants with a second process for preprocessing: both ends (docs/papers/rap.md, 4.2: MPS)."""

from __future__ import annotations

import queue
from typing import Any

import torch

from rap_training.launches import Call
from rap_training.memory import Buffers
from rap_training.sharing.lanes import Lane, StreamLane, lanes
from rap_training.sharing.preparation import SLOTS, Steps
from rap_training.sharing.shared import PATIENCE_S, Ends, PeerLost, Request, events, take
from rap_training.train.collectives import Collectives


class Remote:
    """The trainer's end: a Preparation whose batches another process makes.

    The input exchange, where the mapping needs one, is the trainer's, as in the artifact.
    """

    front: tuple[Call, ...] = ()
    staged = False

    def __init__(
        self, variant: str, buffers: Buffers, ends: Ends, train: Lane, collectives: Collectives
    ) -> None:
        self.buffers = buffers
        self._variant, self._ends, self._train = variant, ends, train
        self._collectives = collectives
        self._made: list[torch.cuda.Event] = []
        self._let_go: list[torch.cuda.Event] = []

    def start(self, total: int) -> None:
        """See Preparation."""
        work = self.buffers.work
        self._let_go = events(SLOTS)
        request = Request(self._variant, total, work.home, work.mapping, list(self.buffers.results))
        self._ends.to_preprocessor.put((request, self._let_go))
        try:
            self._made = self._ends.to_trainer.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise PeerLost(
                "the preprocessor did not start; fix: look for its error above"
            ) from None

    def take(self, number: int) -> int:
        """See Preparation."""
        slot = number % SLOTS
        take(self._ends.ready, "preprocessor")
        self._train.wait(self._made[slot])
        self._train.submit(lambda: self._collectives.exchange_inputs(self.buffers, slot))
        return slot

    def on_stage(self, number: int, stage: str) -> None:
        """See Preparation."""

    def done(self, number: int) -> None:
        """See Preparation."""
        assert isinstance(self._train, StreamLane)
        self._let_go[number % SLOTS].record(self._train.stream)
        self._ends.free.release()

    def stop(self) -> None:
        """See Preparation: both ends agree that no token is left."""
        try:
            self._ends.to_trainer.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise PeerLost("the preprocessor did not finish; fix: look for its error") from None
        while self._ends.free.acquire(block=False):
            pass


def serve(make_steps: Any, ends: Ends, device: torch.device) -> None:
    """The preprocessor's end: answer requests until None comes.

    `make_steps(request)` gives the Steps of a variant on the trainer's memory.
    """
    _, lane = lanes(device)
    assert isinstance(lane, StreamLane)
    stream = lane.stream
    while (asked := ends.to_preprocessor.get()) is not None:
        request, let_go = asked
        steps: Steps = make_steps(request)
        made = events(SLOTS)
        torch.cuda.synchronize(device)
        ends.to_trainer.put(made)
        with torch.cuda.stream(stream):
            for number in range(request.total):
                slot = number % SLOTS
                if number >= SLOTS:
                    take(ends.free, "trainer")
                    stream.wait_event(let_go[slot])
                steps.copy(number, ahead=True)
                steps.launch(number)
                made[slot].record(stream)
                ends.ready.release()
        stream.synchronize()
        ends.to_trainer.put("done")

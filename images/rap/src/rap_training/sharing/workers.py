"""`cpu`: processes on the host preprocess whole batches and really feed the trainer.

Each worker runs the numpy operators on a rank's rows and leaves the result in shared, page-locked
memory; the trainer copies it to the GPU beside training. Workers are forked before the process
touches the GPU and use none.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from typing import Any

import torch

from rap_training.backends import NumpyBackend
from rap_training.data.columns import RawBatch
from rap_training.feed import Feed
from rap_training.launches import Call
from rap_training.memory import Buffers, batch_layout, final_keys
from rap_training.processes import die_with
from rap_training.sharing.lanes import Lane
from rap_training.sharing.preparation import SLOTS
from rap_training.sharing.shared import PATIENCE_S, PeerLost
from rap_training.work import Work

_POLL_S = 0.2
_GRACE_S = 2.0
_RING = 2  # finished batches that a worker may be ahead


class Workers:
    """As many processes as are ever used; a run uses the first of them."""

    def __init__(
        self, work: Work, batches: Sequence[RawBatch], count: int, *,
        tuning: Sequence[RawBatch] = (),
    ) -> None:  # fmt: skip
        """Forks. Must be made before the process touches the GPU. `tuning`: see `begin`."""
        context = multiprocessing.get_context("fork")
        size = max(batch_layout(work).size, 1)
        self.work, self.count = work, count
        self.rings = [
            torch.zeros(_RING, size, dtype=torch.uint8).share_memory_() for _ in range(count)
        ]
        self.filled = [context.Semaphore(0) for _ in range(count)]
        self.empty = [context.Semaphore(0) for _ in range(count)]
        self._orders = [context.SimpleQueue() for _ in range(count)]
        self._processes = []
        for number in range(count):
            process = context.Process(
                target=_work, daemon=True,
                args=(os.getpid(), work, (batches, tuning or batches), self.rings[number],
                      self.filled[number], self.empty[number], self._orders[number]),
            )  # fmt: skip
            process.start()
            self._processes.append(process)

    def pin(self) -> None:
        """Page-lock the rings, so that copies to the GPU are asynchronous."""
        for ring in self.rings:
            status = torch.cuda.cudart().cudaHostRegister(ring.data_ptr(), ring.numel(), 0)
            if int(status) != 0:
                raise OSError(f"the driver would not page-lock {ring.numel()} bytes: {status}")

    def begin(self, used: int, total: int, *, tuning: bool = False) -> None:
        """Let the first `used` workers make batches 0 to `total` - 1 in turns.

        `tuning`: of the batches that are there to choose `used` on.
        """
        for number in range(used):
            self._orders[number].put((number, used, total, tuning))

    def take(self, number: int, used: int) -> torch.Tensor:
        """The finished batch `number`. Raises PeerLost if it does not come, or cannot."""
        worker = number % used
        process = self._processes[worker]
        end = time.monotonic() + PATIENCE_S
        while not self.filled[worker].acquire(timeout=_POLL_S):
            # It may have finished the batch right before it ended.
            if not process.is_alive() and not self.filled[worker].acquire(block=False):
                raise PeerLost(
                    f"worker {worker} ended with exit code {process.exitcode}; "
                    "fix: look for its error above"
                )
            if time.monotonic() > end:
                raise PeerLost(
                    f"worker {worker} has been silent for {PATIENCE_S:.0f} s; "
                    "fix: look for its error above"
                )
        return self.rings[worker][(number // used) % _RING]

    def give_back(self, number: int, used: int) -> None:
        """The memory of batch `number` may be written again."""
        self.empty[number % used].release()

    def close(self) -> None:
        """End all workers, those in the middle of a run too."""
        for order in self._orders:
            order.put(None)
        end = time.monotonic() + _GRACE_S
        for process in self._processes:
            process.join(timeout=max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


class FromWorkers:
    """A Preparation whose batches come from `used` workers; `tuning`: see `Workers.begin`."""

    front: tuple[Call, ...] = ()
    staged = False
    tuning = False

    def __init__(
        self, workers: Workers, used: int, buffers: Buffers, train: Lane, side: Lane
    ) -> None:
        self.buffers, self.used = buffers, used
        self._workers, self._train, self._side = workers, train, side
        self._ready: list[Any] = [None] * SLOTS
        self._free: list[Any] = [None] * SLOTS
        self._total = 0

    def start(self, total: int) -> None:
        """See Preparation."""
        self._total = total
        self._free = [None] * SLOTS
        self._workers.begin(self.used, total, tuning=self.tuning)
        self._fetch(0)

    def take(self, number: int) -> int:
        """See Preparation."""
        self._train.wait(self._ready[number % SLOTS])
        return number % SLOTS

    def on_stage(self, number: int, stage: str) -> None:
        """See Preparation."""

    def done(self, number: int) -> None:
        """See Preparation."""
        self._free[number % SLOTS] = self._train.record()
        if number + 1 < self._total:
            self._fetch(number + 1)

    def stop(self) -> None:
        """See Preparation."""
        self._side.finish()

    def _fetch(self, number: int) -> None:
        slot = number % SLOTS
        batch = self._workers.take(number, self.used)
        self._side.wait(self._free[slot])
        self._side.submit(lambda: self.buffers.results[slot].copy_(batch, non_blocking=True))
        self._ready[slot] = self._side.record()
        # The host has nothing else to do, so it waits for the copy and gives the memory back.
        self._side.finish()
        self._workers.give_back(number, self.used)


def most_workers(world: int) -> int:
    """Workers a rank may have: the cores this process may use, less one for every trainer."""
    return max(1, (len(os.sched_getaffinity(0)) - world) // world)


def _work(
    parent: int, work: Work, batches: tuple[Sequence[RawBatch], Sequence[RawBatch]],
    ring: torch.Tensor, filled: Any, empty: Any, orders: Any,
) -> None:  # fmt: skip
    die_with(parent)
    torch.set_num_threads(1)
    device = torch.device("cpu")
    buffers = Buffers.allocate(work, device, slots=_RING, results=list(ring))
    measured, others = (Feed(work, part, device, "resident") for part in batches)
    calls = [NumpyBackend().bind_chains(final_keys(work), buffers, slot) for slot in range(_RING)]
    while (order := orders.get()) is not None:
        first, step, total, tuning = order
        feed = others if tuning else measured
        for turn, number in enumerate(range(first, total, step)):
            if turn >= _RING:
                empty.acquire()
            slot = turn % _RING
            feed.load(number, buffers, slot)
            for call in calls[slot]:
                call()
            filled.release()
        for _ in range(min(_RING, len(range(first, total, step)))):
            empty.acquire()

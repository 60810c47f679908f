"""What trainer and preprocessor share when they are two processes: memory, events, tokens.

Results stand in the trainer's memory, which the preprocessor maps (CUDA IPC). Order on the device
is kept by events that both processes know; the host's tokens say only that an event has been
recorded, so neither side waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

PATIENCE_S = 60.0


class PeerLost(RuntimeError):
    """The other process of a pair has gone, or is silent."""


@dataclass(frozen=True)
class Ends:
    """Tokens and a pair of queues between a trainer and its preprocessor; made by the parent."""

    ready: Any  # semaphore: batches whose launches are queued
    free: Any  # semaphore: slots that the trainer has let go of
    to_preprocessor: Any
    to_trainer: Any

    @staticmethod
    def make(context: Any) -> Ends:
        """`context` is torch.multiprocessing's, for spawned processes."""
        return Ends(context.Semaphore(0), context.Semaphore(0), context.Queue(), context.Queue())


@dataclass(frozen=True)
class Request:
    """What the preprocessor is asked for: `total` batches of a variant into `results`."""

    variant: str
    total: int
    home: tuple[int, ...]
    mapping: tuple[int, ...]
    results: Sequence[torch.Tensor]


def events(count: int) -> list[torch.cuda.Event]:
    """Events that another process can wait for, recorded once so that they exist."""
    found = [torch.cuda.Event(interprocess=True) for _ in range(count)]
    for event in found:
        event.record()
    return found


def take(token: Any, peer: str) -> None:
    """Wait for a token. Raises PeerLost when none comes."""
    if not token.acquire(timeout=PATIENCE_S):
        raise PeerLost(
            f"the {peer} has been silent for {PATIENCE_S:.0f} s; "
            "fix: look for its error above, or whether the MPS daemon has died"
        )

"""Exchange between ranks over NCCL or gloo; nothing at all for one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from rap_training.memory import Buffers, incoming, outgoing


@dataclass(frozen=True, kw_only=True)
class Collectives:
    """One communicator. Two lanes that run side by side need one each.

    `inputs`: whether ids are sent to their tables; not for a trainer that does so itself.
    """

    rank: int
    world: int
    group: dist.ProcessGroup | None = None
    inputs: bool = True

    def all_to_all(
        self, target: torch.Tensor, source: torch.Tensor,
        received: Sequence[int], sent: Sequence[int],
    ) -> None:  # fmt: skip
        """Rows of the flat `source` to every rank, `sent[r]` to r, into `target` likewise."""
        dist.all_to_all_single(target, source, list(received), list(sent), group=self.group)

    def average(self, buckets: Sequence[torch.Tensor]) -> None:
        """Replace every bucket by its mean over ranks.

        One after another, which is how NCCL runs them, and so in the current stream: what is
        asynchronous runs in one of NCCL's, of low priority.
        """
        nccl = dist.get_backend(self.group) == "nccl"
        how = dist.ReduceOp.AVG if nccl else dist.ReduceOp.SUM
        for bucket in buckets:
            dist.all_reduce(bucket, how, group=self.group)
            if not nccl:
                bucket.div_(self.world)

    def exchange_inputs(self, buffers: Buffers, slot: int) -> None:
        """Send ids and lengths to the ranks that own the tables. No-op if nothing travels."""
        work = buffers.work
        if not (self.inputs and work.exchanges):
            return
        sent = [work.bytes_to(self.rank, other) for other in range(self.world)]
        received = [work.bytes_to(other, self.rank) for other in range(self.world)]
        assert sum(sent) == len(buffers.span(slot, "send/")), outgoing(work)
        assert sum(received) == len(buffers.span(slot, "receive/")), incoming(work)
        self.all_to_all(buffers.span(slot, "receive/"), buffers.span(slot, "send/"), received, sent)

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world > 1:
            dist.barrier(group=self.group)

    def meet(self, device: torch.device) -> None:
        """Queue that the current stream goes on when those of all ranks have come this far."""
        if self.world > 1:
            dist.all_reduce(torch.zeros(1, device=device), group=self.group)

    def largest(self, value: float, device: torch.device) -> float:
        """The largest `value` of all ranks."""
        if self.world == 1:
            return value
        there = torch.tensor([value], dtype=torch.float64, device=device)
        dist.all_reduce(there, dist.ReduceOp.MAX, group=self.group)
        return float(there.item())

    def gather(self, value: Any) -> list[Any]:
        """Everyone's `value`, by rank."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value, group=self.group)
        return found

    def broadcast(self, value: list[Any]) -> list[Any]:
        """Rank 0's list, on every rank."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

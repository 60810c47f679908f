"""One training iteration on each rank, and the schedule of its micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from pasta_workloads.parallel.adam import MasterAdam
from pasta_workloads.parallel.model import Stage
from pasta_workloads.parallel.sizes import ParallelSize
from pasta_workloads.parallel.tensor import Ways

RATE = 1e-3


@dataclass(frozen=True)
class Rank:
    """A rank's part of the model and its work. `kind` is dp, tp, pp or one (a single process)."""

    kind: str
    number: int
    ranks: int
    size: ParallelSize
    stage: Stage
    optimizer: MasterAdam
    device: str

    def iteration(self, seed: int) -> float:
        """Train on one global batch; returns its mean loss, the same on every rank."""
        batches = micro_batches(self.size, seed, self.device)
        count = len(batches)
        if self.kind == "dp":
            share = count // self.ranks
            batches = batches[self.number * share : (self.number + 1) * share]
        losses = self._pipeline(batches) if self.kind == "pp" else self._accumulate(batches, count)
        loss = torch.stack(losses).sum() if losses else torch.zeros((), device=self.device)
        self._exchange()
        if self.kind in ("dp", "pp"):
            dist.all_reduce(loss)
        self.optimizer.step()
        return float(loss)

    def _accumulate(self, batches: Sequence[tuple[Tensor, Tensor]], count: int) -> list[Tensor]:
        losses = []
        for ids, labels in batches:
            loss = self.stage(ids, labels) / count
            (loss * self.optimizer.scale).backward()
            losses.append(loss.detach())
        return losses

    def _pipeline(self, batches: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """1F1B on two stages: at most two micro-batches' activations are alive on the first."""
        if self.number == 0:
            self._first_stage(batches)
            return []
        return self._last_stage(batches)

    def _first_stage(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        waiting: list[Tensor] = []
        for ids, labels in batches:
            states = self.stage(ids, labels)
            waiting.append(states)
            if len(waiting) == 1:
                self._exchange_states(states.detach(), None)
            else:
                gradient = torch.empty_like(states)
                self._exchange_states(states.detach(), gradient)
                waiting.pop(0).backward(gradient)
        gradient = torch.empty_like(waiting[0])
        self._exchange_states(None, gradient)
        waiting.pop(0).backward(gradient)

    def _last_stage(self, batches: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        losses = []
        states = self._empty_states()
        self._exchange_states(None, states)
        for number, (_, labels) in enumerate(batches):
            states.requires_grad_()
            loss = self.stage(states, labels) / len(batches)
            (loss * self.optimizer.scale).backward()
            losses.append(loss.detach())
            following = self._empty_states() if number + 1 < len(batches) else None
            assert states.grad is not None
            self._exchange_states(states.grad, following)
            if following is not None:
                states = following
        return losses

    def _empty_states(self) -> Tensor:
        shape = (self.size.micro, self.size.length, self.size.width)
        kind = torch.float16 if self.size.half else torch.float32
        return torch.empty(shape, dtype=kind, device=self.device)

    def _exchange_states(self, sent: Tensor | None, received: Tensor | None) -> None:
        """Send and receive at once: two blocking sends would wait for each other."""
        other = 1 - self.number
        works = []
        if sent is not None:
            works.append(dist.P2POp(dist.isend, sent.contiguous(), other))
        if received is not None:
            works.append(dist.P2POp(dist.irecv, received, other))
        for work in dist.batch_isend_irecv(works):
            work.wait()

    def _exchange(self) -> None:
        """Add up gradients: of all weights (dp), or of the embedding that two stages hold (pp).

        Each rank's loss is already divided by all micro-batches, so a sum is the mean.
        """
        parameters = list(self.stage.parameters()) if self.kind == "dp" else []
        if self.kind == "pp":
            parameters = [self.stage.tokens.weight]
        for parameter in parameters:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)


def make_rank(
    kind: str, number: int, ranks: int, size: ParallelSize, device: str, seed: int
) -> Rank:
    """Build a rank's weights, from the seed alone, and its optimiser."""
    ways = Ways(number, ranks) if kind == "tp" else Ways()
    layers = range(size.layers)
    if kind == "pp":
        share = size.layers // ranks
        layers = range(number * share, (number + 1) * share)
    stage = Stage(size, layers, ways, seed).to(device)
    if size.half:
        stage = stage.half()
    optimizer = MasterAdam(stage.parameters(), RATE, size.half)
    return Rank(kind, number, ranks, size, stage, optimizer, device)


def micro_batches(size: ParallelSize, seed: int, device: str) -> list[tuple[Tensor, Tensor]]:
    """The global batch as (ids, labels) pairs of (micro, length), the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    shape = (size.batch, size.length + 1)
    tokens = torch.randint(size.vocabulary, shape, generator=generator).to(device)
    return [
        (part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in tokens.split(size.micro)
    ]

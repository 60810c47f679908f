"""DLRM in five stages: the training loop that every variant shares (docs/papers/rap.md, 2.3, 3).

Tables are spread over ranks, the MLPs are data-parallel. A step is

    emb_fwd    look up own tables for the rows of all ranks, send pooled rows to where they train
    mlp_fwd    bottom MLP, dot interaction, over arch, loss
    mlp_bwd    their gradients
    emb_bwd    gradients of pooled rows back to the tables, SGD on the rows that were read
    grad_comm  mean of the MLPs' gradients over ranks, in buckets, SGD

Gradients are of the mean loss over all ranks' rows, averaged once. On a GPU the work of a stage
can be a CUDA graph (`capture`); what is sent between ranks is queued between graphs.

Streams: steps run on whatever stream is current, one at a time, and keep to memory that is made
once. Every other method waits until the device is idle, so that steps on any stream see its effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.nn import functional

from rap_training.launches import Call
from rap_training.memory import Buffers
from rap_training.planner.capacity import STAGES
from rap_training.train.collectives import Collectives
from rap_training.train.embedding import (
    Embedding,
    TorchEmbedding,
    initial_weights,
    raise_outside,
)
from rap_training.train.model import Interaction, Model, initial_layers, pair_tables
from rap_training.train.segments import segments

_STEP = "step"  # the graph of all stages, with what stands in front of them


@dataclass(kw_only=True)
class Binding:
    """What the trainer has made for one set of buffers."""

    buffers: Buffers
    embedding: Embedding
    inputs: list[list[torch.Tensor]]
    labels: list[torch.Tensor]
    front: tuple[Call, ...]
    whole: bool
    graphs: dict[tuple[str, int], Callable[[], None]] = field(default_factory=dict)
    losses: dict[int, torch.Tensor] = field(default_factory=dict)


class Trainer:
    """The training of one rank on the batches that stand in `buffers`."""

    stages = STAGES

    def __init__(
        self, model: Model, buffers: Buffers, collectives: Collectives, *, seed: int,
        bucket_bytes: int = 4 << 20, weights: torch.Tensor | None = None,
        graphs: bool = False,
    ) -> None:  # fmt: skip
        """`weights`, if given, are the rank's tables, float32 [rows, dim]; else drawn by `seed`.

        `graphs`: the work of every stage is a CUDA graph, or all of a step (`bind`).
        """
        self.graphs = graphs
        self._capture_stream: torch.cuda.Stream | None = None
        self.model, self.buffers, self.collectives = model, buffers, collectives
        work, device = buffers.work, buffers.device
        self.device, self._seed = device, seed
        shape = (len(model.rows) + 1, work.batch, model.dim)
        self._features = torch.zeros(shape, device=device)
        self._gradient = torch.zeros(shape, device=device)
        self.weights = (
            initial_weights(work.tables, model.rows, model.dim, seed, device)
            if weights is None
            else weights
        )
        local = (work.world, len(work.tables), work.batch, model.dim)
        if work.world == 1:
            self._pooled = self._features[1:].view(local)
            self._pooled_gradient = self._gradient[1:].view(local)
        else:
            self._pooled = torch.zeros(local, device=device)
            self._pooled_gradient = torch.zeros(local, device=device)
        owned = [_owned(work.home, rank) for rank in range(work.world)]
        # Floats of pooled rows: of this rank's tables for every rank, of every rank's for this one.
        row = work.batch * model.dim
        self._mine = [len(work.tables) * row] * work.world
        self._theirs = [len(tables) * row for tables in owned]
        order = [table for tables in owned for table in tables]
        self._pairs, self._square = pair_tables(order, device)
        self._make_dense(bucket_bytes)
        self.bad = torch.zeros(len(work.tables), dtype=torch.int64, device=device)
        self._rate, self._sparse_rate = (torch.zeros(1, device=device) for _ in range(2))
        self.learn(True)
        self._bindings: dict[tuple[int, ...], Binding] = {}
        self.bind(buffers)

    def bind(
        self, buffers: Buffers, front: Sequence[Call] = (), *, whole: bool = False
    ) -> None:  # fmt: skip
        """Train on the batches that stand in `buffers`; what was made for them before is kept.

        `whole`: a step is one CUDA graph where it can be, not one a stage: on one GPU, with a
        trainer of graphs. `front`, a call a slot: what makes the batch, in front of it in that
        graph. Raises ValueError for buffers with other tables on this rank, or other rows, and for
        a `front` where the step cannot be one graph.
        """
        made, given = self.buffers.work, buffers.work
        if (made.rank, made.home, made.batch) != (given.rank, given.home, given.batch):
            raise ValueError(
                "these buffers are of other tables or rows than the trainer; "
                "fix: make both of one placement and batch"
            )
        can = self.graphs and self.collectives.world == 1
        if front and not can:
            raise ValueError("a step is one graph on one GPU, with a trainer of CUDA graphs")
        self.buffers = buffers
        whole = can and (whole or bool(front))
        key = (whole, id(buffers), *map(id, front))  # they are kept, so the ids are theirs alone
        if key in self._bindings:
            self._at = self._bindings[key]
            return
        self._at = self._bindings[key] = self._new_binding(buffers, tuple(front), whole)
        self._settle()  # weights and buffers were zeroed on another stream than that of steps
        if self.graphs:
            self.capture()

    def _new_binding(self, buffers: Buffers, front: tuple[Call, ...], whole: bool) -> Binding:
        work = buffers.work
        slots = [segments(buffers, slot, self.model.rows) for slot in range(buffers.slots)]
        kind = TorchEmbedding if self.device.type == "cpu" else _gpu_embedding()
        return Binding(
            buffers=buffers, front=front, whole=whole,
            embedding=kind(
                self.weights, self._pooled, self._pooled_gradient, slots, self.bad,
                self._sparse_rate,
            ),
            inputs=[
                [buffers.result(slot, f"dense/{name}") for name in work.plan.dense]
                for slot in range(buffers.slots)
            ],
            labels=[buffers.result(slot, "labels") for slot in range(buffers.slots)],
        )  # fmt: skip

    def learn(self, on: bool) -> None:
        """Whether steps change the weights; probes of single stages must not."""
        self._settle()
        self._learns = on
        self._rate.fill_(self.model.lr if on else 0.0)
        self._sparse_rate.fill_(self.model.lr / self.collectives.world if on else 0.0)
        self._settle()

    def step(self, slot: int, on_stage: Callable[[str], object] = lambda _: None) -> None:
        """Train on one slot. `on_stage` is called where each stage begins, if they are apart."""
        if whole := self._at.graphs.get((_STEP, slot)):
            whole()
            return
        for stage in STAGES:
            on_stage(stage)
            self.run(stage, slot)

    def run(self, stage: str, slot: int) -> None:
        """Queue one stage."""
        if stage == "emb_fwd":
            self._compute("emb_fwd", slot)
            self._exchange(self._features[1:], self._pooled, forward=True)
        elif stage == "emb_bwd":
            self._exchange(self._pooled_gradient, self._gradient[1:], forward=False)
            self._compute("emb_bwd", slot)
        elif stage == "grad_comm":
            if self.collectives.world > 1:
                self.collectives.average(self._buckets)
            self._compute("grad_comm", 0)
        else:
            self._compute(stage, slot)

    def capture(self) -> None:
        """Turn the work of every stage into a CUDA graph, or all of a step into one.

        A few steps are run first, without learning. Collectives are queued between graphs, not
        captured. All graphs of a binding share a pool of memory: they are replayed in the order of
        their capture, never side by side.
        """
        # One stream for all captures: autograd remembers where a parameter was first used. It goes
        # first: a graph of PyTorch's keeps the priority of the stream that it was captured in (pull
        # request 167346).
        if self._capture_stream is None:
            _, most = torch.cuda.Stream.priority_range()
            self._capture_stream = torch.cuda.Stream(self.device, priority=most)
        stream = self._capture_stream
        learns = self._learns
        self.learn(False)
        with torch.cuda.stream(stream):
            for slot in range(self._at.buffers.slots):
                for _ in range(2):
                    for call in self._at.front[slot : slot + 1]:
                        call()
                    self.step(slot)
        self.learn(learns)
        self._at.losses.clear()
        pool = torch.cuda.graph_pool_handle()
        graphs: dict[tuple[str, int], Callable[[], None]] = {}
        for slot in range(self._at.buffers.slots):
            for name in (_STEP,) if self._at.whole else STAGES:
                if name == "grad_comm" and slot:
                    continue
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
                    self._work(name, slot)
                graphs[name, slot] = graph.replay
        self._at.graphs = graphs

    def loss(self, slot: int) -> float:
        """Mean loss of this rank's rows in the last step on `slot`."""
        self._settle()
        return float(self._at.losses[slot].item())

    def check(self) -> None:
        """Raise DataError if an id of any batch so far was outside of its table."""
        self._settle()
        work = self.buffers.work
        raise_outside(work.plan, dict(zip(work.tables, self.bad.tolist(), strict=True)), "left out")

    @property
    def layers(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Weight [out, in] and bias [out] of every layer, the bottom MLP's first: own memory."""
        return self._layers

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _compute(self, stage: str, slot: int) -> None:
        replay = self._at.graphs.get((stage, slot))
        if replay:
            replay()
        else:
            self._work(stage, slot)

    def _work(self, stage: str, slot: int) -> None:
        if stage == _STEP:
            for call in self._at.front[slot : slot + 1]:
                call()
            for each in STAGES:
                self._work(each, slot)
        elif stage == "emb_fwd":
            self._at.embedding.forward(slot)
        elif stage == "mlp_fwd":
            self._forward(slot)
        elif stage == "mlp_bwd":
            loss = self._at.losses[slot]
            torch._foreach_copy_(self._gradients, list(torch.autograd.grad(loss, self._parameters)))
            self._at.losses[slot] = loss.detach()  # lets go of what autograd kept
        elif stage == "emb_bwd":
            self._at.embedding.backward(slot)
        else:
            self._flat.data.addcmul_(self._flat_gradient, self._rate, value=-1.0)

    def _forward(self, slot: int) -> None:
        x = torch.cat(self._at.inputs[slot], dim=1)
        layers = len(self.model.bottom)
        for weight, bias in self._layers[:layers]:
            x = functional.relu(functional.linear(x, weight, bias))
        x = Interaction.apply(x, self._features, self._gradient, self._pairs, self._square)
        for weight, bias in self._layers[layers:-1]:
            x = functional.relu(functional.linear(x, weight, bias))
        x = functional.linear(x, *self._layers[-1]).squeeze(1)
        self._at.losses[slot] = functional.binary_cross_entropy_with_logits(
            x, self._at.labels[slot]
        )

    def _exchange(self, target: torch.Tensor, source: torch.Tensor, *, forward: bool) -> None:
        """Pooled rows to the ranks that train on them, or their gradients back."""
        if self.collectives.world == 1:
            return
        received, sent = (self._theirs, self._mine) if forward else (self._mine, self._theirs)
        self.collectives.all_to_all(target.view(-1), source.view(-1), received, sent)

    def _make_dense(self, bucket_bytes: int) -> None:
        drawn = [part for layer in initial_layers(self.model, self._seed) for part in layer]
        counts = [part.numel() for part in drawn]
        self._flat = torch.cat([part.flatten() for part in drawn]).to(self.device)
        self._flat_gradient = torch.zeros_like(self._flat)
        parts, gradients = self._flat.split(counts), self._flat_gradient.split(counts)
        self._parameters = [
            part.view(like.shape).detach().requires_grad_()
            for part, like in zip(parts, drawn, strict=True)
        ]
        self._gradients = [g.view(like.shape) for g, like in zip(gradients, drawn, strict=True)]
        self._layers = list(zip(self._parameters[::2], self._parameters[1::2], strict=True))
        self._buckets = self._flat_gradient.split(max(bucket_bytes // 4, 1))


def _gpu_embedding() -> Callable[..., Embedding]:
    from rap_training.kernels.embedding import TritonEmbedding

    return TritonEmbedding


def _owned(home: Sequence[int], rank: int) -> list[int]:
    return [table for table, owner in enumerate(home) if owner == rank]

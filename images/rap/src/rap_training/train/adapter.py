"""TorchRec's trainer in the place of ours: the same loop, batches, weights and learning rate.

TorchRec sends ids to the ranks that own the tables by itself, so it is given this rank's own rows
of every feature, and nothing is exchanged before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from rap_training.memory import Buffers
from rap_training.planner.capacity import STAGES
from rap_training.train.collectives import Collectives
from rap_training.train.dlrm import Trainer
from rap_training.train.embedding import draw_table, raise_outside
from rap_training.train.model import Model, initial_layers
from rap_training.train.torchrec import TorchRecTrainer, Weights
from rap_training.work import Piece, Work


class TorchRecAdapter:
    """What the loop uses of `rap_training.train.dlrm.Trainer`, done by TorchRec.

    TorchRec does not show its stages: a step is one, under the name of our first. RAP's gates then
    all open where a step begins, and what is probed is the capacity of a whole step.
    """

    stages = STAGES[:1]

    def __init__(
        self, model: Model, buffers: Buffers, collectives: Collectives, *, seed: int
    ) -> None:
        """Starts from the weights that Trainer draws by `seed`. Raises TorchRecMissing."""
        work, device = buffers.work, buffers.device
        self.model, self.collectives, self.device = model, collectives, device
        self._join(work.world)
        layers = initial_layers(model, seed)
        bottom = len(model.bottom)
        self.trainer = TorchRecTrainer(
            rows=model.rows, dim=model.dim, dense_width=model.dense_width, bottom=model.bottom,
            over=model.over, batch=work.batch, gpu_of=work.home, device=device, rank=work.rank,
            world=work.world, lr=model.lr,
            weights=Weights(tables={}, bottom=layers[:bottom], over=layers[bottom:]),
        )  # fmt: skip
        for table, memory in self.trainer.tables().items():
            draw_table(memory, table, seed)
        self.bad = torch.zeros(len(model.rows), dtype=torch.int64, device=device)
        self._inputs: dict[int, list[Input]] = {}
        self._losses: dict[int, torch.Tensor] = {}
        self.bind(buffers)

    def bind(
        self, buffers: Buffers, front: Sequence[Callable[[], object]] = (), *, whole: bool = False
    ) -> None:
        """See Trainer. Raises ValueError where own rows of a feature are not made here."""
        del whole  # TorchRec's step is no CUDA graph
        assert not front
        if id(buffers) not in self._inputs:
            self._inputs[id(buffers)] = [
                Input(buffers, slot, self.model.rows) for slot in range(buffers.slots)
            ]
            self._settle()  # what is made here is made on another stream than that of steps
        self.buffers = buffers
        self._at = self._inputs[id(buffers)]

    def learn(self, on: bool) -> None:
        """See Trainer."""
        self._settle()
        self.trainer.set_rate(self.model.lr if on else 0.0)
        self._settle()

    def step(self, slot: int, on_stage: Callable[[str], object] = lambda _: None) -> None:
        """Train on one slot. `on_stage` is called once, where the step begins."""
        for stage in self.stages:
            on_stage(stage)
            self.run(stage, slot)

    def run(self, stage: str, slot: int) -> None:
        """Queue a step; `stage` is the only one there is."""
        assert stage in self.stages, stage
        given = self._at[slot]
        values, lengths = given.bags(self.bad)
        self._losses[slot] = self.trainer.step(given.dense(), values, lengths, given.labels)

    def loss(self, slot: int) -> float:
        """See Trainer."""
        self._settle()
        return float(self._losses[slot].item())

    def check(self) -> None:
        """See Trainer. Such ids were taken for row 0, as FBGEMM does."""
        self._settle()
        raise_outside(self.buffers.work.plan, dict(enumerate(self.bad.tolist())), "taken for 0")

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _join(self, world: int) -> None:
        """One rank by itself has no process group yet, and TorchRec needs one."""
        if world == 1 and not dist.is_initialized():
            on_gpu = self.device.type == "cuda"
            dist.init_process_group(
                "nccl" if on_gpu else "gloo", store=dist.HashStore(), rank=0, world_size=1,
                device_id=self.device if on_gpu else None,
            )  # fmt: skip


AnyTrainer = Trainer | TorchRecAdapter


@dataclass(frozen=True)
class _Places:
    """Of every place in all padded lists, one table behind the other: int64 [places]."""

    limits: torch.Tensor  # rows of its table
    lists: torch.Tensor  # its list
    steps: torch.Tensor  # its number in the list


class Input:
    """One slot as TorchRec takes it: lists without padding, table by table."""

    def __init__(self, buffers: Buffers, slot: int, rows: Sequence[int]) -> None:
        work, device = buffers.work, buffers.device
        self._kept = buffers  # and with it its id
        self.labels = buffers.result(slot, "labels")
        self._dense = [buffers.result(slot, f"dense/{name}") for name in work.plan.dense]
        pieces = own_rows(work)
        pairs = [buffers.piece(slot, piece) for piece in pieces]
        self._ids = [ids.view(-1) for ids, _ in pairs]
        self._lengths = [
            torch.full((work.batch,), ids.shape[1], dtype=torch.int32, device=device)
            if lengths is None
            else lengths
            for ids, lengths in pairs
        ]
        self._ragged = any(lengths is not None for _, lengths in pairs)
        widths = torch.tensor([piece.type.width for piece in pieces])
        limits = torch.tensor([rows[piece.table] for piece in pieces])
        of_list = widths.repeat_interleave(work.batch)
        lists = torch.arange(len(of_list)).repeat_interleave(of_list)
        first = of_list.cumsum(0) - of_list
        self._last = ((widths * work.batch).cumsum(0) - 1).to(device)  # place of every table
        places = _Places(
            limits=limits.repeat_interleave(widths * work.batch),
            lists=lists,
            steps=torch.arange(len(lists)) - first[lists],
        )
        self._places = _Places(*(t.to(device) for t in vars(places).values()))

    def dense(self) -> torch.Tensor:
        """float32 [batch, dense_width]."""
        return torch.cat(self._dense, dim=1)

    def bags(self, bad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids int64 [ids] and lengths int32 [tables * batch]; ids outside are added to `bad`,
        int64 [tables].

        The host waits for the number of ids where lists are ragged.
        """
        ids, lengths = torch.cat(self._ids), torch.cat(self._lengths)
        inside = (ids >= 0) & (ids < self._places.limits)
        if not self._ragged:
            self._count(~inside, bad)
            return torch.where(inside, ids, 0), lengths
        listed = self._places.steps < lengths[self._places.lists]
        self._count(listed & ~inside, bad)
        return torch.where(inside, ids, 0)[listed], lengths

    def _count(self, wrong: torch.Tensor, bad: torch.Tensor) -> None:
        """Add what is true of `wrong` [places] to `bad`, table by table."""
        until = wrong.cumsum(0)[self._last]
        bad += until.diff(prepend=until.new_zeros(1))


def own_rows(work: Work) -> tuple[Piece, ...]:
    """This rank's rows of every table, in the tables' order. Raises ValueError where not made."""
    found = sorted(work.made_here, key=lambda piece: piece.table)
    whole = [piece.table for piece in found] == list(range(len(work.home)))
    if not whole or any(piece.rows != work.batch for piece in found):
        raise ValueError(
            "TorchRec takes a rank's own rows of every feature; fix: a data-parallel mapping"
        )
    return tuple(found)

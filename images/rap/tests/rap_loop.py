"""A trainer with the input of `sequential`, and what all ranks' batches are for a plain model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import torch.distributed as dist
from rap_model import Batch
from rap_plans import batch, every_operator
from rap_training.backends import NumpyBackend, backend
from rap_training.bound import bind
from rap_training.feed import Feed
from rap_training.launches import unfused
from rap_training.memory import Buffers
from rap_training.sharing.preparation import SLOTS, Steps
from rap_training.train.collectives import Collectives
from rap_training.train.dlrm import Trainer
from rap_training.train.model import Model
from rap_training.train.torchrec import Weights
from rap_training.work import DATA_PARALLEL, Work, data_parallel, locality

PLAN = every_operator()  # tables of 3 to 97 rows, so ids repeat; two of ragged lists
TABLES = len(PLAN.sparse)
ROWS, STEPS, SEED, LR = 40, 5, 7, 1.0
MODEL = Model(
    rows=tuple(output.rows for output in PLAN.sparse), dense_width=PLAN.dense_width,
    over=PLAN.over_arch, bottom=(12, 8), lr=LR,
)  # fmt: skip
ALONE = Collectives(rank=0, world=1)
CPU = torch.device("cpu")
TURNS = tuple(table % 2 for table in range(TABLES))
MIXED = (0, 1, DATA_PARALLEL, 0, 1, DATA_PARALLEL)


@dataclass(frozen=True)
class Case:
    """Where tables lie, who computes their ids, and how gradients are cut."""

    home: tuple[int, ...]
    mapping: tuple[int, ...]
    bucket_bytes: int = 4 << 20


ONE = Case((0,) * TABLES, (0,) * TABLES)
TWO = {
    "own rows": Case(TURNS, data_parallel(TABLES)),
    "own rows, small buckets": Case(TURNS, data_parallel(TABLES), 256),
    "where tables are": Case(TURNS, locality(TURNS)),
    "mixed": Case(TURNS, MIXED),
    "mixed the other way": Case(TURNS, (1, 0, 1, 1, 0, DATA_PARALLEL)),
    "all tables on rank 0": Case((0,) * TABLES, MIXED),
    "all tables on rank 1": Case((1,) * TABLES, data_parallel(TABLES)),
}


def work_of(case: Case, rank: int = 0, world: int = 1) -> Work:
    """One rank's part of a case."""
    return Work(
        plan=PLAN, rank=rank, world=world, batch=ROWS // world, home=case.home,
        mapping=case.mapping,
    )  # fmt: skip


class Loop:
    """A trainer with its own input: batches are preprocessed as `sequential` does it."""

    def __init__(
        self, work: Work, collectives: Collectives, *, device: torch.device = CPU,
        bucket_bytes: int = 4 << 20, graphs: bool = False,
    ) -> None:  # fmt: skip
        self.device, self.collectives = device, collectives
        self.buffers, self.inputs = self.another(work)
        self.trainer = Trainer(
            MODEL, self.buffers, collectives, seed=SEED, bucket_bytes=bucket_bytes, graphs=graphs
        )
        self.start = self.weights()

    def another(self, work: Work) -> tuple[Buffers, Steps]:
        """Memory of its own with the calls that fill it."""
        buffers = Buffers.allocate(work, self.device, SLOTS)
        calls = bind(backend(self.device), unfused(work), buffers)
        raw = [batch(ROWS, seed) for seed in range(STEPS)]
        feed = Feed(work, raw, self.device, "resident")
        return buffers, Steps(feed, buffers, calls, self.collectives)

    def step(self, number: int) -> float:
        """Make batch `number` and train on it; the loss before."""
        self.inputs.all(number)
        self.trainer.step(number % SLOTS)
        return self.trainer.loss(number % SLOTS)

    def steps(self) -> list[float]:
        """All steps, and the check behind them."""
        found = [self.step(number) for number in range(STEPS)]
        self.trainer.check()
        return found

    def weights(self) -> Weights:
        """A copy of what is trained; of the tables, this rank's."""
        tables = self.trainer.buffers.work.tables
        rows = self.trainer.weights.cpu().clone().split([MODEL.rows[t] for t in tables])
        layers = [(w.detach().cpu().clone(), b.detach().cpu().clone())
                  for w, b in self.trainer.layers]  # fmt: skip
        bottom = len(MODEL.bottom)
        return Weights(
            tables=dict(zip(tables, rows, strict=True)), bottom=layers[:bottom],
            over=layers[bottom:],
        )  # fmt: skip


@cache
def global_batches() -> list[Batch]:
    """What all ranks train on: the plan's outputs for all rows, by the reference in one process."""
    work = work_of(ONE)
    buffers = Buffers.allocate(work, CPU, SLOTS)
    calls = [NumpyBackend().bind(launch, buffers, 0) for launch in unfused(work)]
    found = []
    for seed in range(STEPS):
        Feed(work, [batch(ROWS, seed)], CPU, "resident").load(0, buffers, 0)
        for call in calls:
            call()
        ids = []
        for piece in work.needed_here:
            values, lengths = buffers.piece(0, piece)
            counts = [values.shape[1]] * ROWS if lengths is None else lengths.tolist()
            rows = zip(values, counts, strict=True)
            ids.append([row[:count].clone() for row, count in rows])
        dense = torch.cat([buffers.result(0, f"dense/{name}") for name in PLAN.dense], dim=1)
        found.append(Batch(dense, ids, buffers.result(0, "labels").clone()))
    return found


@dataclass(frozen=True)
class Answer:
    """One rank's losses and weights, before and after, as numpy arrays."""

    losses: list[float]
    start: Weights
    after: Weights


def two_ranks(rank: int, world: int, cases: list[Case], device: str, graphs: bool) -> list[Answer]:
    """Every case on this rank."""
    there = torch.device(device, rank) if device == "cuda" else CPU
    if device == "cuda":
        torch.cuda.set_device(there)
    collectives = Collectives(rank=rank, world=world, group=dist.group.WORLD)
    found = []
    for case in cases:
        loop = Loop(
            work_of(case, rank, world), collectives, device=there, graphs=graphs,
            bucket_bytes=case.bucket_bytes,
        )  # fmt: skip
        found.append(Answer(loop.steps(), in_arrays(loop.start), in_arrays(loop.weights())))
    return found


def in_arrays(weights: Weights) -> Weights:
    return turned(weights, lambda tensor: tensor.numpy())


def in_tensors(weights: Weights) -> Weights:
    return turned(weights, torch.from_numpy)


def turned(weights: Weights, how) -> Weights:  # type: ignore[no-untyped-def]
    return Weights(
        tables={table: how(rows) for table, rows in weights.tables.items()},
        bottom=[(how(w), how(b)) for w, b in weights.bottom],
        over=[(how(w), how(b)) for w, b in weights.over],
    )

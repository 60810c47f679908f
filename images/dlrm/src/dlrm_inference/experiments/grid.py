"""Ours against FBGEMM's kernel at every pooling, also where we might lose, and on long bags."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import torch
from reprokit.progress import Progress
from reprokit.records import RecordWriter

from dlrm_inference.config import Config
from dlrm_inference.cuda.bench import INDEX_DTYPES, Bench, all_tables, one_table
from dlrm_inference.cuda.best import Best
from dlrm_inference.cuda.fbgemm import Fbgemm
from dlrm_inference.cuda.rounds import in_graphs, in_rounds

POOLINGS = (1, 2, 3, 5, 8, 10, 20, 40, 150)
BATCHES = (64, 2048, 16384)
ROWS = (500_000, 10_000_000)
IDS = ("uniform", "zipf", "sorted")
EXPONENT = 1.2  # of Zipf's law
LONG = {"even": (0, 0), "ten_of_5000": (10, 5000), "one_of_100000": (1, 100_000)}
STATE = (
    "a table's ids of a batch come again after those of every other table and batch, and the L2 "
    "holds what launches on these left; variants in an order drawn anew each round"
)
_LAUNCHES = {"one_table": one_table, "all_tables": all_tables}


class Cell(Bench):
    """A Bench of row ids that are drawn on the GPU: bags of any lengths, `lengths` (batch,)."""

    def __init__(self, tables: Bench, config: Config, kind: str, lengths: torch.Tensor) -> None:
        self.config, self.device, self.tuned = config, tables.device, {}
        self.storage, self.weights = tables.storage, tables.weights
        generator = torch.Generator(self.device).manual_seed(config.seed)
        draw = _drawer(kind, config.rows, generator)
        dtype = INDEX_DTYPES[config.index_dtype]
        total = int(lengths.sum())
        self.indices = [
            [draw(total).to(dtype) for _ in range(config.tables)] for _ in range(config.batches)
        ]
        ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(self.device, dtype)
        self.offsets = [ends.clone() for _ in range(config.tables)]


class Tables(Bench):
    """The tables alone."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.storage, self.weights = self._make_weights()


def run(config: Config, out: RecordWriter) -> None:
    """Write `cell_time` (us per table) of best and fbgemm for every pooling, batch, kind of ids and
    number of rows, one table a launch and all in one; and `long_bags_time` (us), one table a
    launch, with few bags that are far longer than the others.

    A sample of `cell_time` is a CUDA graph of several launches between two events, its time over
    the tables that they served, so that what the events themselves take hardly counts (`_graphs`).
    One of `long_bags_time` is a single launch between two events.
    """
    rivals: dict[str, Best | Fbgemm] = {"best": Best(), "fbgemm": (fbgemm := Fbgemm())}
    if reason := fbgemm.why_unsupported([config.dim]):
        out.skip({"variant": "fbgemm"}, reason)
        del rivals["fbgemm"]
    rivals = {name: one for name, one in rivals.items() if name in config.variants}
    progress = Progress(
        len(ROWS) * len(BATCHES) * len(POOLINGS) * len(IDS)
        * len(_LAUNCHES) * (config.samples + config.warmup)
    )  # fmt: skip
    for rows in ROWS:
        tables = Tables(replace(config, rows=rows))
        for batch, pooling, kind in product(BATCHES, POOLINGS, IDS):
            here = replace(tables.config, batch=batch, pooling=pooling)
            cell = Cell(tables, here, kind, torch.full((batch,), pooling))
            labels = {"pooling": pooling, "batch": batch, "ids": kind, "rows": rows}
            for name, launch, samples, note in _measure(cell, rivals, progress):
                out.write(
                    "cell_time", "us", samples,
                    {**{key: str(value) for key, value in labels.items()},
                     "variant": name, "launch": launch},
                    warmup=config.warmup, note=note,
                )  # fmt: skip
        if rows == ROWS[0]:
            _long_bags(tables, rivals, out)
        del tables


def _measure(
    cell: Cell, rivals: dict[str, Best | Fbgemm], progress: Progress
) -> Iterator[tuple[str, str, list[float], str]]:
    """Yield variant, launch, samples (us per table) and how they were made; every variant was
    proved right."""
    for name, variant in rivals.items():
        cell.prove(name, variant.forward)
    for launch, make in _LAUNCHES.items():
        size, turns, served = _graphs(cell.config)[launch]
        targets = {
            name: in_graphs(make(cell, variant).calls, size, turns)
            for name, variant in rivals.items()
        }
        note = (
            f"a CUDA graph of {size * turns} launches between two events, its time over the "
            f"{served} tables that they served; {STATE}"
        )
        for name, samples in in_rounds(cell, targets, progress).items():
            yield name, launch, [sample / served for sample in samples], note
    cell.finish()


def _graphs(config: Config) -> dict[str, tuple[int, int, int]]:
    """Return by launch the launches in a turn of a graph, its turns, and the tables it serves.

    One table a launch: every table in turn on one batch of ids, and a graph for each batch. All
    tables in one launch: every batch in turn, so often that there are about as many launches as
    there are tables.
    """
    tables, batches = config.tables, config.batches
    turns = max(1, tables // batches)
    return {
        "one_table": (tables, 1, tables),
        "all_tables": (batches, turns, batches * turns * tables),
    }


def _long_bags(tables: Tables, rivals: dict[str, Best | Fbgemm], out: RecordWriter) -> None:
    config = replace(tables.config, batch=2048, pooling=150)
    progress = Progress(len(LONG) * (config.samples + config.warmup))
    for bags, (count, length) in LONG.items():
        lengths = torch.full((config.batch,), config.pooling)
        lengths[config.batch // 3 : config.batch // 3 + count] = length
        cell = Cell(tables, config, "uniform", lengths)
        for name, variant in rivals.items():
            cell.prove(name, variant.forward)
        targets = {name: one_table(cell, variant) for name, variant in rivals.items()}
        for name, samples in in_rounds(cell, targets, progress).items():
            note = (
                f"one launch between two events; {count} bags of {length} ids among "
                f"{config.batch} of {config.pooling}"
            )
            labels = {"variant": name, "bags": bags}
            out.write("long_bags_time", "us", samples, labels, warmup=config.warmup, note=note)
        cell.finish()


def _drawer(kind: str, rows: int, generator: torch.Generator) -> Callable[[int], torch.Tensor]:
    """Return what draws row ids (count,) int64. By Zipf's law hot rows lie anywhere in the table;
    sorted ids ascend from the first bag to the last."""
    device = generator.device

    def uniform(count: int) -> torch.Tensor:
        return torch.randint(rows, (count,), generator=generator, device=device)

    if kind == "uniform":
        return uniform
    if kind == "sorted":
        return lambda count: uniform(count).sort().values
    ranks = torch.arange(1, rows + 1, dtype=torch.float64, device=device)
    reached = ranks.pow(-EXPONENT).cumsum(0)
    place = torch.randperm(rows, generator=generator, device=device)

    def zipf(count: int) -> torch.Tensor:
        drawn = torch.rand(count, dtype=torch.float64, generator=generator, device=device)
        return place[torch.searchsorted(reached, drawn * reached[-1]).clamp(max=rows - 1)]

    return zipf

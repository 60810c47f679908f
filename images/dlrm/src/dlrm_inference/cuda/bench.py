"""One dataset's tensors on the GPU, and every variant as something that can be timed on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from reprokit.records import RecordWriter
from reprokit.skip import cannot_run

from dlrm_inference.config import Config, WrongResult
from dlrm_inference.cuda import pin
from dlrm_inference.cuda.best import MOST_TABLES, Best
from dlrm_inference.cuda.design import TUNED
from dlrm_inference.cuda.fbgemm import Fbgemm, join_offsets
from dlrm_inference.cuda.report import raise_if_out_of_range
from dlrm_inference.cuda.scheme import Scheme
from dlrm_inference.cuda.stock21 import Stock21
from dlrm_inference.cuda.timing import Target
from dlrm_inference.cuda.variants import VARIANTS
from dlrm_inference.data import Batches, make_batches
from dlrm_inference.describe import write_dataset

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
INDEX_DTYPES = {"int64": torch.int64, "int32": torch.int32}
_TOLERANCE = {
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}  # of the largest sum
_CHECKED_TABLES = 2

Forward = Callable[..., torch.Tensor]


class Bench:
    """Tables, row ids and offsets of a Config on one GPU.

    weights (tables, rows, dim), one storage; indices[batch][table] (batch size * pooling,);
    offsets (batch size + 1,). Input set i of the timing loops is table i % tables of batch
    i // tables, so that consecutive launches never share a table.
    """

    def __init__(self, config: Config, out: RecordWriter) -> None:
        if not torch.cuda.is_available():
            cannot_run("PyTorch sees no GPU here")
        self.config = config
        self.device = torch.device("cuda", torch.cuda.current_device())
        out.environment(cuda=torch.version.cuda)
        self.tuned: dict[tuple[str, str], Scheme] = {}  # by variant and L2 mode; see tuning.py
        self.batches: Batches = make_batches(config)
        write_dataset(out, config, self.batches)
        self.weights = self._make_weights()
        self.indices = self._on_device(self.batches)
        self.offsets = torch.from_numpy(self.batches.offsets).to(self.device)

    def tuning(self) -> Bench:
        """Return a bench over the same tables with row ids of the slice that is never measured."""
        other: Bench = object.__new__(Bench)
        other.config, other.device, other.tuned = replace(self.config, batches=1), self.device, {}
        other.batches = self.batches.tuning()
        other.weights, other.offsets = self.weights, self.offsets
        other.indices = self._on_device(other.batches)
        return other

    @property
    def sets(self) -> list[tuple[int, int]]:
        """(table, batch) of every input set, in the order of rotation."""
        config = self.config
        return [(t, b) for b in range(config.batches) for t in range(config.tables)]

    @cached_property
    def l2(self) -> pin.L2:
        """What the device offers for persisting lines."""
        return pin.read_l2(self.device)

    @cached_property
    def hot_count(self) -> int:
        """Rows to pin: those asked for, else as many as the largest set-aside holds."""
        most = self.config.hot_rows or self.l2.hot_rows(self.config.row_bytes)
        window = self.l2.most_window // self.config.row_bytes
        return max(1, min(most, window or most, self.config.rows))

    @cached_property
    def hot_rows(self) -> list[torch.Tensor]:
        """Every table's hottest rows (count,) int64, by falling popularity."""
        return [
            torch.from_numpy(self.batches.hot_rows(table, self.hot_count)).to(self.device)
            for table in range(self.config.tables)
        ]

    @cached_property
    def hot_first(self) -> tuple[torch.Tensor, list[list[torch.Tensor]]]:
        """The tables with their hot rows first, and the row ids that fit them."""
        moved = torch.empty_like(self.weights)
        places = []
        for table, hot in enumerate(self.hot_rows):
            order = pin.hot_first(self.config.rows, hot)
            torch.index_select(self.weights[table], 0, order, out=moved[table])
            place = torch.empty_like(order)
            place[order] = torch.arange(self.config.rows, device=self.device)
            places.append(place)
        indices = [
            [places[t][ids.long()].to(ids.dtype) for t, ids in enumerate(tables)]
            for tables in self.indices
        ]
        return moved, indices

    def reference(self, table: int, batch: int) -> torch.Tensor:
        """Return the bags' sums (bags, dim) float64, with nothing of ours in it."""
        ids = self.indices[batch][table].long()
        rows = self.weights[table].index_select(0, ids).double()
        return rows.view(self.config.batch, self.config.pooling, -1).sum(1)

    def prove(self, name: str, forward: Forward) -> None:
        """Compare a variant's sums with the reference. Raises WrongResult."""
        for table in range(min(_CHECKED_TABLES, self.config.tables)):
            want = self.reference(table, 0)
            got = forward(self.weights[table], self.indices[0][table], self.offsets)
            raise_if_out_of_range(self.device)
            worst = float((got.double() - want).abs().max() / want.abs().max())
            if not worst <= _TOLERANCE[self.weights.dtype]:
                raise WrongResult(f"{name} gives wrong sums: off by {worst:.1e} of the largest")

    def in_mode(self, variant: Scheme, l2_mode: str) -> Scheme:
        """Return a pinning variant as it was tuned for an L2 mode; others as they are."""
        return self.tuned.get((variant.name, l2_mode), variant)

    def finish(self) -> None:
        """Raises IndexError where a launch saw an index out of range."""
        raise_if_out_of_range(self.device)

    def _on_device(self, batches: Batches) -> list[list[torch.Tensor]]:
        """[batch][table] row ids (batch size * pooling,)."""
        return [
            [torch.from_numpy(ids).to(self.device) for ids in tables]
            for tables in zip(*batches.indices, strict=True)
        ]

    def _make_weights(self) -> torch.Tensor:
        """Uniform in +-sqrt(1 / rows), as the artifact draws them (docs/papers/dlrm.md, 2)."""
        config = self.config
        generator = torch.Generator(self.device).manual_seed(config.seed)
        shape = (config.tables, config.rows, config.dim)
        weights = torch.empty(shape, dtype=DTYPES[config.dtype], device=self.device)
        bound = config.rows**-0.5
        for table in weights:
            table.uniform_(-bound, bound, generator=generator)
        return weights


def make_variant(name: str, config: Config) -> Any:
    """Return a variant with the distance, register cap and occupancy that the Config asks for.

    A variant that is to be tuned (tuning.py) comes as the artifact has it.
    """
    if name == "stock":
        return Stock()
    if name == "stock21":
        return Stock21()
    if name == "fbgemm":
        return Fbgemm()
    if name in TUNED:
        return VARIANTS[TUNED[name][0]]
    variant = VARIANTS[name]
    if isinstance(variant, Scheme):
        cap = 0 if name == "base" else config.register_cap
        return variant.tuned(config.distance, cap, config.warps_per_sm)
    return variant


def why_not(variant: Any, bench: Bench) -> str:
    """Return why a variant cannot serve these tensors here, "" when it can."""
    if isinstance(variant, Stock21):
        capability = torch.cuda.get_device_capability(bench.device)
        reason = variant.why_unsupported(capability, bench.config.index_dtype)
        if not reason and bench.weights.dtype != torch.float32:
            reason = "PyTorch 2.1's kernel was read out for float32 tables only"
        return reason
    if isinstance(variant, Fbgemm):
        if bench.weights.dtype not in variant.dtypes:
            return f"fbgemm does not write {bench.config.dtype} results"
        return variant.why_unsupported()
    if isinstance(variant, Stock):
        return ""
    weight, ids = bench.weights[0], bench.indices[0][0]
    return str(variant.supports(weight, ids, bench.offsets))


class Stock:
    """The installed PyTorch's operator, called below autograd."""

    name = "stock"

    def forward(
        self, weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor
    ) -> torch.Tensor:
        """Return the bags' sums (bags, dim); offsets (bags + 1,)."""
        operator = torch.ops.aten._embedding_bag_forward_only
        # The last offset is left out: then the operator needs no copy of the offsets.
        answer = operator(weight, indices, offsets[:-1], False, 0, False, None, False, -1)
        result: torch.Tensor = answer[0]
        return result


def one_table(bench: Bench, variant: Any) -> Target:
    """Return a variant without pinning, one table a launch."""
    calls: list[Callable[[], object]] = []
    for table, batch in bench.sets:
        arguments = (bench.weights[table], bench.indices[batch][table], bench.offsets)
        if isinstance(variant, Scheme | Best):
            calls.append(variant.prepare(*arguments))
        else:
            calls.append(_bound(variant.forward, *arguments))
    return Target(calls=calls)


def all_tables(bench: Bench, variant: Any) -> Target | None:
    """Return a variant that serves all tables in one launch, None when it has no such mode."""
    if isinstance(variant, Best) and bench.config.tables <= MOST_TABLES:
        offsets = [bench.offsets] * bench.config.tables
        return Target(
            calls=[
                variant.prepare_tables(list(bench.weights), ids, offsets) for ids in bench.indices
            ]
        )
    if isinstance(variant, Fbgemm):
        joined = join_offsets([bench.offsets] * bench.config.tables)
        return Target(
            calls=[
                _bound(variant.forward_tables, bench.weights, torch.cat(ids), joined)
                for ids in bench.indices
            ]
        )
    return None


@contextmanager
def pinned(bench: Bench, variant: Scheme, mode: str) -> Iterator[Target]:
    """Yield a pinning variant in one L2 mode, one table a launch. Inside the block the mode's
    set-aside holds; pinning itself is ahead of the timed launch, not in it."""
    variant = bench.in_mode(variant, mode)
    aside = 0 if mode == "hint" else min(bench.l2.most_set_aside, _hot_bytes(bench))
    with pin.set_aside(aside):
        if mode == "window":
            weights, indices = bench.hot_first
            calls = [
                pin.windowed(
                    variant.prepare(weights[table], indices[batch][table], bench.offsets),
                    weights[table],
                    bench.hot_count,
                    aside,
                )
                for table, batch in bench.sets
            ]
            yield Target(calls=calls)
            return
        pins = [
            pin.make_pin(bench.weights[t], bench.hot_rows[t]) for t in range(bench.config.tables)
        ]
        yield Target(
            calls=one_table(bench, variant).calls,
            before=[pins[table] for table, _ in bench.sets],
            outside=(lambda _: _reset(bench)) if mode == "setaside_reset" else None,
        )


def _reset(bench: Bench) -> None:
    torch.cuda.synchronize(bench.device)
    pin.reset()


def _hot_bytes(bench: Bench) -> int:
    return bench.hot_count * bench.config.row_bytes


def _bound(forward: Forward, *arguments: object) -> Callable[[], object]:
    return lambda: forward(*arguments)

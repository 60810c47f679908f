"""One dataset's tensors on the GPU, and every variant as something that can be timed on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Any

import torch
from reprokit.records import RecordWriter
from reprokit.skip import cannot_run

from dlrm_inference.config import MODES, ONE_SHAPE, Config, WrongResult
from dlrm_inference.cuda import pin
from dlrm_inference.cuda.best import Best
from dlrm_inference.cuda.design import TUNED
from dlrm_inference.cuda.fbgemm import Fbgemm, TableLayout, join_offsets, make_layout
from dlrm_inference.cuda.frames import MOST_TABLES
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
_LINE = 128  # elements that a table's start is a multiple of

Forward = Callable[..., torch.Tensor]


class Bench:
    """Tables, row ids and offsets of a Config on one GPU.

    weights[table] (rows, dim), all parts of `storage`; indices[batch][table] (ids of the batch,);
    offsets[table] (batch size + 1,). Input set i of the timing loops is table i % tables of batch
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
        self.storage, self.weights = self._make_weights()
        self.indices = self._on_device(self.batches)
        self.offsets = [torch.from_numpy(each).to(self.device) for each in self.batches.offsets]

    def tuning(self) -> Bench:
        """Return a bench over the same tables with row ids of the slice that is never measured."""
        other: Bench = object.__new__(Bench)
        other.config, other.device, other.tuned = replace(self.config, batches=1), self.device, {}
        other.batches = self.batches.tuning()
        other.storage, other.weights, other.offsets = self.storage, self.weights, self.offsets
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
        return max(1, min(most, window or most, self.config.rows_of(0)))

    @cached_property
    def hot_rows(self) -> list[torch.Tensor]:
        """Every table's hottest rows (count,) int64, by falling popularity."""
        return [
            torch.from_numpy(self.batches.hot_rows(table, self.hot_count)).to(self.device)
            for table in range(self.config.tables)
        ]

    @cached_property
    def hot_first(self) -> tuple[list[torch.Tensor], list[list[torch.Tensor]]]:
        """The tables with their hot rows first, and the row ids that fit them."""
        moved, places = [], []
        for table, hot in enumerate(self.hot_rows):
            order = pin.hot_first(len(self.weights[table]), hot)
            moved.append(self.weights[table].index_select(0, order))
            place = torch.empty_like(order)
            place[order] = torch.arange(len(order), device=self.device)
            places.append(place)
        indices = [
            [places[t][ids.long()].to(ids.dtype) for t, ids in enumerate(tables)]
            for tables in self.indices
        ]
        return moved, indices

    def reference(self, table: int, batch: int) -> torch.Tensor:
        """Return the bags' sums or means (bags, dim) float64, with nothing of ours in it."""
        weight, lengths = self.weights[table], self.offsets[table].diff().long()
        rows = weight.index_select(0, self.indices[batch][table].long()).double()
        bag = torch.repeat_interleave(torch.arange(len(lengths), device=self.device), lengths)
        sums = rows.new_zeros(len(lengths), weight.shape[1]).index_add_(0, bag, rows)
        return sums / lengths.clamp(min=1)[:, None] if self.config.mode == "mean" else sums

    def prove(self, name: str, forward: Forward) -> None:
        """Compare a variant's sums with the reference. Raises WrongResult.

        Above some ten thousand rows float32 itself rounds more than the bound for other bags: an
        error grows with the root of the number of sums (Higham and Mary, 2019).
        """
        for table in range(min(self.config.tables, self.config.distinct_shapes + 1)):
            want = self.reference(table, 0)
            got = forward(*self.arguments(table, 0), mode=self.config.mode)
            raise_if_out_of_range(self.device)
            worst = float((got.double() - want).abs().max() / want.abs().max())
            longest = int(self.offsets[table].diff().max())
            rounding = longest**0.5 * torch.finfo(torch.float32).eps
            if not worst <= max(_TOLERANCE[self.storage.dtype], rounding):
                raise WrongResult(f"{name} gives wrong sums: off by {worst:.1e} of the largest")

    def arguments(self, table: int, batch: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return what a variant's `forward` takes: one table, its ids and its offsets."""
        return self.weights[table], self.indices[batch][table], self.offsets[table]

    @cached_property
    def layout(self) -> TableLayout:
        """Where FBGEMM finds the tables in `storage`."""
        starts = [weight.storage_offset() for weight in self.weights]
        return make_layout(starts, [weight.shape[1] for weight in self.weights], self.device)

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

    def _make_weights(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Uniform in +-sqrt(1 / rows), as the artifact draws them (docs/papers/dlrm.md, 2)."""
        config = self.config
        generator = torch.Generator(self.device).manual_seed(config.seed)
        shapes = [(config.rows_of(t), config.dim_of(t)) for t in range(config.tables)]
        ends = [0, *accumulate(-(-rows * dim // _LINE) * _LINE for rows, dim in shapes)]
        storage = torch.empty(ends[-1], dtype=DTYPES[config.dtype], device=self.device)
        weights = []
        for (rows, dim), start in zip(shapes, ends, strict=False):
            table = storage[start : start + rows * dim].view(rows, dim)
            weights.append(table.uniform_(-(rows**-0.5), rows**-0.5, generator=generator))
        return storage, weights


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
    if bench.config.shapes and getattr(variant, "pins", False):
        return ONE_SHAPE
    if isinstance(variant, Stock21):
        capability = torch.cuda.get_device_capability(bench.device)
        reason = variant.why_unsupported(capability, bench.config.index_dtype)
        if not reason and bench.storage.dtype != torch.float32:
            reason = "PyTorch 2.1's kernel was read out for float32 tables only"
        return reason
    if isinstance(variant, Fbgemm):
        if bench.storage.dtype not in variant.dtypes:
            return f"fbgemm does not write {bench.config.dtype} results"
        return variant.why_unsupported([weight.shape[1] for weight in bench.weights])
    if isinstance(variant, Stock):
        return ""
    return str(variant.supports(*bench.arguments(0, 0)))


def why_not_together(variant: Any, bench: Bench) -> str:
    """Return why a variant cannot serve all tables of this bench in one launch, "" when it can."""
    if isinstance(variant, Fbgemm):
        return ""
    if not isinstance(variant, Best):
        return "it serves one table a launch"
    if bench.config.tables > MOST_TABLES:
        return f"one launch takes at most {MOST_TABLES} tables, not {bench.config.tables}"
    if len({weight.shape[1] for weight in bench.weights}) > 1:
        return "the tables of one launch must have one dim"
    return ""


class Stock:
    """The installed PyTorch's operator, called below autograd."""

    name = "stock"

    def forward(
        self,
        weight: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        *,
        mode: str = "sum",
    ) -> torch.Tensor:
        """Return the bags' sums or means (bags, dim); offsets (bags + 1,)."""
        operator = torch.ops.aten._embedding_bag_forward_only
        # The last offset is left out: then the operator needs no copy of the offsets.
        number = MODES.index(mode)
        answer = operator(weight, indices, offsets[:-1], False, number, False, None, False, -1)
        result: torch.Tensor = answer[0]
        return result


def one_table(bench: Bench, variant: Any) -> Target:
    """Return a variant without pinning, one table a launch."""
    # What can be done once is: a prepared launch is one driver call.
    make = (
        variant.prepare if isinstance(variant, Scheme | Best) else partial(partial, variant.forward)
    )
    return Target(
        calls=[make(*bench.arguments(*one), mode=bench.config.mode) for one in bench.sets]
    )


def all_tables(bench: Bench, variant: Any) -> Target:
    """Return a variant that serves all tables in one launch; see `why_not_together`."""
    mode = bench.config.mode
    if isinstance(variant, Best):
        weights, offsets = bench.weights, bench.offsets
        return Target(
            calls=[
                variant.prepare_tables(weights, ids, offsets, mode=mode) for ids in bench.indices
            ]
        )
    together = partial(variant.forward_tables, bench.storage, mode=mode, layout=bench.layout)
    joined = join_offsets(bench.offsets)
    return Target(calls=[partial(together, torch.cat(ids), joined) for ids in bench.indices])


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
                    variant.prepare(
                        weights[table],
                        indices[batch][table],
                        bench.offsets[table],
                        mode=bench.config.mode,
                    ),
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

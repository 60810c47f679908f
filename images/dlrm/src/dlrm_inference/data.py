"""The five datasets of the paper's hotness study, generated from a seed, or read from a trace.

The paper took its traces from single tables of Meta's `dlrm_datasets`; which tables is not
recorded and the traces are not published. These are generated to a stated share of unique rows
and a stated coverage curve instead (docs/datasets.md); every result says where its ids came from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from dlrm_inference import hotness, traces
from dlrm_inference.bags import make_offsets
from dlrm_inference.config import Config, paper_bound

PROFILE_BATCHES = 2  # size of the slice that is never measured, in batches
_MEASURED, _PROFILE, _MAPPING, _WEIGHTS = range(4)  # independent random streams


@dataclass(frozen=True, kw_only=True)
class Burst:
    """Temporal locality: in every `window` draws, each of `ids` rows is drawn `repeats` times.

    The rows are drawn from the dataset's own popularity, so the long-run curve stays as it is.
    """

    window: int
    ids: int
    repeats: int


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One dataset. `exponent` None is one constant row, 0 is uniform, else Zipf's exponent.

    `unique` is the distinct rows of one batch and `covered` the share of its accesses that the
    hottest 0.1 %, 1 % and 10 % of the rows serve, all at the paper's size (500,000 rows,
    307,200 draws); the tests hold the generator to both.
    """

    summary: str
    exponent: float | None
    unique: int
    covered: tuple[float, float, float]
    burst: Burst | None = None


SPECS: Mapping[str, Spec] = MappingProxyType(
    {
        "one_item": Spec(
            summary="every access is to the same row", exponent=None, unique=1, covered=(1, 1, 1)
        ),
        "high_hot": Spec(
            summary="Zipf 1.2: a tenth of the accesses are to distinct rows",
            exponent=1.2,
            unique=31_170,
            covered=(0.79, 0.9, 1.0),
        ),
        "med_hot": Spec(
            summary="Zipf 0.87 with bursts: six rows at a time recur 38 times within 2,300 draws",
            exponent=0.873,
            unique=111_200,
            covered=(0.3, 0.52, 0.8),
            burst=Burst(window=2300, ids=6, repeats=38),
        ),
        "low_hot": Spec(
            summary="Zipf 0.6: three fifths of the accesses are to distinct rows",
            exponent=0.6,
            unique=188_006,
            covered=(0.06, 0.17, 0.53),
        ),
        "random": Spec(
            summary="uniform with replacement: three quarters are to distinct rows",
            exponent=0.0,
            unique=229_517,
            covered=(0.007, 0.056, 0.37),
        ),
    }
)


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The row ids of every table and batch, and the slice that hot lists and tuning may look at.

    rows: of every table.
    indices: one C-contiguous array per table, shape (batches, ids of a batch), of the config's
        index dtype; a row of it is one batch, its bags one after the other.
    offsets: one (batch + 1,) per table, same dtype: bag i is indices[offsets[i]:offsets[i + 1]].
        PyTorch's operator without `include_last_offset` wants offsets[:-1].
    source: one sentence on where the ids came from.
    notes: what a reader of the results must know (ids dropped from a trace, replays).
    """

    rows: tuple[int, ...]
    indices: tuple[NDArray[np.integer], ...]
    offsets: tuple[NDArray[np.integer], ...]
    source: str
    hot_list: str  # "profiled" or "oracle"
    notes: tuple[str, ...]
    profile: Callable[[int], NDArray[np.integer]]  # table -> ids of the disjoint slice

    def hot_rows(self, table: int, count: int) -> NDArray[np.int64]:
        """Return at most `count` row ids (int64) of `table`, the most frequent first.

        `profiled` counts them in a slice disjoint from `indices`; `oracle` in `indices` itself,
        as the paper's artifact does. Shorter when fewer distinct rows were seen.
        """
        ids = self.indices[table] if self.hot_list == "oracle" else self.profile(table)
        return hotness.top_rows(ids, self.rows[table], count)

    def tuning(self) -> Batches:
        """Return one batch of every table to tune on, out of the slice that is never measured.

        Its hot lists come from that slice, too. A slice shorter than a batch is replayed.
        """
        indices = tuple(
            np.resize(self.profile(table), (1, self.draws(table)))
            for table in range(len(self.indices))
        )
        return replace(self, indices=indices, hot_list="profiled")

    def draws(self, table: int) -> int:
        """Return the row accesses of one batch of `table`."""
        return int(self.offsets[table][-1])

    def unique_rows(self, table: int, batch: int) -> int:
        """Return the number of distinct rows that one batch of one table reads."""
        return hotness.unique_rows(self.indices[table][batch])


def make_batches(config: Config) -> Batches:
    """Return the measured ids of all tables: generated, or from `config.trace` when given.

    The same config always gives the same ids, and a table's ids do not depend on how many tables
    or batches there are. Raises `traces.TraceError` (a ConfigError) for an unusable trace.
    """
    offsets = tuple(make_offsets(config, table) for table in range(config.tables))
    if config.trace:
        return _from_trace(config, offsets)

    def draw(table: int, purpose: int, batches: int) -> list[NDArray[np.integer]]:
        count = int(offsets[table][-1])
        return [_draw(config, table, purpose, batch, count) for batch in range(batches)]

    def profile(table: int) -> NDArray[np.integer]:
        return np.concatenate(draw(table, _PROFILE, PROFILE_BATCHES))

    return Batches(
        rows=tuple(map(config.rows_of, range(config.tables))),
        indices=tuple(
            np.stack(draw(table, _MEASURED, config.batches)) for table in range(config.tables)
        ),
        offsets=offsets,
        source=f"generated, seed {config.seed}: {SPECS[config.dataset].summary}",
        hot_list=config.hot_list,
        notes=(),
        profile=profile,
    )


def make_table(
    config: Config, table: int, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Return one table (rows, dim) fp32, uniform in +-sqrt(1/rows) as in the paper's artifact.

    Written into `out` when given, a C-contiguous array of that shape.
    """
    rows = config.rows_of(table)
    weights = np.empty((rows, config.dim_of(table)), np.float32) if out is None else out
    _generator(config, table, _WEIGHTS, 0).random(dtype=np.float32, out=weights)
    bound = np.float32(paper_bound(rows))
    weights *= 2 * bound
    weights -= bound
    return weights


def _draw(config: Config, table: int, purpose: int, batch: int, draws: int) -> NDArray[np.integer]:
    """Return one batch of row ids (draws,)."""
    spec, dtype = SPECS[config.dataset], np.dtype(config.index_dtype)
    rows = config.rows_of(table)
    generator = _generator(config, table, purpose, batch)
    if spec.exponent == 0:
        return generator.integers(0, rows, draws, dtype=dtype)
    mapping = _mapping(rows, config.seed, table)
    if spec.exponent is None:
        return np.full(draws, mapping[0], dtype=dtype)
    cumulative = _cumulative(rows, spec.exponent)
    ranks = _ranks(generator, cumulative, draws)
    if spec.burst:
        _add_bursts(generator, cumulative, ranks, spec.burst)
    return mapping[ranks].astype(dtype)


def _ranks(
    generator: np.random.Generator, cumulative: NDArray[np.float64], draws: int
) -> NDArray[np.int64]:
    """Return popularity ranks (draws,), independent and in random order."""
    # Looking up sorted numbers and shuffling is several times faster than random look-ups.
    sorted_ranks = np.searchsorted(cumulative, np.sort(generator.random(draws)), side="right")
    return generator.permutation(sorted_ranks)


def _add_bursts(
    generator: np.random.Generator,
    cumulative: NDArray[np.float64],
    ranks: NDArray[np.int64],
    burst: Burst,
) -> None:
    """Overwrite random places of every window of `ranks` with that window's bursting rows."""
    for start in range(0, len(ranks), burst.window):
        window = ranks[start : start + burst.window]
        # A last, shorter window bursts in proportion.
        count = burst.ids * burst.repeats * len(window) // burst.window
        ids = _ranks(generator, cumulative, burst.ids)
        window[generator.permutation(len(window))[:count]] = np.resize(ids, count)


@cache
def _cumulative(rows: int, exponent: float) -> NDArray[np.float64]:
    cumulative = np.cumsum(hotness.zipf(rows, exponent))
    cumulative[-1] = 1.0  # rounding must not let a draw fall beyond the last rank
    return cumulative


@cache
def _mapping(rows: int, seed: int, table: int) -> NDArray[np.int64]:
    """Return the row that each popularity rank of `table` stands for, a permutation (rows,)."""
    return np.random.default_rng((seed, _MAPPING, table)).permutation(rows)


def _generator(config: Config, table: int, purpose: int, batch: int) -> np.random.Generator:
    return np.random.default_rng((config.seed, purpose, table, batch))


def _from_trace(config: Config, offsets: tuple[NDArray[np.integer], ...]) -> Batches:
    """Cut a trace into a quarter to profile and the rest to measure, replayed when too short.

    A file with one table feeds all tables: each starts elsewhere and, but for the first, through
    a permutation of its own. A file with several tables is used in order, starting over at the end.
    """
    if config.shapes:
        raise traces.TraceError("a trace is of tables of one size; fix: --trace without --shapes")
    trace = traces.read(config.trace, config.rows)
    dtype = np.dtype(config.index_dtype)
    shared = len(trace.streams) == 1

    def ids(table: int) -> NDArray[np.int64]:
        stream = trace.streams[table % len(trace.streams)]
        if not shared or table == 0:
            return stream
        return _mapping(config.rows, config.seed, table)[stream]

    def measured(table: int) -> NDArray[np.integer]:
        stream = ids(table)
        part = stream[len(stream) // 4 :]
        start = len(part) * table // config.tables if shared else 0
        taken = np.resize(np.roll(part, -start), (config.batches, int(offsets[table][-1])))
        return taken.astype(dtype)

    def profile(table: int) -> NDArray[np.integer]:
        stream = ids(table)
        return stream[: len(stream) // 4].astype(dtype)

    needed = config.batches * max(int(bounds[-1]) for bounds in offsets)
    shortest = min(len(stream) - len(stream) // 4 for stream in trace.streams)
    notes = list(trace.notes)
    if shortest < needed:
        notes.append(f"the trace is replayed: {needed} ids are needed, {shortest} are there")
    return Batches(
        rows=(config.rows,) * config.tables,
        indices=tuple(measured(table) for table in range(config.tables)),
        offsets=offsets,
        source=f"trace {trace.name}",
        hot_list=config.hot_list,
        notes=tuple(notes),
        profile=profile,
    )

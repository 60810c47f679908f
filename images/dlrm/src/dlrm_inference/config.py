"""Everything one run of the workload is told, checked once, as a frozen dataclass."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache

from reprokit.errors import ConfigError, Failure
from reprokit.options import Options, option

DEVICES = ("cpu", "cuda")
EXPERIMENTS = (
    "embedding", "endtoend", "grid", "sweep", "pin_cost", "check_cost", "profile", "static",
)  # fmt: skip
GPU_ONLY = {
    "grid": "it compares GPU kernels",
    "sweep": "the sweep is over a GPU's resident warps, which a CPU does not have",
    "pin_cost": "the pinning modes are ways to use a GPU's L2 cache",
    "check_cost": "what is looked at is a report of a GPU's kernels",
    "profile": "the profiled counters are those of a GPU",
}
DATASETS = ("one_item", "high_hot", "med_hot", "low_hot", "random")
VARIANTS = (
    "base",
    "optmt",
    "rpf",
    "smpf",
    "l1dpf",
    "lmpf",
    "l2p",
    "rpf_l2p",
    "rpf_tuned",
    "smpf_tuned",
    "rpf_l2p_tuned",
    "stock",
    "stock21",
    "fbgemm",
    "best",
)
PINNING = ("l2p", "rpf_l2p", "rpf_l2p_tuned")
ONE_SHAPE = "tables of different shapes have no one number of hot rows; fix: without --shapes"
L2_MODES = ("hint", "setaside", "window", "setaside_reset")
HOT_LISTS = ("profiled", "oracle")
LAUNCHES = ("one_table", "all_tables", "both")
DTYPES = ("float32", "float16", "bfloat16")
INDEX_DTYPES = ("int32", "int64")
INT32_ROWS = 2**31 - 1
BAGS = ("uniform", "ragged", "geometric", "file")
MODES = ("sum", "mean")
MOST_DIM = 1024
MOST_DISTANCE = 256
MOST_ROWS = 2**40

# Rows ahead, as the artifact ships them (docs/papers/dlrm.md, D9); the combined design uses RPF's.
DEFAULT_DISTANCE = {"rpf": 2, "smpf": 10, "l1dpf": 2, "lmpf": 2, "rpf_l2p": 2}


class WrongResult(Failure):
    """A variant's sums are not the reference's: nothing may be measured with it."""


@dataclass(frozen=True, kw_only=True)
class Config(Options):
    """One call of the workload. Defaults are the paper's sizes (docs/papers/dlrm.md, 2).

    Raises ConfigError from the constructor.
    """

    experiment: str = option("embedding", choices=EXPERIMENTS)
    device: str = option("cpu", choices=DEVICES)
    dataset: str = option("random", choices=DATASETS)
    variants: tuple[str, ...] = option(("base",), "comma separated", choices=VARIANTS, empty=True)
    tables: int = option(12, "embedding tables", least=1)
    rows: int = option(500_000, "rows of one table", least=1)
    dim: int = option(128, "columns of a row", least=1, most=MOST_DIM)
    batch: int = option(2048, "bags in a batch", least=1)
    pooling: int = option(150, "rows summed in a bag", least=1)
    bags: str = option(
        "uniform",
        "lengths of bags: uniform (all --pooling), ragged (0 to twice that, all as likely), "
        "geometric (that on average, few long) or file (--bag-file)",
        choices=BAGS,
    )
    bag_file: str = option("", "file of lengths, taken in turn by the bags of table after table")
    mode: str = option("sum", "what a bag's rows become", choices=MODES)
    shapes: str = option(
        "", "ROWSxDIM of tables, comma separated, taken in turn; replaces --rows and --dim"
    )
    batches: int = option(4, "distinct batches of a table, taken in turn", least=1)
    dtype: str = option("float32", "table type", choices=DTYPES)
    index_dtype: str = option("int64", "type of indices and offsets", choices=INDEX_DTYPES)
    samples: int = option(84, "timed launches of each variant", least=1)
    warmup: int = option(12, "launches of each variant dropped first", least=0)
    seed: int = option(512, "seed of tables and ids", least=0)
    distance: int = option(0, "prefetch distance in rows, 0: the variant's own", least=0)
    register_cap: int = option(0, "registers per thread, 0: the variant's own", least=0)
    warps_per_sm: int = option(0, "resident warps, 0: the variant's own", least=0)
    distances: tuple[int, ...] = option(
        (1, 2, 4, 6, 8, 10, 12, 16, 24), "sweep and tuning: distances, comma separated", least=1
    )
    warps: tuple[int, ...] = option(
        (24, 32, 40, 48, 64), "sweep and tuning: warps per SM, comma separated", least=1
    )
    l2_mode: str = option("setaside", f"{', '.join(L2_MODES)}, several by commas, or all")
    hot_list: str = option("profiled", choices=HOT_LISTS)
    hot_rows: int = option(0, "rows pinned or copied, 0: as many as fit", least=0)
    launch: str = option("both", choices=LAUNCHES)
    threads: int = option(1, "CPU threads; 1 as in the paper", least=1)
    archs: tuple[str, ...] = option(
        ("80", "86", "89", "90", "100", "120"), "static: GPU architectures, comma separated"
    )
    trace: str = option("", "file of row ids that replaces the generated dataset")
    out: str = option("", "folder for records, else $AE_OUT")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.variants and self.experiment != "static":
            raise ConfigError(f"--variants is empty; fix: some of {', '.join(VARIANTS)}")
        for mode in self.l2_modes:
            if mode not in L2_MODES:
                known = ", ".join(L2_MODES)
                raise ConfigError(f"--l2-mode {mode} is unknown; fix: all, or some of {known}")
        shapes = self._shapes
        if max(self.distance, *self.distances, 0) > MOST_DISTANCE:
            raise ConfigError(f"a distance is over {MOST_DISTANCE} rows; fix: a smaller one")
        if unknown := [arch for arch in self.archs if not re.fullmatch(r"[1-9]\d{1,2}", arch)]:
            raise ConfigError(f"--archs has '{unknown[0]:.40}'; fix: numbers, as 80,90")
        if max(rows for rows, _ in shapes) > MOST_ROWS:
            raise ConfigError(f"a table has over {MOST_ROWS} rows; fix: fewer")
        if (self.bags == "file") != bool(self.bag_file):
            raise ConfigError("--bags file and --bag-file belong together; fix: give both")
        if self.experiment == "endtoend" and len({dim for _, dim in shapes}) > 1:
            raise ConfigError("the model's dot products take one dim; fix: --shapes of one dim")
        if self.index_dtype == "int32" and (
            max(self.draws, *(rows for rows, _ in shapes)) > INT32_ROWS
        ):
            raise ConfigError(
                "rows and draws per batch must be below 2^31 for --index-dtype int32; "
                "fix: --index-dtype int64"
            )

    @property
    def draws(self) -> int:
        """Row accesses of one table's batch of uniform bags: bags times pooling."""
        return self.batch * self.pooling

    @property
    def row_bytes(self) -> int:
        """Bytes of one table row, where all tables are alike."""
        return self.row_bytes_of(0)

    def rows_of(self, table: int) -> int:
        """Rows of one table."""
        return self._shapes[table % len(self._shapes)][0]

    def dim_of(self, table: int) -> int:
        """Columns of one table."""
        return self._shapes[table % len(self._shapes)][1]

    def row_bytes_of(self, table: int) -> int:
        """Bytes of one row of a table."""
        return self.dim_of(table) * (4 if self.dtype == "float32" else 2)

    @property
    def distinct_shapes(self) -> int:
        """How many shapes tables are made of, in turn."""
        return len(self._shapes)

    @property
    def _shapes(self) -> tuple[tuple[int, int], ...]:
        return _read_shapes(self.shapes) or ((self.rows, self.dim),)

    @property
    def l2_modes(self) -> tuple[str, ...]:
        """The L2 pinning modes asked for, `all` spelled out."""
        return L2_MODES if self.l2_mode == "all" else tuple(self.l2_mode.split(","))

    @property
    def launches(self) -> tuple[str, ...]:
        """`one_table`, `all_tables` or both."""
        return ("one_table", "all_tables") if self.launch == "both" else (self.launch,)

    def distance_of(self, variant: str) -> int:
        """Rows ahead that `variant` prefetches: the one asked for, else the artifact's default.

        0 for a variant that has no distance of its own.
        """
        return self.distance or DEFAULT_DISTANCE.get(variant, 0)


def paper_bound(rows: int) -> float:
    """Half-width of the uniform distribution table values are drawn from: sqrt(1/rows)."""
    return math.sqrt(1.0 / rows)


@cache
def _read_shapes(text: str) -> tuple[tuple[int, int], ...]:
    """Return (rows, dim) of every word of `text`, ROWSxDIM. Raises ConfigError."""
    found = []
    for word in text.split(",") if text else ():
        rows, _, dim = word.strip().partition("x")
        if not (rows.isdecimal() and dim.isdecimal() and int(rows) and 0 < int(dim) <= MOST_DIM):
            raise ConfigError(
                f"--shapes has '{word:.40}'; fix: ROWSxDIM, as 500000x128, dim up to {MOST_DIM}"
            )
        found.append((int(rows), int(dim)))
    return tuple(found)

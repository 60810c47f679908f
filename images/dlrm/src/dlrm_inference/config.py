"""Everything one run of the workload is told, checked once, as a frozen dataclass."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from difflib import get_close_matches

DEVICES = ("cpu", "cuda")
EXPERIMENTS = ("embedding", "endtoend", "sweep", "pin_cost", "profile", "static")
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
    "stock",
    "stock21",
    "fbgemm",
    "best",
)
L2_MODES = ("hint", "setaside", "window", "setaside_reset")
HOT_LISTS = ("profiled", "oracle")
LAUNCHES = ("one_table", "all_tables", "both")
DTYPES = ("float32", "float16", "bfloat16")
INDEX_DTYPES = ("int32", "int64")
INT32_ROWS = 2**31 - 1

# Rows ahead, as the artifact ships them (docs/papers/dlrm.md, D9); the combined design uses RPF's.
DEFAULT_DISTANCE = {"rpf": 2, "smpf": 10, "l1dpf": 2, "lmpf": 2, "rpf_l2p": 2}


class ConfigError(ValueError):
    """The command line asks for something that does not exist or does not fit: one sentence."""


class WrongResult(RuntimeError):
    """A variant's sums are not the reference's: nothing may be measured with it."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """One call of the workload. Defaults are the paper's sizes (docs/papers/dlrm.md, 2).

    Sizes are counts; `dim` is fp32 columns of a row; 0 means "the variant's own default" for
    `distance`, `register_cap`, `warps_per_sm` and "as many as the cache holds" for `hot_rows`.
    Raises ConfigError from the constructor.
    """

    experiment: str = "embedding"
    device: str = "cpu"
    dataset: str = "random"
    variants: tuple[str, ...] = ("base",)
    tables: int = 12
    rows: int = 500_000
    dim: int = 128
    batch: int = 2048  # bags
    pooling: int = 150  # rows per bag
    batches: int = 4  # distinct batches per table that samples rotate over
    dtype: str = "float32"
    index_dtype: str = "int64"
    samples: int = 84  # timed launches per variant, after warm-up
    warmup: int = 12  # launches per variant that are run and not recorded
    seed: int = 512
    distance: int = 0  # prefetch distance in rows
    register_cap: int = 0  # registers per thread
    warps_per_sm: int = 0  # occupancy asked for
    distances: tuple[int, ...] = (1, 2, 4, 6, 8, 10)  # sweep
    warps: tuple[int, ...] = (24, 32, 40, 48, 64)  # sweep
    l2_mode: str = "setaside"  # one of L2_MODES, several by commas, or "all"
    hot_list: str = "profiled"
    hot_rows: int = 0  # rows pinned or copied
    launch: str = "both"
    threads: int = 1  # CPU threads, 1 as in the paper
    archs: tuple[str, ...] = ("80", "86", "89", "90", "100", "120")  # static: sm_XX
    trace: str = ""  # path of a trace file that replaces the generated dataset
    out: str = ""  # folder for records; "" means $AE_OUT

    def __post_init__(self) -> None:
        self._check_words()
        self._check_numbers()

    @property
    def draws(self) -> int:
        """Row accesses of one table's batch: bags times pooling."""
        return self.batch * self.pooling

    @property
    def row_bytes(self) -> int:
        """Bytes of one table row."""
        return self.dim * (4 if self.dtype == "float32" else 2)

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

    def _check_words(self) -> None:
        _require("experiment", self.experiment, EXPERIMENTS)
        _require("device", self.device, DEVICES)
        _require("dataset", self.dataset, DATASETS)
        for variant in self.variants:
            _require("variant", variant, VARIANTS)
        if not self.variants and self.experiment != "static":
            raise ConfigError("no variant was asked for: give --variants base,rpf,...")
        if len(set(self.variants)) != len(self.variants):
            raise ConfigError(f"a variant is named twice in '{','.join(self.variants)}'")
        _require("dtype", self.dtype, DTYPES)
        _require("index-dtype", self.index_dtype, INDEX_DTYPES)
        for mode in self.l2_modes:
            _require("l2-mode", mode, (*L2_MODES, "all"))
        _require("hot-list", self.hot_list, HOT_LISTS)
        _require("launch", self.launch, LAUNCHES)

    def _check_numbers(self) -> None:
        at_least_one = (
            "tables",
            "rows",
            "dim",
            "batch",
            "pooling",
            "batches",
            "samples",
            "threads",
        )
        for name in at_least_one:
            _at_least(name, getattr(self, name), 1)
        for name in ("warmup", "seed", "distance", "register_cap", "warps_per_sm", "hot_rows"):
            _at_least(name, getattr(self, name), 0)
        for name in ("distances", "warps"):
            for value in getattr(self, name):
                _at_least(name, value, 1)
        if self.dim > 1024:
            raise ConfigError(f"--dim must be at most 1024, not {self.dim}")
        if self.index_dtype == "int32" and max(self.rows, self.draws) > INT32_ROWS:
            raise ConfigError("rows and draws per batch must be below 2^31 for --index-dtype int32")

    def facts(self) -> dict[str, object]:
        """Return every field as plain JSON data, for `environment.json`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def paper_bound(rows: int) -> float:
    """Half-width of the uniform distribution table values are drawn from: sqrt(1/rows)."""
    return math.sqrt(1.0 / rows)


def _require(what: str, word: str, known: tuple[str, ...]) -> None:
    if word in known:
        return
    close = get_close_matches(word, known, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"
    raise ConfigError(f"unknown {what} '{word}'; {hint}")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        flag = name.replace("_", "-")
        raise ConfigError(f"--{flag} must be at least {least}, not {value}")

"""A run's settings, checked once. Defaults are the paper's (docs/papers/rap.md, 2.1, 2.3)."""

from __future__ import annotations

from dataclasses import dataclass

from reprokit.errors import ConfigError
from reprokit.options import Options, option

from rap_training.sharing.variants import VARIANTS

EXPERIMENTS = ("fig9", "fig10", "heavy", "predictor", "capacity", "ratio", "timeline", "fusion")
DEVICES = ("cpu", "cuda")
LOADERS = ("pinned", "resident", "staged")  # see rap_training.feed
PLANS = (0, 1, 2, 3)
MATMULS = ("fp32", "tf32")
TRAINERS = ("graph", "eager", "torchrec")
SOLVERS = ("highs", "gurobi", "asap")


@dataclass(frozen=True, kw_only=True)
class Config(Options):
    """One command line. `batch` is rows a GPU and iteration; `gpus` ranks, on a CPU too."""

    experiment: str = option(choices=EXPERIMENTS)
    device: str = option("cpu", choices=DEVICES)
    gpus: int = option(1, "ranks: GPUs, or processes on a CPU", least=1)
    plan: int = option(0, "built-in plan, 0 to 3")
    plan_file: str = option("", "a plan as JSON that replaces the built-in one")
    data: str = option("", "a parquet file that replaces generated batches")
    batch: int = option(4096, "rows a rank and iteration", least=1)
    variants: tuple[str, ...] = option(
        ("sequential", "rap", "ideal"), "comma separated", choices=tuple(VARIANTS)
    )
    repeats: int = option(7, "samples of every variant", least=1)
    iterations: int = option(200, "training iterations of a sample", least=1)
    warmup: int = option(30, "iterations before them", least=0)
    batches: int = option(8, "distinct batches, taken in turn", least=1)
    scale: float = option(1.0, "of the embedding tables' rows", above=0, most=1)
    loader: str = option(
        "pinned", "pinned (host memory), resident (on the GPU) or staged (gathered by the CPU)",
        choices=LOADERS,
    )  # fmt: skip
    matmul: str = option("fp32", choices=MATMULS)
    trainer: str = option("graph", choices=TRAINERS)
    workers: tuple[int, ...] = option(
        (1, 2, 4, 8, 16), "CPU processes a rank to try, comma separated", least=1
    )
    solver: str = option("highs", "of the fusion problem: highs, gurobi or asap", choices=SOLVERS)
    solver_seconds: float = option(30.0, "its time limit", above=0)
    ratios: tuple[float, ...] = option(
        (0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0), "preprocessing to training, comma separated",
        above=0,
    )  # fmt: skip
    load: float = option(
        0.0, "GPU busy time of preprocessing over that of a training step, for heavy; "
        "0: 1 for plan 2 and 2 for plan 3", least=0,
    )  # fmt: skip
    green_sms: int = option(16, "SMs of the green context", least=1)
    mps_percentage: int = option(
        100, "% of the SMs for the preprocessor under MPS", least=1, most=100
    )
    seed: int = option(2024, "of data and weights", least=0)
    patience: float = option(300.0, "seconds that a session may be silent", above=0)
    out: str = option("", "folder for records, else $AE_OUT")
    memory: int = 0  # bytes a rank has for its tables, where the parent could ask; no argument

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trainer == "torchrec" and self.experiment in ("capacity", "timeline"):
            raise ConfigError(
                f"TorchRec shows no stages, which {self.experiment} is about; fix: --trainer graph"
            )
        if not self.plan_file and self.plan not in PLANS:
            raise ConfigError(f"--plan {self.plan} is unknown; fix: 0, 1, 2 or 3, or --plan-file")

    @property
    def labels(self) -> dict[str, str]:
        """Labels that every record of the point has."""
        plan = self.plan_file.rsplit("/", 1)[-1].removesuffix(".json") or str(self.plan)
        return {"plan": plan, "gpus": str(self.gpus), "batch": str(self.batch)}

"""A run's settings, checked once. Defaults are the paper's (docs/papers/rap.md, 2.1, 2.3)."""

from __future__ import annotations

from dataclasses import dataclass

from rap_training.sharing.variants import VARIANTS

EXPERIMENTS = ("fig9", "fig10", "predictor", "capacity", "ratio", "timeline", "fusion")
DEVICES = ("cpu", "cuda")
LOADERS = ("pinned", "resident", "staged")  # see rap_training.feed
PLANS = (0, 1, 2, 3)
MATMULS = ("fp32", "tf32")
TRAINERS = ("graph", "eager", "torchrec")
SOLVERS = ("highs", "gurobi", "asap")


class ConfigError(ValueError):
    """Bad arguments, in one sentence with a fix."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """One command line. `batch` is rows a GPU and iteration; `gpus` ranks, on a CPU too."""

    experiment: str
    device: str = "cpu"
    gpus: int = 1
    plan: int = 0
    plan_file: str = ""
    data: str = ""
    batch: int = 4096
    variants: tuple[str, ...] = ("sequential", "rap", "ideal")
    repeats: int = 7
    iterations: int = 200
    warmup: int = 30
    batches: int = 8  # distinct batches that iterations go round
    scale: float = 1.0  # of table rows
    loader: str = "pinned"
    matmul: str = "fp32"
    trainer: str = "graph"
    workers: tuple[int, ...] = (1, 2, 4, 8, 16)
    solver: str = "highs"
    solver_seconds: float = 30.0
    ratios: tuple[float, ...] = (0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0)
    green_sms: int = 16
    mps_percentage: int = 100
    seed: int = 2024
    patience: float = 300.0  # seconds that ranks may be silent
    out: str = ""
    memory: int = 0  # bytes a rank has for its tables, where the parent could ask; no argument

    def __post_init__(self) -> None:
        choices = {
            "experiment": EXPERIMENTS, "device": DEVICES, "loader": LOADERS, "matmul": MATMULS,
            "trainer": TRAINERS, "solver": SOLVERS,
        }  # fmt: skip
        for name, known in choices.items():
            given = getattr(self, name)
            if given not in known:
                raise ConfigError(f"--{name} {given} is unknown; fix: one of {', '.join(known)}")
        for name in self.variants:
            if name not in VARIANTS:
                raise ConfigError(
                    f"--variants {name} is unknown; fix: some of {', '.join(VARIANTS)}"
                )
        if len(set(self.variants)) < len(self.variants):
            raise ConfigError("--variants names one twice; fix: name each once")
        if not self.variants:
            raise ConfigError(f"--variants is empty; fix: some of {', '.join(VARIANTS)}")
        if self.trainer == "torchrec" and self.experiment in ("capacity", "timeline"):
            raise ConfigError(
                f"TorchRec shows no stages, which {self.experiment} is about; fix: --trainer graph"
            )
        self._check_numbers()

    def _check_numbers(self) -> None:
        least = {
            "gpus": 1, "batch": 1, "repeats": 1, "iterations": 1, "warmup": 0, "batches": 1,
            "green_sms": 1, "mps_percentage": 1,
        }  # fmt: skip
        for name, floor in least.items():
            if getattr(self, name) < floor:
                flag = name.replace("_", "-")
                raise ConfigError(
                    f"--{flag} {getattr(self, name)} is too small; fix: at least {floor}"
                )
        for name in ("solver_seconds", "patience"):
            if not 0 < getattr(self, name) < float("inf"):
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag} {getattr(self, name)} is no time; fix: above 0")
        if not 0 < self.scale <= 1:
            raise ConfigError(f"--scale {self.scale} is out of range; fix: above 0, at most 1")
        if not self.plan_file and self.plan not in PLANS:
            raise ConfigError(f"--plan {self.plan} is unknown; fix: 0, 1, 2 or 3, or --plan-file")
        if min(self.workers, default=0) < 1 or min(self.ratios, default=0) <= 0:
            raise ConfigError("--workers and --ratios take positive numbers; fix: give some")
        if self.mps_percentage > 100:
            raise ConfigError(f"--mps-percentage {self.mps_percentage}: fix: 1 to 100")

    @property
    def labels(self) -> dict[str, str]:
        """Labels that every record of the point has."""
        plan = self.plan_file.rsplit("/", 1)[-1].removesuffix(".json") or str(self.plan)
        return {"plan": plan, "gpus": str(self.gpus), "batch": str(self.batch)}

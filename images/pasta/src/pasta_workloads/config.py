"""A run's settings, checked once. Defaults are the paper's (docs/papers/pasta.md, 2)."""

from __future__ import annotations

from dataclasses import dataclass

from reprokit.errors import ConfigError
from reprokit.options import Options, option

from pasta_workloads.models.sizes import MODELS, PUBLISHED, SIZES

PROGRAMS = ("model", "ranks", "samples", "managed")  # what is profiled; they write no records
EXPERIMENTS = (
    *PROGRAMS, "oracle", "table_v", "overhead", "hotness", "timeline", "parallel", "uvm", "counts",
    "distinct",
)  # fmt: skip
DEVICES = ("cpu", "cuda")
MODES = ("test", "train", "step", "test_bf16", "step_bf16")
BF16 = "_bf16"  # what modes in bf16 end with
PARALLELISMS = ("dp", "tp", "pp")
# Of the overhead experiment: without any tool, the collector's modes, and analysis on the CPU.
VARIANTS = (
    "native", "events", "sync", "empty", "cs_gpu", "cs_gpu_hot", "count", "cs_cpu", "cs_cpu_mt",
)  # fmt: skip
CPU_VARIANTS = ("cs_cpu", "cs_cpu_mt")
POLICIES = ("none", "object", "tensor")


@dataclass(frozen=True, kw_only=True)
class Config(Options):
    """One command line. `size` auto is full on a GPU and tiny on a CPU."""

    experiment: str = option(choices=EXPERIMENTS)
    device: str = option("cuda", choices=DEVICES)
    model: str = option("bert", choices=(*MODELS, PUBLISHED))
    models: tuple[str, ...] = option(
        (*MODELS, PUBLISHED), "of `oracle`, comma separated", choices=(*MODELS, PUBLISHED)
    )
    mode: str = option(
        "test", "test, train (as the paper's scripts), step (a real training step); test_bf16 and "
        "step_bf16: in bf16", choices=MODES,
    )  # fmt: skip
    modes: tuple[str, ...] = option(
        ("test", "train"), "of `table_v`, `distinct` and `oracle`, comma separated", choices=MODES
    )
    size: str = option("auto", "auto, full (the paper's), small or tiny", choices=("auto", *SIZES))
    small: str = option(
        "small", "size on which `overhead` measures the CPU variants", choices=SIZES
    )
    parallelism: str = option("dp", "of `parallel`: dp, tp or pp", choices=(*PARALLELISMS, "one"))
    variants: tuple[str, ...] = option(VARIANTS, "of `overhead`, comma separated", choices=VARIANTS)
    policies: tuple[str, ...] = option(
        POLICIES, "of `uvm`: what is prefetched, comma separated", choices=POLICIES
    )
    iterations: int = option(1, "measured iterations of a process", least=1)
    warmup: int = option(0, "iterations before them, not measured and not analysed", least=0)
    repeats: int = option(5, "processes of every variant, in turns", least=1)
    sample: int = option(0, "CPU variants at full size too, one launch in N; 0: no", least=0)
    distinct: int = option(
        50, "of `distinct`: one iteration in so many is analysed, the others inferred", least=3
    )
    workers: int = option(0, "threads of cs_cpu_mt; 0: one per CPU", least=0)
    oversubscribe: float = option(
        0.0, "of `uvm`: footprint over memory; 0: no. Only on hardware of your own"
    )
    leave: int = option(
        0, "of `managed`: bytes of GPU memory that ballast leaves; 0: no ballast", least=0
    )
    advice: str = option("", "of `managed`: the advisor's file; none: the run that is profiled")
    patience: float = option(3600.0, "seconds that one profiled process may take", above=0)
    seed: int = option(100, "of weights and data", least=0)
    out: str = option("", "folder for records, else $AE_OUT")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model == PUBLISHED and self.experiment not in ("model", "table_v", "oracle"):
            raise ConfigError(
                f"{PUBLISHED} is Table V's alone, not for {self.experiment}; fix: --model whisper"
            )
        if self.model == PUBLISHED and any(one.endswith(BF16) for one in (self.mode, *self.modes)):
            raise ConfigError(f"{PUBLISHED} is the paper's, in fp32; fix: --modes test,train")
        if self.oversubscribe and not 1 <= self.oversubscribe <= 8:
            raise ConfigError(
                f"--oversubscribe {self.oversubscribe} is out of range; fix: 0, or 1 to 8"
            )

    @property
    def scale(self) -> str:
        """The size that `size` means on this device."""
        return self.size if self.size != "auto" else "full" if self.device == "cuda" else "tiny"

"""A run's settings, checked once. Defaults are the paper's (docs/papers/pasta.md, 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pasta_workloads.models.sizes import MODELS, SIZES

PROGRAMS = ("model", "ranks", "samples", "managed")  # what is profiled; they write no records
EXPERIMENTS = (
    *PROGRAMS, "oracle", "table_v", "overhead", "hotness", "timeline", "parallel", "uvm", "counts",
)  # fmt: skip
DEVICES = ("cpu", "cuda")
MODES = ("test", "train", "step")
PARALLELISMS = ("dp", "tp", "pp")
# Of the overhead experiment: without any tool, the collector's modes, and analysis on the CPU.
VARIANTS = (
    "native", "events", "sync", "empty", "cs_gpu", "cs_gpu_hot", "count", "cs_cpu", "cs_cpu_mt",
)  # fmt: skip
CPU_VARIANTS = ("cs_cpu", "cs_cpu_mt")
POLICIES = ("none", "object", "tensor")


class ConfigError(ValueError):
    """Bad arguments, in one sentence with a fix."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """One command line. `size` auto is full on a GPU and tiny on a CPU."""

    experiment: str
    device: str = "cuda"
    model: str = "bert"
    models: tuple[str, ...] = MODELS
    mode: str = "test"
    modes: tuple[str, ...] = ("test", "train")
    size: str = "auto"
    small: str = "small"  # size of the problem on which the CPU variants are measured
    parallelism: str = "dp"
    variants: tuple[str, ...] = VARIANTS
    policies: tuple[str, ...] = POLICIES
    iterations: int = 1
    warmup: int = 0
    repeats: int = 3
    sample: int = 0  # also the CPU variants at full size, one launch in this many; 0: not
    workers: int = 0  # of cs_cpu_mt; 0: one per CPU
    oversubscribe: float = 0.0  # footprint over capacity; 0: not
    leave: int = 0  # of `managed`: bytes of GPU memory that ballast leaves; 0: no ballast
    advice: str = ""  # of `managed`: the advisor's file; empty: the run that is profiled
    patience: float = 3600.0
    seed: int = 100
    out: str = ""

    def __post_init__(self) -> None:
        choices = {
            "experiment": EXPERIMENTS, "device": DEVICES, "model": MODELS, "mode": MODES,
            "size": ("auto", *SIZES), "small": SIZES, "parallelism": (*PARALLELISMS, "one"),
        }  # fmt: skip
        for name, known in choices.items():
            _check(name, (getattr(self, name),), known)
        lists = {
            "models": MODELS, "modes": MODES, "variants": VARIANTS, "policies": POLICIES
        }  # fmt: skip
        for name, known in lists.items():
            given = getattr(self, name)
            if not given:
                raise ConfigError(f"--{name} is empty; fix: some of {', '.join(known)}")
            _check(name, given, known)
            if len(set(given)) < len(given):
                raise ConfigError(f"--{name} names one twice; fix: name each once")
        for name, floor in {
            "iterations": 1, "warmup": 0, "repeats": 1, "sample": 0, "workers": 0,
            "leave": 0,
        }.items():  # fmt: skip
            if getattr(self, name) < floor:
                raise ConfigError(
                    f"--{name} {getattr(self, name)} is too small; fix: at least {floor}"
                )
        if not 0 < self.patience < math.inf:
            raise ConfigError(f"--patience {self.patience} is no time; fix: seconds above 0")
        if self.oversubscribe and not 1 <= self.oversubscribe <= 8:
            raise ConfigError(
                f"--oversubscribe {self.oversubscribe} is out of range; fix: 0, or 1 to 8"
            )

    @property
    def scale(self) -> str:
        """The size that `size` means on this device."""
        return self.size if self.size != "auto" else "full" if self.device == "cuda" else "tiny"


def _check(name: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    for word in given:
        if word not in known:
            what = f"--{name} {word}" if name != "experiment" else f"experiment '{word}'"
            raise ConfigError(f"{what} is unknown; fix: one of {', '.join(known)}")

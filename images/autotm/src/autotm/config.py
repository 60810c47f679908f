"""A run's settings, checked once. Defaults are the paper's, or the simulation's."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from reprokit.errors import ConfigError
from reprokit.options import Options, option

from autotm.networks.catalogue import TRAINED, build, named
from autotm.sim.tiers import Gpu, Host

EXPERIMENTS = (
    "graphs", "ratios", "sweep", "limits", "large", "errors", "planner", "rivals", "largest_batch",
)  # fmt: skip
VARIANTS = (
    "DRAM", "PMM", "NUMA", "Static", "Synchronous", "Asynchronous", "MemoryMode", "Ours",
    "OursOffload", "OursRecompute", "OursHalfDuplex", "OursOutside", "Managed",
)  # fmt: skip
RIVALS = (
    "plain", "save_on_cpu", "checkpoint", "selective_checkpoint", "selective_checkpoint_ilp",
    "offload_activations", "torchtune_offload", "memory_budget_dp", "memory_budget_greedy",
    "memory_budget_ilp", "activation_offloading",
)  # fmt: skip
RATIOS = {"p1d0": 0.0, "p8d1": 1 / 9, "p4d1": 1 / 5, "p1d1": 1 / 2, "p0d1": 1.0}  # share of DRAM


def _size(cap: str) -> float:
    return float(cap.removesuffix("GB"))


@dataclass(frozen=True, kw_only=True)
class Config(Options):
    """One command line. Rates are GB/s; the slow rates are those of kernels, not of copies."""

    experiment: str = option(choices=EXPERIMENTS)
    device: str = option("cpu", choices=("cpu", "cuda"))
    network: str = option("vgg19_16", "<network>_<batch>")
    variants: tuple[str, ...] = option(("Synchronous",), "comma separated", choices=VARIANTS)
    ratios: tuple[str, ...] = option(tuple(RATIOS), "PMM to DRAM", choices=tuple(RATIOS))
    slow_read: tuple[float, ...] = option((20.0,), "of slow memory, one for each run", above=0)
    slow_write: tuple[float, ...] = option((4.0,), "of slow memory, one for each run", above=0)
    limits: tuple[float, ...] = option((0.1, 0.2, 0.5, 1.0), "fast memory over need", least=0)
    fast_gb: float = option(185.0, "fast memory of the experiment large", above=0)
    copy_out: float = option(12.0, "of copies to slow memory", above=0)
    copy_in: float = option(29.0, "of copies from slow memory", above=0)
    miss_read: tuple[float, ...] = option((20.0,), "of the cache's misses", above=0)
    miss_write: tuple[float, ...] = option((8.0,), "of the cache's misses", above=0)
    caps: tuple[str, ...] = option(("0.6",), "device memory: over the need, or as 10.2GB")
    link: float = option(12.0, "GB/s each way, in planner", above=0)
    fault: tuple[float, ...] = option((30.0,), "us of a fault, for each run, Managed", above=0)
    rivals: tuple[str, ...] = option(RIVALS, "comma separated", choices=RIVALS)
    knobs: int = option(0, "tried for each rival at a cap; 0: its grid, and 12 more", least=0)
    precision: str = option("fp32", "TF32 is off; bf16 by autocast", choices=("fp32", "bf16"))
    systems: tuple[str, ...] = option(("Ours",), "in largest_batch", choices=("Ours", *RIVALS))
    budgets_gb: tuple[float, ...] = option((10.2, 80.0, 141.0), "in largest_batch", above=0)
    slower: float = option(1.25, "time per sample over plain's, in largest_batch", least=1)
    sample_seconds: float = option(
        0.0, "a sample's in place of that where no plain step fits; 0: stop there", least=0
    )
    resolution: float = option(0.05, "of the batch, at which largest_batch ends", above=0)
    window: int = option(15, "ops before and after a use, Asynchronous", least=1)
    solver_seconds: float = option(120.0, "limit of one solve", above=0)
    gap: float = option(0.01, "at which a solve ends", least=0)
    out: str = option("", "folder for records, else $AE_OUT")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.slow_read) != len(self.slow_write):
            raise ConfigError("--slow-read and --slow-write differ in length; fix: give pairs")
        if len(self.miss_read) != len(self.miss_write):
            raise ConfigError("--miss-read and --miss-write differ in length; fix: give pairs")
        for cap in self.caps:
            try:
                wrong = not 0 < _size(cap) < inf
            except ValueError:
                wrong = True
            if wrong:
                raise ConfigError(f"--caps has '{cap}'; fix: a share as 0.6, or a size as 10.2GB")
        try:
            if self.experiment in ("rivals", "largest_batch"):
                named(self.network, TRAINED)
            else:
                build(self.network)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def capacities(self, need: int) -> dict[str, int]:
        """The bytes of every cap, where all that is needed is `need` bytes."""
        return {cap: int(_size(cap) * (1e9 if cap.endswith("GB") else need)) for cap in self.caps}

    @property
    def hosts(self) -> list[Host]:
        """A simulated host for each pair of slow rates."""
        pairs = zip(self.slow_read, self.slow_write, strict=True)
        copies = {"copy_out": self.copy_out * 1e9, "copy_in": self.copy_in * 1e9}
        return [Host(slow_read=r * 1e9, slow_write=w * 1e9, **copies) for r, w in pairs]

    @property
    def gpu(self) -> Gpu:
        """The simulated GPU of the experiment planner."""
        return Gpu(link=self.link * 1e9)

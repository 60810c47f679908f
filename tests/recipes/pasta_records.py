"""Made-up records of PASTA's native lane: what its experiments write (docs/pasta.md, Records).

Table V holds the paper's own numbers; the rest is chosen so that every claim holds on its hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from ae.records import Row, frame

MODELS = ("alexnet", "resnet18", "resnet34", "bert", "gpt2", "whisper")
MODES = ("test", "train")
KIB = 1 / 1024
# Table V: launches, mean footprint, working set max, min, mean, median, p90 (MiB).
TABLE_V = {
    ("alexnet", "test"): (1428, 1528.13, 876.12, 1.01, 216.25, 148.26, 406.33),
    ("resnet18", "test"): (1497, 1232.13, 1024.00, 1.00 * KIB, 86.07, 64.00, 172.27),
    ("resnet34", "test"): (2657, 1261.59, 1024.00, 1.00 * KIB, 76.61, 43.25, 164.00),
    ("bert", "test"): (487, 1179.64, 212.62, 47.50 * KIB, 75.23, 37.69, 141.75),
    ("gpt2", "test"): (583, 4148.10, 1493.85, 4.00 * KIB, 59.02, 25.08, 138.00),
    ("whisper", "test"): (663, 2304.15, 627.44, 2.25, 78.54, 20.81, 153.81),
    ("alexnet", "train"): (4040, 3285.17, 1512.09, 0.5 * KIB, 188.60, 144.62, 406.33),
    ("resnet18", "train"): (1542, 3165.13, 1024.00, 0.5 * KIB, 84.58, 43.25, 172.27),
    ("resnet34", "train"): (2734, 4316.86, 1024.00, 0.5 * KIB, 75.33, 43.25, 164.00),
    ("bert", "train"): (554, 5679.03, 235.47, 1.00 * KIB, 77.71, 37.97, 209.30),
    ("gpt2", "train"): (2004, 7862.10, 2240.77, 0.5 * KIB, 51.37, 24.00, 137.66),
    ("whisper", "train"): (665, 2104.80, 937.01, 2.25, 80.42, 20.81, 153.81),
}
# Calculated by hand from the shapes (MiB): what an oracle must give.
ORACLE = {
    ("alexnet", "test"): {"max": 876.125, "p90": 406.334, "median": 148.256},
    ("resnet18", "test"): {"max": 1024.0, "p90": 172.266},
    ("resnet34", "test"): {"max": 1024.0, "p90": 164.0, "median": 43.25},
    ("bert", "test"): {"max": 212.625, "p90": 141.75, "median": 37.6875},
    ("gpt2", "test"): {"max": 1493.845, "median": 25.078},
    ("whisper", "test"): {"max": 627.393},
    ("alexnet", "train"): {"max": 1512.094, "p90": 406.334},
    ("resnet18", "train"): {"max": 1024.0, "p90": 172.266, "median": 43.25},
    ("resnet34", "train"): {"max": 1024.0, "p90": 164.0, "median": 43.25},
    ("bert", "train"): {"max": 235.466, "p90": 209.303},
    ("gpt2", "train"): {"max": 2240.768},
    ("whisper", "train"): {"max": 937.014},
}
IM2COL = {"alexnet": 640, "resnet18": 640, "resnet34": 1152}
SLOWDOWNS = {
    "events": 1.04, "sync": 1.6, "empty": 5.0, "count": 5.6, "cs_gpu": 5.2, "cs_gpu_hot": 5.5,
}  # fmt: skip
SMALL = {"empty": 4.0, "cs_gpu": 4.2, "cs_cpu": 900.0, "cs_cpu_mt": 300.0}
PARTS = ("execution", "collection", "transfer", "analysis")
H200 = {"gpu": "NVIDIA H200", "driver": "580.159", "cuda": "13.0", "torch": "2.14.1"}


class Records:
    """Collects made-up records."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(
        self,
        experiment: str,
        metric: str,
        value: float | Sequence[float],
        unit: str = "MiB",
        evidence: str = "measured",
        **labels: str,
    ) -> None:
        """Add one record with exactly this sample, or these."""
        samples = (float(value),) if isinstance(value, int | float) else tuple(value)
        self.rows.append(
            Row(metric=metric, unit=unit, evidence=evidence, samples=samples, labels=labels,
                experiment=experiment, point=f"{experiment}-{labels.get('model', 'all')}")
        )  # fmt: skip

    def frame(self) -> pd.DataFrame:
        """The record table of docs/contracts.md."""
        return frame(self.rows)


def table_v(records: Records, change: Callable[[str, float], float] | None = None) -> None:
    """Every run's launches, footprint, working sets and kernels; `change(metric, value)` alters."""
    for (model, mode), (count, footprint, *sets) in TABLE_V.items():
        where = {"model": model, "mode": mode}
        alter = change or (lambda _, value: value)
        records.add("table_v", "kernels", alter("kernels", count), "launches", **where)
        records.add("table_v", "footprint", alter("footprint", footprint), **where)
        for stat, value in zip(("max", "min", "mean", "median", "p90"), sets, strict=True):
            ours = alter("working_set", value)
            records.add("table_v", "working_set", ours, stat=stat, **where)
            records.add("table_v", "object_working_set", 2 * ours, stat=stat, **where)
        records.add("table_v", "top5_share", 80, "%", **where)
        records.add("table_v", "profiling_memory", 12, **where)
        named = {"at::native::im2col_kernel": IM2COL.get(model, 0), "sm80_xmma_gemm": 300}
        for kernel, launches in named.items():
            if launches:
                records.add("table_v", "kernel_launches", launches, "launches", kernel=kernel,
                            **where)  # fmt: skip
        records.add("table_v", "kernel_launches", count - sum(named.values()), "launches",
                    kernel="(others)", **where)  # fmt: skip


def oracle(records: Records, change: float = 1.0) -> None:
    """What follows from shapes, under the three assumptions about cuBLAS; argument bounds."""
    for (model, mode), sets in ORACLE.items():
        for stat, value in sets.items():
            for assumption, more in (("plain", 0.0), ("paper", 0.0), ("all", 8.125)):
                records.add("oracle", "oracle_working_set", change * value + more,
                            evidence="static", model=model, mode=mode, stat=stat,
                            assumption=assumption)  # fmt: skip
        records.add("args_bound", "args_working_set", 1.1 * sets["max"], model=model, mode=mode,
                    stat="max")  # fmt: skip


def overhead(records: Records, slow: Mapping[str, float] = SLOWDOWNS, rate: int = 60) -> None:
    """Every variant's slow-down; the sampled ones by the paper's formula and by the sound one."""
    for model in MODELS:
        for variant, value in slow.items():
            samples = [0.99 * value, value, 1.01 * value]
            records.add("overhead_models", "slowdown", samples, "x", model=model, variant=variant,
                        scaling="none")  # fmt: skip
        for variant, value in (("cs_cpu", 5000.0), ("cs_cpu_mt", 1500.0)):
            for scaling, factor in (("authors", 1.0), ("sound", 0.5)):
                records.add("overhead_models", "slowdown", factor * value, "x", "scaled",
                            model=model, variant=variant, scaling=scaling,
                            sampling="readme")  # fmt: skip
        for variant, parts in (("cs_gpu", (1, 3, 0.1, 0.1)), ("cs_cpu", (1, 30, 5, rate * 10))):
            for part, seconds in zip(PARTS, parts, strict=True):
                records.add("overhead_models", "tool_time", seconds, "s", model=model,
                            variant=variant, part=part)  # fmt: skip


def overhead_small(records: Records, slow: Mapping[str, float] = SMALL) -> None:
    """The same on small models, nothing scaled."""
    for model in MODELS:
        for variant, value in slow.items():
            samples = [0.99 * value, value, 1.01 * value]
            records.add("overhead_small", "small_slowdown", samples, "x", model=model,
                        variant=variant)  # fmt: skip


def hot_blocks(records: Records) -> None:
    """A heat map of 5 windows by 4 blocks."""
    for activity in ("always", "burst"):
        records.add("hot_blocks", "block_share", 20, "%", blocks="2MiB", activity=activity)
    for window in range(5):
        for block in range(4):
            records.add("hot_blocks", "accesses", window * block * 100, "accesses", blocks="2MiB",
                        window=str(window), block=str(block))  # fmt: skip


def allocated(records: Records, experiment: str, peak: float, **where: str) -> None:
    """A ramp up to the peak at 60 % of the events, and down again."""
    records.add(experiment, "peak_allocated", peak, **where)
    events = 1200 if where.get("device") == "1" else 1000
    for kind in ("malloc", "free"):
        records.add(experiment, "tensor_events", events, "events", kind=kind, **where)
    for percent in range(101):
        size = peak * (1 - abs(percent - 60) / 70)
        records.add(experiment, "allocated", size, progress=str(percent), **where)


def memory(records: Records) -> None:
    """GPT-2's training, and two GPUs in three ways; the same, tiny, on the CPU."""
    allocated(records, "timeline", 8000)
    for experiment, size in (("two_gpus", 8000), ("two_ranks", 2)):
        for mode in ("dp", "tp", "pp"):
            for device in "01":
                peak = size / 2 if mode == "tp" else size
                allocated(records, experiment, peak, parallelism=mode, device=device)


def uvm(
    records: Records, driver: str = "off", pressures: Sequence[str] = ("fits", "third")
) -> None:
    """Times, bytes asked for and bytes moved: gains that lie between the paper's."""
    over = {"fits": {"object": 0.63, "tensor": 0.72}, "third": {"object": 2.6, "tensor": 1.1}}
    for pressure in pressures:
        for model in MODELS:
            where = {"model": model, "pressure": pressure, "driver_prefetch": driver}
            gains = model == "gpt2" and pressure == "third"
            for policy in ("none", "object", "tensor"):
                ratio = 0.9 if gains else over[pressure].get(policy, 1.0)
                time = 1.0 if policy == "none" else ratio
                records.add("uvm", "uvm_time", [time] * 3, "s", policy=policy, **where)
                asked = {"none": 0.0, "object": 900.0, "tensor": 500.0}[policy]
                records.add("uvm", "uvm_requested", asked, policy=policy, **where)
                for direction, moved in (("htod", asked + 100), ("dtoh", 10.0)):
                    records.add("uvm", "uvm_migrated", moved, policy=policy, direction=direction,
                                **where)  # fmt: skip


def counts(records: Records, off: float = 0) -> None:
    """Kernels with known counts; `off` is by how much one of them is miscounted."""
    for kernel, what, count in (
        ("vector_add", "global_reads", 200_000), ("vector_add", "global_writes", 100_000),
        ("atomic", "global_atomics", 100_000), ("shared", "shared_reads", 4096),
    ):  # fmt: skip
        wrong = off if (kernel, what) == ("atomic", "global_atomics") else 0
        records.add("counts", "counted", count + wrong, "1", kernel=kernel, what=what)
        records.add("counts", "expected", count, "1", "static", kernel=kernel, what=what)


def everything() -> Records:
    """Records of all experiments of the native lane."""
    records = Records()
    for part in (table_v, oracle, overhead, overhead_small, hot_blocks, memory, uvm, counts):
        part(records)
    return records

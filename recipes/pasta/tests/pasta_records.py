"""Made-up records of PASTA's native lane: what its experiments write (docs/pasta.md, Records).

Table V holds the paper's own numbers; the rest is chosen so that every claim holds on its hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from ae.recipe.code import load_code
from ae.records.files import Row, frame

MODELS = ("alexnet", "resnet18", "resnet34", "bert", "gpt2", "whisper")
MODES = ("test", "train")
# Table V: launches, mean footprint, working set max, min, mean, median, p90 (MiB).
TABLE_V = load_code(Path(__file__).parents[1], "table_v").PAPER
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
SAMPLED = {"cs_cpu": 5000.0, "cs_cpu_mt": 1500.0}  # by the paper's formula
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
        """Add one record with exactly this sample, or one for each process with one of these."""
        each = {"": value} if isinstance(value, int | float) else dict(enumerate(value, 1))
        self.rows += [
            Row(metric=metric, unit=unit, evidence=evidence, samples=(float(sample),),
                labels=labels, experiment=experiment, process=str(process),
                point=f"{experiment}-{labels.get('model', 'all')}")
            for process, sample in each.items()
        ]  # fmt: skip

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
            records.add("table_v", "working_set_object", 2 * ours, stat=stat, **where)
        records.add("table_v", "top5_share", 80, "%", **where)
        records.add("table_v", "profiling_memory", 12, **where)
        named = {"at::native::im2col_kernel": IM2COL.get(model, 0), "sm80_xmma_gemm": 300}
        rest = count - sum(named.values())
        for kernel, launches in (named | {"elementwise": rest}).items():
            if launches:
                records.add("table_v", "kernel_launches", launches, "launches", kernel=kernel,
                            **where)  # fmt: skip
        calculated(records, "table_v", ORACLE[model, mode], **where)


def published(records: Records) -> None:
    """The paper's Whisper again, as the experiment has it that counts what the paper counts."""
    stats = ("max", "min", "mean", "median", "p90")
    for mode in MODES:
        count, footprint, *sets = TABLE_V["whisper", mode]
        where = {"model": "whisper_paper", "mode": mode}
        records.add("table_v_paper", "kernels", count, "launches", **where)
        records.add("table_v_paper", "footprint", footprint, **where)
        for stat, value in zip(stats, sets, strict=True):
            records.add("table_v_paper", "working_set", value, stat=stat, **where)
        records.add("table_v_paper", "top5_share", 80, "%", **where)
        records.add("oracle", "kernels_oracle", count, "launches", "static", **where)
        found = {stat: value for stat, value in zip(stats, sets, strict=True) if stat != "median"}
        calculated(records, "oracle", found | {"median": sets[3] - 8.125}, **where)


def in_bf16(
    records: Records, change: Callable[[str, str, float], float] | None = None
) -> None:  # fmt: skip
    """Rows in bf16: half of the paper's sizes; `change(metric, model, value)` alters."""
    alter = change or (lambda _metric, _model, value: value)
    for (model, mode), (count, footprint, *sets) in TABLE_V.items():
        where = {"model": model, "mode": {"test": "test_bf16", "train": "step_bf16"}[mode]}
        half = dict(zip(("max", "min", "mean", "median", "p90"), sets, strict=True))
        half = {stat: value / 2 for stat, value in half.items()}
        for metric, value in (("kernels", count), ("tensor_map_launches", 40), ("not_seen", 0)):
            records.add("table_v_bf16", metric, alter(metric, model, value), "launches", **where)
        records.add("table_v_bf16", "footprint", footprint / 2, **where)
        for stat, value in half.items():
            found = alter(stat, model, value)
            records.add("table_v_bf16", "working_set", found, stat=stat, **where)
        calculated(records, "table_v_bf16", half, **where)
        records.add("table_v_bf16", "kernels_oracle", count - 2, "launches", "static", **where)


def calculated(records: Records, experiment: str, sets: Mapping[str, float], **where: str) -> None:
    """What follows from shapes, its range over what cuBLAS may choose, and the arguments' bound."""
    for stat, value in sets.items():
        for metric, number in (
            ("working_set_oracle", value), ("working_set_oracle_low", value),
            ("working_set_oracle_high", value + 8.125), ("working_set_bound", 1.1 * value),
        ):  # fmt: skip
            records.add(experiment, metric, number, evidence="static", stat=stat, **where)


def oracle(records: Records, change: float = 1.0) -> None:
    """The same of the experiment that needs no GPU; and a tiny run's bound on the CPU."""
    for (model, mode), sets in ORACLE.items():
        altered = {stat: change * value for stat, value in sets.items()}
        calculated(records, "oracle", altered, model=model, mode=mode)
    for mode in MODES:
        records.add("args_bound", "working_set_bound", 0.03, model="bert", mode=mode, stat="max",
                    size="tiny", device="cpu")  # fmt: skip


def times(records: Records, experiment: str, slow: Mapping[str, float], **where: str) -> None:
    """Slow-downs of five turns, and where the time went; the program alone takes 1 s."""
    for model in MODELS:
        for variant, value in slow.items():
            here = {"model": model, "mode": "test", "variant": variant, **where}
            samples = [factor * value for factor in (0.98, 0.99, 1.0, 1.01, 1.02)]
            records.add(experiment, "iteration_time", samples, "s", **here)
            if "sample" in where:
                for scaling, factor in (("authors", 1.0), ("sound", 0.5)):
                    records.add(experiment, "slowdown", factor * value, "x", "scaled",
                                scaling=scaling, **here)  # fmt: skip
            else:
                records.add(experiment, "slowdown", samples, "x", scaling="none", **here)
            on_cpu = variant.startswith("cs_cpu")
            added = (0.05, 0.05, 0.9) if on_cpu else (0.9, 0.05, 0.05)
            shares = (1.0, *(share * (value - 1) for share in added))
            for part, seconds in zip(PARTS, shares, strict=True):
                records.add(experiment, "tool_time", seconds, "s", part=part, **here)


def overhead(
    records: Records,
    slow: Mapping[str, float] = SLOWDOWNS,
    small: Mapping[str, float] = SMALL,
    sampled: Mapping[str, float] = SAMPLED,
) -> None:
    """Every variant at the paper's sizes, the CPU's on small models, and sampled ones."""
    times(records, "overhead_gpu", slow, size="full")
    times(records, "overhead_cpu", small, size="small")
    times(records, "overhead_cpu", sampled, size="full", sample="60")


def hot_blocks(records: Records) -> None:
    """A heat map of 5 windows by 4 blocks."""
    for activity in ("always", "burst"):
        records.add("hot_blocks", "block_share", 20, "%", model="bert", mode="test",
                    activity=activity)  # fmt: skip
    for window in range(5):
        for block in range(4):
            records.add("hot_blocks", "accesses", window * block * 100, "accesses", model="bert",
                        mode="test", window=str(window), block=str(block))  # fmt: skip


def allocated(records: Records, experiment: str, peak: float, **where: str) -> None:
    """A ramp up to the peak at 60 % of the events, and down again."""
    records.add(experiment, "peak_allocated", peak, **where)
    events = 1200 if where.get("device") == "1" else 1000
    for kind in ("malloc", "free"):
        records.add(experiment, "tensor_events", events, "events", kind=kind, **where)
    for percent in range(101):
        size = peak * (1 - abs(percent - 60) / 70)
        records.add(experiment, "allocated", size, progress=str(percent), **where)


def memory(records: Records, *, cpu: bool = False) -> None:
    """GPT-2's training, and two GPUs in three ways; the latter, tiny, on the CPU too."""
    where = {"model": "gpt2", "mode": "train"}
    if cpu:
        allocated(records, "timeline", 0.5, level="tensor", device="cpu", size="tiny", **where)
    else:
        for level, more in (("tensor", 0), ("object", 1000)):
            allocated(records, "timeline", 8000 + more, level=level, device="0", **where)
    for mode in ("dp", "tp", "pp"):
        for device in "01":
            place = {"parallelism": mode, "device": device}
            half = 0.5 if mode == "tp" else 1.0
            allocated(records, "two_ranks", 2 * half, level="tensor", size="tiny", **place)
            for level, more in () if cpu else (("tensor", 0), ("object", 1000)):
                allocated(records, "two_gpus", 8000 * half + more, level=level, **place)


def uvm(records: Records, driver: str = "off", factors: Sequence[str] = ("0", "3")) -> None:
    """Times, bytes asked for and bytes moved: gains that lie between the paper's."""
    over = {"0": {"object": 0.63, "tensor": 0.72}, "3": {"object": 2.6, "tensor": 1.1}}
    for factor in factors:
        for model in MODELS:
            labels = {"model": model, "oversubscription": factor}
            records.add("uvm", "footprint", 1000, **labels)
            for policy in ("none", "object", "tensor"):
                where = {**labels, "policy": policy, "driver_prefetch": driver}
                ratio = 1.0 if policy == "none" else over[factor][policy]
                if model == "gpt2" and factor == "3" and policy != "none":
                    ratio = 0.9
                records.add("uvm", "uvm_time", [2 * ratio] * 5, "s", **where)
                records.add("uvm", "normalized_time", [ratio] * 5, "x", **where)
                asked = {"none": 0.0, "object": 900.0, "tensor": 500.0}[policy]
                records.add("uvm", "prefetch_asked", asked, **where)
                for direction, moved in (("in", asked + 100), ("out", 10.0)):
                    records.add("uvm", "moved", moved, direction=direction, **where)


def counts(records: Records, off: float = 0) -> None:
    """Kernels with known counts in three runs; `off` is by how much one run miscounts one."""
    for kernel, counter, count in (
        ("vector_add", "global_reads", 200_000), ("vector_add", "global_writes", 100_000),
        ("atomic", "global_atomics", 100_000), ("shared", "shared_reads", 4096),
    ):  # fmt: skip
        wrong = off if (kernel, counter) == ("atomic", "global_atomics") else 0
        where = {"kernel": kernel, "counter": counter}
        records.add("counts", "counted", [count, count, count + wrong], "accesses", **where)
        records.add("counts", "expected", count, "accesses", "static", **where)
        records.add("counts", "count_error", [0, 0, wrong], "accesses", **where)


def distinct(
    records: Records,
    slow: float = 1.2,
    wrong: float = 0,
    checked: float = 900,
    off: float = 0,
    unmatched: float = 0,
) -> None:
    """One in fifty analysed; the last model is as the arguments say."""
    for mode in ("test", "train"):
        for model in MODELS:
            last = model == MODELS[-1]
            where = {"model": model, "mode": mode}
            records.add("distinct", "slowdown", slow if last else 1.2, "x", variant="distinct",
                        **where)  # fmt: skip
            for metric, value, usual in (
                ("mismatches", wrong, 0), ("checked", checked, 900), ("cells_that_differ", off, 0),
                ("unmatched", unmatched, 0),
            ):  # fmt: skip
                records.add("distinct", metric, value if last else usual, "launches", **where)


def everything() -> Records:
    """Records of all experiments of the native lane that run without being named."""
    records = Records()
    for part in (table_v, published, in_bf16, oracle, overhead, hot_blocks, memory, uvm, counts):
        part(records)
    return records

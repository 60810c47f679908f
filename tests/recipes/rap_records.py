"""A made-up record table with every record that RAP's native workload may write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd

from ae.records import Row, frame

PLANS, BATCHES = ("0", "1", "2", "3"), ("4096", "8192")
# Throughput over that of Sequential, and the ideal's samples/s on one GPU.
OVER_SEQUENTIAL = {
    "sequential": 1.0, "stream": 1.35, "mps": 1.42, "rap_no_mapping": 1.7, "rap_no_fusion": 1.5,
    "rap": 1.86, "rap_plus": 1.9, "ideal": 1.92, "sequential_fused": 1.3,
    "sequential_timeslice": 0.8, "stream_priority": 1.4, "rap_mps": 1.6, "rap_green": 1.75,
    "ideal_barrier": 1.85,
}  # fmt: skip
FIG9 = {
    "cpu": 0.2, "stream": 1.35, "mps": 1.42, "rap": 1.86, "rap_plus": 1.9, "ideal": 1.92,
    "stream_sync": 0.9,
}  # fmt: skip
RATIOS = ("0.05", "0.10", "0.25", "0.50", "1.00", "2.00")
STAGES = {
    "emb_fwd": (300, 90), "mlp_fwd": (650, 180), "mlp_bwd": (1200, 420), "emb_bwd": (280, 80),
    "grad_comm": (150, 120),
}  # fmt: skip
FAMILIES = {
    "1d": ("fill_null", "sigrid_hash", "logit"), "bucketize": ("bucketize",),
    "firstx": ("first_x",), "ngram": ("ngram",), "onehot": ("one_hot",),
}  # fmt: skip
GRAPHS = {"plan0": (105, 6), "plan1": (105, 6), "plan2": (420, 30), "plan3": (830, 41),
          "random_13x6": (78, 19), "random_26x6": (156, 24)}  # fmt: skip
H200 = {"gpu": "NVIDIA H200", "driver": "580.159", "cuda": "13.0", "torch": "2.14.1"}


class Records:
    """Collects made-up records."""

    def __init__(self, seed: int = 5) -> None:
        self.rows: list[Row] = []
        self._rng = np.random.default_rng(seed)

    def add(
        self,
        experiment: str,
        metric: str,
        value: float | Sequence[float],
        unit: str,
        labels: Mapping[str, object],
        *,
        n: int = 5,
        evidence: str = "measured",
        noise: float = 0.004,
    ) -> None:
        """Add one record: exactly these samples, or `n` of them scattered around one value."""
        if isinstance(value, int | float):
            value = [float(x) for x in value * (1 + noise * self._rng.standard_normal(n))]
        self.rows.append(
            Row(
                metric=metric,
                unit=unit,
                evidence=evidence,
                samples=tuple(value),
                labels={key: str(label) for key, label in labels.items()},
                experiment=experiment,
                point=f"{experiment}-{labels.get('plan', 'all')}",
            )
        )

    def frame(self) -> pd.DataFrame:
        """The record table of docs/contracts.md."""
        return frame(self.rows)


def training(
    records: Records,
    experiment: str,
    over: Mapping[str, float],
    gpus: Sequence[int] = (1, 2),
    plans: Sequence[str] = PLANS,
) -> None:
    """Throughput of every variant in every cell, and what else such a point records."""
    for count, plan, batch in product(gpus, plans, BATCHES):
        alone = count**0.9 * 1e6 * (1 - 0.2 * int(plan)) * (1.1 if batch == "8192" else 1)
        for variant, factor in over.items():
            labels = {"gpus": count, "plan": plan, "batch": batch, "variant": variant}
            rate = alone * factor / 1.92
            records.add(experiment, "throughput", rate, "samples/s", labels)
            time = 1000 * int(batch) * count / rate
            records.add(experiment, "iteration_time", time, "ms", labels)
            records.add(experiment, "preprocessing_share", 0.9, "ratio", labels)


def predictor(records: Records, spread: float = 0.04) -> None:
    """Kernels of every family; predictions scatter around what was measured."""
    rng = np.random.default_rng(1)
    good: dict[tuple[str, str], list[bool]] = {}
    for family, ops in FAMILIES.items():
        points = product(ops, (4096, 8192, 32768), (1, 2, 4, 8, 13, 26), (1, 3, 8))
        for index, (op, rows, fused, width) in enumerate(points):
            split = "test" if index % 4 == 0 else "train"
            measured = 3 + 2e-5 * rows * fused * width
            told = measured * (1 + spread * rng.standard_normal())
            for name in (family, "all"):
                good.setdefault((name, split), []).append(abs(told / measured - 1) <= 0.1)
            labels = {"family": family, "op": op, "rows": rows, "width": width, "fused": fused}
            labels |= {"split": split}
            records.add("predictor", "latency", measured, "us", labels, noise=0)
            records.add("predictor", "prediction", [told], "us", labels)
    for (family, split), hits in good.items():
        share = [100 * sum(hits) / len(hits)]
        labels = {"family": family, "split": split}
        records.add("predictor", "within_10_percent", share, "%", labels)


def capacity(records: Records) -> None:
    """Time and capacity of every training stage."""
    for plan, (stage, (time, free)) in product(PLANS, STAGES.items()):
        labels = {"gpus": 1, "plan": plan, "batch": "4096", "stage": stage}
        scale = 1 + 0.5 * int(plan)
        records.add("capacity", "stage_time", time * scale, "us", labels)
        records.add("capacity", "capacity", free * scale, "us", labels, noise=0.02)
        records.add("capacity", "probes", [free // 10], "count", labels)


def ratio(records: Records, gpus: Sequence[int] = (1, 2), rap: float = 0.96) -> None:
    """Throughput of every variant while preprocessing grows; `rap`: RAP+ over ideal at 1."""
    for count, text in product(gpus, RATIOS):
        x, alone = float(text), count * 1.1e6
        over = {
            "ideal": 1.0, "sequential": 1 / (1 + x), "stream": 1 / (1 + 0.75 * x),
            "mps": 1 / (1 + 0.6 * x), "rap": min(rap, 1 / (0.35 + 0.7 * x)),
            "rap_plus": min(rap + 0.01, 1 / (0.3 + 0.65 * x)),
        }  # fmt: skip
        cell = {"gpus": count, "plan": "2", "batch": "4096", "ratio": text}
        records.add("ratio", "measured_ratio", 1.03 * x, "ratio", cell)
        for variant, factor in over.items():
            labels = {**cell, "variant": variant}
            records.add("ratio", "throughput", alone * factor, "samples/s", labels)


def timeline(records: Records) -> None:
    """Spans of one iteration: one after the other, or side by side."""
    for count, plan in product((1, 2), ("0", "2")):
        for variant in ("sequential", "stream", "rap", "rap_plus"):
            base = {"gpus": count, "plan": plan, "batch": "4096", "variant": variant}
            work = 900 if variant == "sequential" else 0
            now = float(work)
            for index, (stage, (time, _)) in enumerate(STAGES.items()):
                lane = "comm" if stage == "grad_comm" else "train"
                labels = {**base, "lane": lane, "name": stage, "index": index}
                records.add("timeline", "span", [now, now + time], "us", labels)
                now += time
            pieces = 3 if variant == "rap" else 9
            for index in range(pieces):
                start = index * (900 if variant == "sequential" else 2300) / pieces
                labels = {**base, "lane": "preprocess", "name": "fused_hash", "index": index}
                records.add("timeline", "span", [start, start + 80], "us", labels)
            labels = {**base, "lane": "copy", "name": "raw", "index": 0}
            records.add("timeline", "span", [10.0, 120.0], "us", labels)


def fusion(records: Records, optimum: float = 2420, seconds: float = 0.2) -> None:
    """What each solver found on each graph."""
    for graph, (nodes, launches) in GRAPHS.items():
        hard = graph == "random_26x6"
        solved = {
            "asap": (launches + (8 if "random" in graph else 0), 0.0002, 0.0),
            "highs": (launches, 29.5 if hard else seconds, 21.0 if hard else 0.0),
            "unfused": (nodes, 0.0, 0.0),
        }
        for solver, (count, time, gap) in solved.items():
            labels = {"graph": graph, "solver": solver}
            records.add("fusion", "launches", [count], "launches", labels, evidence="static")
            if solver == "unfused":
                continue
            records.add("fusion", "solve_time", [time], "s", labels)
            value = optimum if graph in ("plan0", "plan1") else 9 * nodes - count
            for metric, number in (("objective", value), ("upper_bound", value * (1 + gap / 100))):
                records.add("fusion", metric, [number], "launches^2", labels, evidence="static")
            if solver == "highs":
                records.add("fusion", "gap", [gap], "%", labels, evidence="static")


def everything(gpus: Sequence[int] = (1, 2)) -> Records:
    """Records of all experiments of the native lane."""
    records = Records()
    training(records, "fig9", FIG9, gpus)
    training(records, "fig10", OVER_SEQUENTIAL, gpus)
    predictor(records)
    capacity(records)
    ratio(records, gpus)
    timeline(records)
    fusion(records)
    return records

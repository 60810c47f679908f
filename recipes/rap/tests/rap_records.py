"""A made-up record table with every record that RAP's native workload may write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd

from ae.records.files import Row, frame

PLANS, HEAVY_PLANS, BATCHES = ("0", "1"), ("2", "3"), ("4096", "8192")
# Throughput over that of Sequential, and the ideal's samples/s on one GPU.
OVER_SEQUENTIAL = {
    "sequential": 1.0, "stream": 1.35, "mps": 1.42, "rap_no_mapping": 1.7, "rap_no_fusion": 1.5,
    "rap": 1.86, "rap_plus": 1.9, "ideal": 1.92, "sequential_fused": 1.3,
    "sequential_timeslice": 0.8, "stream_priority": 1.4, "rap_mps": 1.6, "rap_green": 1.75,
    "ideal_barrier": 1.85, "sequential_graph": 1.2, "sequential_fused_graph": 1.4,
    "stream_graph": 1.5, "stream_fused_graph": 1.6, "rap_no_mapping_graph": 1.72, "rap_graph": 1.88,
}  # fmt: skip
FIG9 = {
    "cpu": 0.2, "stream": 1.35, "mps": 1.42, "rap": 1.86, "rap_plus": 1.9, "ideal": 1.92,
    "stream_sync": 0.9, "stream_graph": 1.5,
}  # fmt: skip
HEAVY = {
    "sequential": 1.0, "stream": 1.3, "rap_no_mapping": 1.5, "rap": 1.7, "rap_plus": 1.85,
    "ideal": 1.92, "sequential_fused": 1.2, "sequential_graph": 1.15,
    "sequential_fused_graph": 1.25, "stream_graph": 1.4, "stream_fused_graph": 1.45,
    "rap_no_mapping_graph": 1.6, "rap_graph": 1.75,
}  # fmt: skip
# What is added, without it, with it; nothing is mapped on one GPU.
GAINS = {
    "graph": ("sequential", "sequential_graph"),
    "fusion": ("sequential_graph", "sequential_fused_graph"),
    "overlap": ("sequential_fused_graph", "stream_fused_graph"),
    "schedule": ("stream_fused_graph", "rap_no_mapping_graph"),
    "mapping": ("rap_no_mapping_graph", "rap_graph"),
    "all": ("sequential", "rap_graph"),
}
RATIOS = ("0.25", "0.50", "0.75", "1.00", "1.50", "2.00")
STAGES = {
    "emb_fwd": (300, 90), "mlp_fwd": (650, 180), "mlp_bwd": (1200, 420), "emb_bwd": (280, 80),
    "grad_comm": (150, 120),
}  # fmt: skip
FAMILIES = {
    "1d": ("fill_null", "sigrid_hash", "logit"), "bucketize": ("bucketize",),
    "first_x": ("first_x",), "ngram": ("ngram",), "one_hot": ("one_hot",),
}  # fmt: skip
# Launches unfused, as soon as possible and by the solver; proved gap in %, s to solve.
GRAPHS = {
    "plan0": (106, 6, 6, 0.0, 0.003), "plan1": (106, 6, 6, 0.0, 0.002),
    "plan2": (472, 51, 35, 0.0, 1.04), "plan3": (953, 51, 35, 0.0, 0.79),
    "random_13x6": (78, 30, 25, 0.0, 2.86), "random_26x6": (156, 30, 29, 0.154, 16.9),
}  # fmt: skip
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
    batches: Sequence[str] = BATCHES,
) -> None:
    """Throughput of every variant in every cell, and what else such a point records."""
    for count, plan, batch in product(gpus, plans, batches):
        alone = count**0.9 * 1e6 * (1 - 0.2 * int(plan)) * (1.1 if batch == "8192" else 1)
        for variant, factor in over.items():
            labels = {"gpus": count, "plan": plan, "batch": batch, "variant": variant}
            rate = alone * factor / 1.92
            records.add(experiment, "throughput", rate, "samples/s", labels)
            time = 1000 * int(batch) * count / rate
            records.add(experiment, "iteration_time", time, "ms", labels)
            if variant in ("sequential", "sequential_graph", "sequential_fused", "rap_plus"):
                records.add(experiment, "preprocessing_time", [900.0], "us", labels)
                records.add(experiment, "preprocessing_share", [0.9], "1", labels)
            if variant == "rap_plus":
                records.add(experiment, "gpu_work", [40.0], "us", labels)
                records.add(experiment, "idle_capacity", [400.0], "us", labels)
            if variant == "cpu":
                for workers in (1, 2, 4):
                    more = {**labels, "workers": workers}
                    records.add(experiment, "workers_throughput", rate, "samples/s", more, n=3)
                records.add(experiment, "workers_chosen", [4.0], "1", labels)
        cell = {"gpus": count, "plan": plan, "batch": batch}
        for part, (before, after) in GAINS.items():
            if before in over and after in over and (part != "mapping" or count > 1):
                labels = {**cell, "variant": after, "part": part}
                records.add(experiment, "gain", over[after] / over[before], "1", labels)
        if experiment == "heavy":
            load = float(plan) - 1
            for metric, unit, value in (
                ("busy_ratio", "1", 1.02 * load), ("training_busy", "us", 3000.0),
                ("preprocessing_busy", "us", 3060.0 * load), ("operators", "1", 1400.0),
            ):  # fmt: skip
                records.add(experiment, metric, [value], unit, cell)
            for number, factor in enumerate((1.0, 3.0)):
                tried = {**cell, "try": number, "factor": f"{factor:.4f}"}
                records.add(experiment, "tried_busy_ratio", [factor * load / 2.94], "1", tried)


def predictor(records: Records, spread: float = 0.04) -> None:
    """Kernels of every family; predictions scatter around what was measured."""
    rng = np.random.default_rng(1)
    good: dict[tuple[str, str], list[bool]] = {}
    for family, ops in FAMILIES.items():
        points = product(ops, (4096, 8192, 32768), (1, 2, 4, 8, 13, 26), (1, 3, 8))
        for index, (op, rows, fused, width) in enumerate(points):
            split = "test" if index % 2 == 0 else "train"
            measured = 3 + 2e-5 * rows * fused * width
            told = measured * (1 + spread * rng.standard_normal())
            for name in (family, "all"):
                good.setdefault((name, split), []).append(abs(told / measured - 1) <= 0.1)
            labels = {"family": family, "op": op, "rows": rows, "width": width, "fused": fused}
            labels |= {"split": split}
            records.add("predictor", "latency", [measured], "us", labels)
            records.add("predictor", "prediction", [told], "us", labels, evidence="simulated")
    for (family, split), hits in good.items():
        share = [100 * sum(hits) / len(hits)]
        labels = {"family": family, "split": split}
        records.add("predictor", "within_10_percent", share, "%", labels)  # of older images
        records.add("predictor", "predicted_within_10_percent", list(map(float, hits)), "1", labels)


def capacity(records: Records, gpus: Sequence[int] = (1, 2)) -> None:
    """Time and capacity of every training stage."""
    for count, plan, (stage, (time, free)) in product(gpus, PLANS, STAGES.items()):
        labels = {"gpus": count, "plan": plan, "batch": "4096", "stage": stage}
        scale = 1 + 0.5 * int(plan)
        records.add("capacity", "stage_time", [time * scale], "us", labels)
        records.add("capacity", "capacity", [free * scale], "us", labels)
        records.add("capacity", "probes", [free // 10], "1", labels)


def ratio(records: Records, rap: float = 0.96) -> None:
    """Throughput of every variant while preprocessing grows; `rap`: RAP over ideal at most."""
    for text in RATIOS:
        x, alone = float(text), 1.1e6
        over = {
            "ideal": 1.0, "sequential": 1 / (1 + x), "sequential_fused": 1 / (1 + 0.5 * x),
            "stream": 1 / (1 + 0.75 * x), "rap": min(rap, 1 / (0.35 + 0.7 * x)),
            "rap_plus": min(rap + 0.01, 1 / (0.3 + 0.65 * x)),
        }  # fmt: skip
        cell = {"gpus": 1, "plan": "2", "batch": "4096", "ratio": text}
        records.add("ratio", "measured_ratio", [1.03 * x], "1", cell)
        for variant, factor in over.items():
            labels = {**cell, "variant": variant}
            records.add("ratio", "throughput", alone * factor, "samples/s", labels)
            time = 4096e3 / (alone * factor)
            records.add("ratio", "iteration_time", time, "ms", labels)
            if variant == "rap_plus":
                records.add("ratio", "gpu_work", [200.0 * x], "us", labels)
                records.add("ratio", "idle_capacity", [400.0], "us", labels)


def timeline(records: Records, gpus: Sequence[int] = (1, 2)) -> None:
    """Spans of one iteration: one after the other, or side by side."""
    for count, plan in product(gpus, ("0", "2")):
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


def fusion(records: Records, optimum: float = 2420, seconds: float | None = None) -> None:
    """What each solver found on each graph; `seconds` that plans take, if not as in GRAPHS."""
    for graph, (nodes, early, launches, gap, took) in GRAPHS.items():
        plan = graph.startswith("plan")
        best = optimum if graph in ("plan0", "plan1") else 20.0 * nodes
        found = best if graph in ("plan0", "plan1") else best / 1.6
        solved = {
            "asap": (early, 0.004, found, best),
            "highs": (
                launches,
                seconds if plan and seconds else took,
                best,
                best * (1 + gap / 100),
            ),
        }
        labels = {"graph": graph, "solver": "unfused"}
        records.add("fusion", "launches", [nodes], "1", labels, evidence="static")
        for solver, (count, time, objective, bound) in solved.items():
            labels = {"graph": graph, "solver": solver}
            records.add("fusion", "solve_time", [time], "s", labels)
            for metric, unit, number in (
                ("objective", "1", objective), ("upper_bound", "1", bound),
                ("gap", "%", 100 * (bound / objective - 1)), ("launches", "1", count),
            ):  # fmt: skip
                records.add("fusion", metric, [number], unit, labels, evidence="static")


def everything(gpus: Sequence[int] = (1, 2)) -> Records:
    """Records of all experiments of the native lane on a machine that trains on `gpus`."""
    records = Records()
    training(records, "fig9", FIG9, gpus)
    training(records, "fig10", OVER_SEQUENTIAL, gpus)
    training(records, "heavy", HEAVY, gpus, HEAVY_PLANS, BATCHES[:1])
    predictor(records)
    capacity(records, gpus)
    ratio(records)
    timeline(records, gpus)
    fusion(records)
    return records

"""A made-up record table with every record that the DLRM workload may write."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd

from ae.records.files import Row, frame

DATASETS = ["one_item", "high_hot", "med_hot", "low_hot", "random"]
FACTOR = {
    "stock21": 1.05, "base": 1.0, "optmt": 0.7, "rpf": 0.62, "smpf": 0.66, "lmpf": 0.81,
    "l1dpf": 0.95, "l2p": 0.97, "rpf_l2p": 0.52, "rpf_tuned": 0.5, "smpf_tuned": 0.51,
    "rpf_l2p_tuned": 0.49, "stock": 0.68, "fbgemm": 0.42, "best": 0.28,
}  # fmt: skip
PIN_US = 15.0
BASE_US = dict(zip(DATASETS, [44.4, 64.7, 98.9, 126.9, 136.9], strict=True))
LIMIT_US = dict(zip(DATASETS, [0.8, 4.6, 14.2, 23.4, 28.3], strict=True))
UNIQUE_ROWS = dict(zip(DATASETS, [1, 31165, 111166, 187985, 229434], strict=True))
L2_MODES = ["hint", "setaside", "window", "setaside_reset"]
DISTANCE = {"rpf": 2, "smpf": 10, "l1dpf": 2, "lmpf": 2, "rpf_l2p": 2}
GPU = {
    "gpu": "NVIDIA H200", "driver": "580.159", "cuda": "13.0", "torch": "2.11.0",
    "clocks": {"start": {"sm": 1980}},
}  # fmt: skip
CPU = {"gpu": None, "cpu": "AMD EPYC 7B13", "torch": "2.13.0+cpu"}


class Records:
    """Collects made-up records."""

    def __init__(self, seed: int = 3) -> None:
        self.rows: list[Row] = []
        self._rng = np.random.default_rng(seed)

    def add(
        self,
        experiment: str,
        metric: str,
        value: float,
        *,
        unit: str = "us",
        n: int = 60,
        evidence: str = "measured",
        noise: float = 0.02,
        **labels: object,
    ) -> None:
        """Add one record with `n` samples scattered around `value`."""
        samples = value * (1 + noise * self._rng.standard_normal(n))
        self.rows.append(
            Row(
                metric=metric,
                unit=unit,
                evidence=evidence,
                samples=tuple(float(sample) for sample in samples),
                labels={key: str(label) for key, label in labels.items()},
                experiment=experiment,
                point=f"{experiment}-{labels.get('dataset', 'all')}",
            )
        )

    def frame(self) -> pd.DataFrame:
        """The record table of docs/contracts.md."""
        return frame(self.rows)


def embedding(records: Records, variants: dict[str, float] | None = None) -> None:
    """One table a launch for every variant, all tables a launch for best and fbgemm, limits."""
    for dataset in DATASETS:
        for variant, factor in (variants or FACTOR).items():
            modes = [{"l2_mode": "setaside"}] if "l2p" in variant else [{}]
            for mode in modes:
                labels = {"dataset": dataset, "variant": variant, "launch": "one_table", **mode}
                time = BASE_US[dataset] * factor
                records.add("embedding", "kernel_time", time, **labels)
                if mode:
                    records.add("embedding", "pin_and_kernel_time", time + PIN_US, **labels)
            if variant in ("best", "fbgemm"):
                records.add(
                    "embedding", "kernel_time", BASE_US[dataset] * factor * 0.8, dataset=dataset,
                    variant=variant, launch="all_tables",
                )  # fmt: skip
        records.add("embedding", "limit_time", LIMIT_US[dataset], dataset=dataset,
                    evidence="scaled", n=20)  # fmt: skip
        records.add("embedding", "copy_bandwidth", 4270, unit="GB/s", dataset=dataset, n=20)
        records.add(
            "embedding",
            "unique_rows",
            UNIQUE_ROWS[dataset],
            unit="rows",
            dataset=dataset,
            n=12,
            noise=0.0 if dataset == "one_item" else 0.0002,
        )


def endtoend(records: Records) -> None:
    """Full inference, eager and as a graph, with the share of the embedding stage."""
    for dataset, (variant, factor) in product(DATASETS, FACTOR.items()):
        labels = {"dataset": dataset, "variant": variant}
        labels |= {"l2_mode": "setaside"} if "l2p" in variant else {}
        for mode, extra in (("eager", 90.0), ("graph", 20.0)):
            total = 12 * BASE_US[dataset] * factor + extra
            share = 100 * (1 - extra / total)
            records.add("endtoend", "endtoend_time", total, mode=mode, **labels)
            records.add("endtoend", "embedding_share", share, unit="%", mode=mode, **labels)


POOLINGS = (1, 2, 3, 5, 8, 10, 20, 40, 150)


def grid(records: Records, slowest: float = 1.1) -> None:
    """FBGEMM over best in every cell, by `slowest` to 1.5 times; long bags twice in vain."""
    cells = product(POOLINGS, (64, 2048, 16384), ("uniform", "zipf", "sorted"),
                    (500_000, 10_000_000), ("one_table", "all_tables"))  # fmt: skip
    for place, (pooling, batch, ids, rows, launch) in enumerate(cells):
        labels = {"pooling": pooling, "batch": batch, "ids": ids, "rows": rows, "launch": launch}
        for variant, factor in (("best", 1.0), ("fbgemm", 1.5 if place else slowest)):
            time = factor * (4 + pooling * batch * 1e-4)
            records.add("grid", "cell_time", time, n=5, noise=0.001, variant=variant, **labels)
    for bags, time in (("even", 34.0), ("ten_of_5000", 50.0), ("one_of_100000", 80.0)):
        records.add("grid", "long_bags_time", time, n=5, variant="best", bags=bags)


def sweep(records: Records, dataset: str) -> None:
    """Register prefetch over distance and warps, beside PyTorch 2.1."""
    records.add("sweep", "kernel_time", 1.05 * BASE_US[dataset], dataset=dataset, variant="stock21")
    for distance, warps in product((1, 2, 4, 6, 8, 10, 12, 16, 24), (16, 24, 32, 40, 48, 64)):
        time = BASE_US[dataset] * (1.6 - 0.1 * min(distance, 6) - 0.008 * min(warps, 48))
        records.add(
            "sweep", "kernel_time", time, dataset=dataset, variant="rpf", launch="one_table",
            distance=distance, warps_per_sm=warps,
        )  # fmt: skip


def pin_cost(records: Records, dataset: str) -> None:
    """Every way to pin, with the time of pinning."""
    labels = {"dataset": dataset, "launch": "one_table"}
    records.add("pin_cost", "kernel_time", BASE_US[dataset], variant="base", **labels)
    for variant, mode in product(("l2p", "rpf_l2p", "rpf_l2p_tuned"), L2_MODES):
        labels |= {"variant": variant, "l2_mode": mode}
        records.add("pin_cost", "kernel_time", BASE_US[dataset] * FACTOR[variant], **labels)
        records.add("pin_cost", "pin_time", 17.5, **labels)
        together = BASE_US[dataset] * FACTOR[variant] + PIN_US
        records.add("pin_cost", "pin_and_kernel_time", together, **labels)


def static(records: Records) -> None:
    """What the compiled kernels take, per architecture."""

    def add(metric: str, value: float, unit: str, **labels: str) -> None:
        records.add("static", metric, value, unit=unit, n=1, noise=0, evidence="static", **labels)

    for arch in ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"):
        for index, variant in enumerate(v for v in FACTOR if not v.endswith("_tuned")):
            labels = {"arch": arch, "variant": variant}
            registers = {"stock21": 74, "base": 59, "optmt": 42}.get(variant, 30 + 3 * index)
            occupancy = {"stock21": 37.5, "base": 37.5, "optmt": 62.5}.get(variant, 50.0)
            add("registers", registers, "registers", **labels)
            add("occupancy", occupancy, "%", **labels)
            add("spill_bytes", 84 if variant == "optmt" else 0, "bytes", **labels)
            add("local_bytes", 8 if variant == "lmpf" else 0, "bytes", **labels)
            if variant in DISTANCE:
                add("distance", DISTANCE[variant], "rows", **labels)
        add("pinned_rows", 61440, "rows", arch=arch)
        add("pinned_bytes", 31457280, "bytes", arch=arch)


def profile(records: Records) -> None:
    """Hardware counters of one launch of each variant that does not pin."""
    for index, dataset in enumerate(DATASETS):
        for variant in (name for name in FACTOR if "l2p" not in name):
            waits = {"stock21": 0.0, "optmt": -3.0, "rpf": -9.0}.get(variant, -5.0)
            labels = {"dataset": dataset, "variant": variant}
            for metric, value in (
                ("achieved_occupancy", 32.0 if variant == "stock21" else 49.0),
                ("long_scoreboard", 40.0 + 11 * index + waits),
            ):
                records.add("profile", metric, value, unit="%", n=1, noise=0, **labels)


def everything() -> Records:
    """Records of all experiments."""
    records = Records()
    embedding(records)
    endtoend(records)
    grid(records)
    for dataset in DATASETS:
        sweep(records, dataset)
        pin_cost(records, dataset)
    profile(records)
    static(records)
    return records

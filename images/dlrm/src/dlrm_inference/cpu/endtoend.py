"""Full inference on a CPU, variants interleaved."""

from __future__ import annotations

import time
from collections.abc import Callable

from reprokit import timing
from reprokit.progress import Progress
from reprokit.records import RecordWriter

from dlrm_inference.config import Config
from dlrm_inference.cpu.model import Dense, dense_features
from dlrm_inference.cpu.setup import labels_of, set_up
from dlrm_inference.cpu.variants import Variant


def endtoend(config: Config, out: RecordWriter) -> None:
    """Write `endtoend_time` (us, one batch through the whole model) and `embedding_share` (%)."""
    _, variants = set_up(config, out)
    dense, features = Dense(config), dense_features(config)
    shares: dict[str, list[float]] = {variant.name: [] for variant in variants}
    progress = Progress(config.warmup + config.samples)

    def timed(variant: Variant) -> Callable[[int], float]:
        def sample(number: int) -> float:
            batch = number % config.batches
            start = time.perf_counter_ns()
            hidden = dense.bottom(features)
            before = time.perf_counter_ns()
            sums = [variant.call(table, batch) for table in range(config.tables)]
            after = time.perf_counter_ns()
            dense.top(hidden, sums)
            total = time.perf_counter_ns() - start
            shares[variant.name].append(100 * (after - before) / total)
            return total / 1000

        return sample

    kept = timing.interleave(
        {variant.name: timed(variant) for variant in variants},
        config.samples,
        config.warmup,
        on_round=lambda _: progress.step("inference rounds"),
    )
    for variant in variants:
        labels = {**labels_of(config, variant), "mode": "eager"}
        share = shares[variant.name][config.warmup :]
        out.write(
            "endtoend_time",
            "us",
            kept[variant.name],
            labels,
            evidence=variant.evidence,
            warmup=config.warmup,
            note=variant.note or None,
        )
        out.write(
            "embedding_share",
            "%",
            share,
            labels,
            evidence=variant.evidence,
            warmup=config.warmup,
        )

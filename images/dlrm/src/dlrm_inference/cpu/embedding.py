"""The embedding stage on a CPU, variants interleaved."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from reprokit import timing
from reprokit.progress import Progress
from reprokit.records import RecordWriter

from dlrm_inference.config import Config
from dlrm_inference.cpu.setup import labels_of, set_up
from dlrm_inference.cpu.variants import Variant
from dlrm_inference.data import Batches
from dlrm_inference.describe import compulsory_bytes

_COPY_BYTES = 128 * 1024**2
_COPY_SAMPLES = 5
_STATE = "tables and batches rotate from launch to launch; caches hold what other launches left"


def embedding(config: Config, out: RecordWriter) -> None:
    """Write `kernel_time` (us, one table and batch a launch) of every variant.

    Beside it `copy_bandwidth` (GB/s) of a plain copy on one thread, and `limit_time` (us):
    unique rows, indices and output, moved once each at that rate.
    """
    batches, variants = set_up(config, out)
    progress = Progress(config.warmup + config.samples)

    def timed(variant: Variant, place: int) -> Callable[[int], float]:
        def sample(number: int) -> float:
            table, batch = _rotation(config, number + place)
            return timing.microseconds(lambda: variant.call(table, batch))

        return sample

    kept = timing.interleave(
        {variant.name: timed(variant, place) for place, variant in enumerate(variants)},
        config.samples,
        config.warmup,
        on_round=lambda _: progress.step("embedding rounds"),
    )
    for variant in variants:
        labels = {**labels_of(config, variant), "launch": "one_table"}
        note = "; ".join(filter(None, (variant.note, _STATE)))
        out.write(
            "kernel_time",
            "us",
            kept[variant.name],
            labels,
            evidence=variant.evidence,
            warmup=config.warmup,
            note=note,
        )
    _write_limit(config, out, batches)


def _rotation(config: Config, launch: int) -> tuple[int, int]:
    return launch % config.tables, launch // config.tables % config.batches


def _write_limit(config: Config, out: RecordWriter, batches: Batches) -> None:
    """Write the copy rate and the time it allows for each batch's compulsory bytes."""
    source = np.ones(_COPY_BYTES // 8)
    target = np.zeros_like(source)
    times = [
        timing.microseconds(lambda: np.copyto(target, source)) for _ in range(_COPY_SAMPLES + 1)
    ]
    rates = [2 * source.nbytes / us / 1000 for us in times[1:]]  # read and written, GB/s
    labels = {"dataset": config.dataset, "device": "cpu"}
    note = "one thread copies 128 MiB; a dataset that fits in the caches can beat this limit"
    out.write("copy_bandwidth", "GB/s", rates, labels, warmup=1, note=note)
    rate = float(np.median(rates)) * 1000  # bytes a microsecond
    limits = [
        compulsory_bytes(config, batches, table, batch) / rate
        for table in range(config.tables)
        for batch in range(config.batches)
    ]
    out.write("limit_time", "us", limits, labels, evidence="scaled", note=note)

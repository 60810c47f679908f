"""What is measured on a CPU: the embedding stage and full inference, variants interleaved."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from reprokit import timing
from reprokit.environment import machine_facts
from reprokit.progress import Progress
from reprokit.records import RecordWriter
from reprokit.skip import cannot_run

from dlrm_inference import reference
from dlrm_inference.config import Config, WrongResult
from dlrm_inference.cpu.model import Dense, dense_features
from dlrm_inference.cpu.tables import Tables
from dlrm_inference.cpu.variants import Variant, prepare, reason_not
from dlrm_inference.data import Batches, make_batches
from dlrm_inference.describe import write_dataset

_COPY_BYTES = 128 * 1024**2
_COPY_SAMPLES = 5
_GPU_ONLY = {
    "sweep": "the sweep is over a GPU's resident warps, which a CPU does not have",
    "pin_cost": "the pinning modes are ways to use a GPU's L2 cache",
    "profile": "the profiled counters are those of a GPU",
}
_STATE = "tables and batches rotate from launch to launch; caches hold what other launches left"


def run(config: Config, out: RecordWriter) -> None:
    """Run `config.experiment` on this CPU.

    Leaves with exit code 77 where a CPU has no counterpart. Raises WrongResult.
    """
    if config.experiment in _GPU_ONLY:
        cannot_run(f"{config.experiment} needs a GPU: {_GPU_ONLY[config.experiment]}")
    if config.dtype != "float32":
        cannot_run(f"the CPU kernels sum float32 tables only, not {config.dtype}")
    {"embedding": embedding, "endtoend": endtoend}[config.experiment](config, out)


def embedding(config: Config, out: RecordWriter) -> None:
    """Write `kernel_time` (us, one table and batch a launch) of every variant.

    Beside it `copy_bandwidth` (GB/s) of a plain copy on one thread, and `limit_time` (us):
    unique rows, indices and output, moved once each at that rate.
    """
    batches, variants = _set_up(config, out)
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
        labels = {**_labels(config, variant), "launch": "one_table"}
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


def endtoend(config: Config, out: RecordWriter) -> None:
    """Write `endtoend_time` (us, one batch through the whole model) and `embedding_share` (%)."""
    _, variants = _set_up(config, out)
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
        labels = {**_labels(config, variant), "mode": "eager"}
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


def _set_up(config: Config, out: RecordWriter) -> tuple[Batches, list[Variant]]:
    """Make data and tables, note what is skipped, and prove every variant's sums right."""
    out.environment(
        device="cpu",
        config=config.facts(),
        **machine_facts(("numpy", "numba", "llvmlite", "torch")),
    )
    names = []
    for name in config.variants:
        if reason := reason_not(name):
            out.skip({"variant": name, "dataset": config.dataset, "device": "cpu"}, reason)
        else:
            names.append(name)
    if not names:
        cannot_run(f"no variant can run here: {reason_not(config.variants[-1])}")
    batches = make_batches(config)
    write_dataset(out, config, batches)
    hot = any(name in ("l2p", "rpf_l2p") for name in names)
    tables = Tables(config, batches, hot=hot)
    if hot:
        _write_hot_cost(config, out, tables)
    variants = [prepare(name, config, tables) for name in names]
    _prove(config, tables, variants)
    return batches, variants


def _prove(config: Config, tables: Tables, variants: list[Variant]) -> None:
    """Compare each variant's sums of one batch with the reference; this also compiles it."""
    table, batch = config.tables - 1, config.batches - 1
    ids, offsets = tables.ids(table, batch), tables.offsets
    expected = reference.embedding_bag(tables.weight(table), ids, offsets)
    for variant in variants:
        if not np.allclose(variant.call(table, batch), expected, rtol=1e-4, atol=1e-6):
            raise WrongResult(f"the sums of variant '{variant.name}' differ from the reference")


def _rotation(config: Config, launch: int) -> tuple[int, int]:
    return launch % config.tables, launch // config.tables % config.batches


def _labels(config: Config, variant: Variant) -> dict[str, str]:
    return {"variant": variant.name, "dataset": config.dataset, "device": "cpu", **variant.labels}


def _write_hot_cost(config: Config, out: RecordWriter, tables: Tables) -> None:
    """Write what L2P costs beside its kernel: `pin_time` a table, `remap_time` a batch (us)."""
    copies, rewrites = tables.fill_hot()
    labels = {"dataset": config.dataset, "device": "cpu", "hot_list": config.hot_list}
    for metric, samples, note in (
        ("pin_time", copies, "copying a table's hot rows together"),
        ("remap_time", rewrites, "rewriting a batch's ids"),
    ):
        out.write(metric, "us", samples, labels, evidence="emulated", note=note)


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
    fixed = config.draws * np.dtype(config.index_dtype).itemsize + config.batch * config.row_bytes
    limits = [
        (batches.unique_rows(table, batch) * config.row_bytes + fixed) / rate
        for table in range(config.tables)
        for batch in range(config.batches)
    ]
    out.write("limit_time", "us", limits, labels, evidence="scaled", note=note)

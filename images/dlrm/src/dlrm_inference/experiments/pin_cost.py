"""What L2 pinning costs: the artifact leaves it out of its times, here it is measured."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from reprokit.progress import Progress
from reprokit.records import RecordWriter

from dlrm_inference.config import PINNING, Config
from dlrm_inference.cuda import pin
from dlrm_inference.cuda.bench import Bench, one_table, pinned
from dlrm_inference.cuda.rounds import STATE, in_rounds, with_pin
from dlrm_inference.cuda.timing import Target
from dlrm_inference.cuda.tuning import choose


def run(config: Config, out: RecordWriter) -> None:
    """Write what pinning costs: `kernel_time` without it, `pin_and_kernel_time` with it in the
    same event pair, `pin_time` of it alone, `reset_time` (host) where lines are given up."""
    bench = Bench(config, out)
    variants = choose(bench, out)
    pins = {n: v for n, v in variants.items() if n in PINNING}
    plain = {n: one_table(bench, v) for n, v in variants.items() if n not in PINNING}
    progress = Progress((1 + len(config.l2_modes)) * (config.samples + config.warmup))
    for name, samples in in_rounds(bench, plain, progress).items():
        labels = {"variant": name, "dataset": config.dataset}
        out.write("kernel_time", "us", samples, labels, warmup=config.warmup, note=STATE)
    for mode in config.l2_modes:
        _measure_mode(bench, out, pins, mode, progress)
    out.write(
        "pinned_rows", "rows", [bench.hot_count], {"dataset": config.dataset}, evidence="static"
    )
    bench.finish()


def _measure_mode(
    bench: Bench, out: RecordWriter, pins: Mapping[str, Any], mode: str, progress: Progress
) -> None:
    config = bench.config
    with ExitStack() as stack:
        targets: dict[str, Target] = {}
        for name, variant in pins.items():
            target = stack.enter_context(pinned(bench, variant, mode))
            targets[f"{name}/kernel_time"] = target
            if (both := with_pin(target)) is not None:
                targets[f"{name}/pin_and_kernel_time"] = both
                alone = Target(calls=target.before, outside=target.outside)
                targets[f"{name}/pin_time"] = alone
        for key, samples in in_rounds(bench, targets, progress).items():
            name, _, metric = key.partition("/")
            labels = {"variant": name, "dataset": config.dataset, "l2_mode": mode}
            out.write(metric, "us", samples, labels, warmup=config.warmup)
        if mode == "setaside_reset":
            labels = {"dataset": config.dataset, "l2_mode": mode}
            note = "host call, between tables, in no other time"
            out.write("reset_time", "us", _reset_times(bench), labels, note=note)


def _reset_times(bench: Bench, samples: int = 20) -> list[float]:
    times = []
    for _ in range(samples):
        torch.cuda.synchronize(bench.device)
        start = time.perf_counter_ns()
        pin.reset()
        times.append((time.perf_counter_ns() - start) / 1000)
    return times

"""The paper's prefetch variants at the parameters that suit the GPU at hand.

The artifact's parameters were chosen on an A100. A tuned variant is the fastest of its search
space (`design.search_space`: prefetch distance, registers per thread, how rows get into shared
memory) on the same tables and on row ids that are never measured. All that was tried is recorded.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from statistics import median
from typing import Any

import torch
from reprokit.records import RecordWriter
from reprokit.skip import cannot_run

from dlrm_inference.config import PINNING
from dlrm_inference.cuda import launch
from dlrm_inference.cuda.bench import Bench, make_variant, one_table, pinned, why_not
from dlrm_inference.cuda.design import TUNED, search_space
from dlrm_inference.cuda.scheme import Scheme
from dlrm_inference.cuda.tensors import INDEX_TYPES
from dlrm_inference.cuda.timing import interleave

SAMPLES, WARMUP = 24, 4  # launches of every point of a search space
_NOTE = "on row ids that are not measured"


def choose(bench: Bench, out: RecordWriter) -> dict[str, Any]:
    """Return the variants asked for that can run here, proved right; the others are skipped.

    Those to be tuned are tuned first. Leaves with exit code 77 when none is left.
    """
    config = bench.config
    chosen: dict[str, Any] = {}
    reason = ""
    for name in config.variants:
        variant = make_variant(name, config)
        reason = why_not(variant, bench)
        if reason:
            out.skip({"variant": name, "dataset": config.dataset}, reason)
            continue
        if name in TUNED:
            for mode in config.l2_modes if name in PINNING else ("",):
                bench.tuned[name, mode] = tune(bench, out, name, mode)
                bench.prove(name, bench.tuned[name, mode].forward)
            variant = next(point for key, point in bench.tuned.items() if key[0] == name)
        else:
            bench.prove(name, variant.forward)
        chosen[name] = variant
    if not chosen:
        cannot_run(f"no variant can run here: {reason}")
    return chosen


def tune(bench: Bench, out: RecordWriter, name: str, l2_mode: str = "") -> Scheme:
    """Return the fastest point of `name`'s search space, in an L2 mode if it pins.

    Writes `tuning_time` (us) of every point, and of the fastest `tuned_distance` (rows),
    `tuned_registers` and `tuned_warps_per_sm`. Raises WrongResult if one of them sums wrongly.
    """
    config, held_out = bench.config, bench.tuning()
    space = search_space(name, config.distances, config.warps)
    points = {key: Scheme(**vars(point)) for key, point in space.items()}
    compile_all(points.values(), bench.device, bench.offsets[0].dtype)
    with ExitStack() as stack:
        targets = {}
        for key, point in points.items():
            held_out.prove(key, point.forward)
            targets[key] = (
                stack.enter_context(pinned(held_out, point, l2_mode))
                if l2_mode
                else one_table(held_out, point)
            )
        times = interleave(targets, SAMPLES, WARMUP, bench.device)
    best = min(points, key=lambda key: median(times[key]))
    labels = {"variant": name, "dataset": config.dataset}
    labels |= {"l2_mode": l2_mode} if l2_mode else {}
    for key, point in points.items():
        facts = point.attributes(bench.device)
        tried = {
            "setting": key.split(",")[0],
            "distance": point.distance,
            "registers": facts.registers,
            "warps_per_sm": facts.warps_per_sm,
        }
        fate = "the fastest; " if key == best else ""  # no label: processes may choose differently
        note = f"{fate}{_NOTE}; {facts.spill_bytes} bytes spilled"
        out.write("tuning_time", "us", times[key], labels | tried, warmup=WARMUP, note=note)
        if key == best:
            note = f"the fastest of {len(points)} points: {key}"
            for metric, unit, value in (
                ("tuned_distance", "rows", point.distance),
                ("tuned_registers", "registers", facts.registers),
                ("tuned_warps_per_sm", "warps", facts.warps_per_sm),
            ):
                out.write(metric, unit, [value], labels, note=note)
    return points[best]


def compile_all(points: Iterable[Scheme], device: torch.device, index: torch.dtype) -> None:
    """Compile points side by side; the code is kept where `Scheme.kernel` finds it."""
    arch = launch.arch_of(device)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda point: point.build(arch, INDEX_TYPES[index]), points))

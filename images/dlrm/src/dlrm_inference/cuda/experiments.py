"""What is measured on a GPU, except the full model (model.py) and what needs none (static.py)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median
from typing import Any

import torch
from reprokit.progress import Progress
from reprokit.records import RecordWriter

from dlrm_inference.config import Config
from dlrm_inference.cuda import pin
from dlrm_inference.cuda.bench import Bench, all_tables, choose, make_variant, one_table, pinned
from dlrm_inference.cuda.scheme import Scheme
from dlrm_inference.cuda.tensors import UnsupportedError
from dlrm_inference.cuda.timing import Target, copy_bandwidth, empty_launch, interleave

PINNING = ("l2p", "rpf_l2p")
STATE = (
    "tables and batches rotate from launch to launch, variants in an order drawn anew each round; "
    "the L2 holds what launches on other tables left"
)
_EVENT_NOTE = "an event pair around a kernel that does nothing; not subtracted anywhere"


def embedding(config: Config, out: RecordWriter) -> None:
    """Write `kernel_time` (us per table) of every variant, one table a launch and, where a
    variant can, all tables in one; beside it the limit by the copy rate measured here.

    Variants run interleaved; pinning ones per L2 mode, those with a set-aside in rounds of their
    own, because a set-aside takes cache away from everybody. Pinning is outside `kernel_time`.
    """
    bench = Bench(config, out)
    variants = choose(bench, out)
    plain = {n: one_table(bench, v) for n, v in variants.items() if n not in PINNING}
    labels = {"dataset": config.dataset}
    pins = {n: v for n, v in variants.items() if n in PINNING}
    rounds = 1 + sum(mode != "hint" for mode in config.l2_modes if pins) + 1
    progress = Progress(rounds * (config.samples + config.warmup))
    if "one_table" in config.launches:
        _measure_one_table(bench, out, plain, pins, progress)
        for name, variant in variants.items():
            _write_attributes(bench, out, name, variant)
    if "all_tables" in config.launches:
        together = {n: t for n, v in variants.items() if (t := all_tables(bench, v))}
        for name, samples in _interleave(bench, together, progress).items():
            out.write(
                "kernel_time",
                "us",
                [sample / config.tables for sample in samples],
                {**labels, "variant": name, "launch": "all_tables"},
                warmup=config.warmup,
                note=f"all {config.tables} tables in one launch, time per table",
            )
    _write_limit(bench, out)
    bench.finish(out)


def sweep(config: Config, out: RecordWriter) -> None:
    """Write `kernel_time` (us) of RPF over prefetch distance and resident warps per SM."""
    bench = Bench(config, out)
    variant = make_variant("rpf", config)
    points: dict[str, tuple[dict[str, str], Scheme]] = {}
    for distance in config.distances:
        for warps in config.warps:
            labels = {
                "variant": "rpf",
                "dataset": config.dataset,
                "distance": str(distance),
                "warps_per_sm": str(warps),
            }
            try:
                point = variant.tuned(distance, 0, warps)
                bench.prove(f"rpf at distance {distance}", point.forward)
            except UnsupportedError as error:
                out.skip(labels, str(error))
                continue
            points[f"{distance}/{warps}"] = labels, point
    targets = {name: one_table(bench, point) for name, (_, point) in points.items()}
    progress = Progress(config.samples + config.warmup)
    for name, samples in _interleave(bench, targets, progress).items():
        labels, point = points[name]
        facts = point.attributes(bench.device)
        note = f"{facts.registers} registers, {facts.spill_bytes} bytes spilled"
        if str(facts.warps_per_sm) != labels["warps_per_sm"]:
            note += f"; in fact {facts.warps_per_sm} warps fit an SM"
        out.write("kernel_time", "us", samples, labels, warmup=config.warmup, note=note)
    bench.finish(out)


def pin_cost(config: Config, out: RecordWriter) -> None:
    """Write what pinning costs: `kernel_time` without it, `pin_and_kernel_time` with it in the
    same event pair, `pin_time` of it alone, `reset_time` (host) where lines are given up."""
    bench = Bench(config, out)
    variants = choose(bench, out)
    pins = {n: v for n, v in variants.items() if n in PINNING}
    plain = {n: one_table(bench, v) for n, v in variants.items() if n not in PINNING}
    progress = Progress((1 + len(config.l2_modes)) * (config.samples + config.warmup))
    for name, samples in _interleave(bench, plain, progress).items():
        labels = {"variant": name, "dataset": config.dataset}
        out.write("kernel_time", "us", samples, labels, warmup=config.warmup, note=STATE)
    for mode in config.l2_modes:
        _measure_mode(bench, out, pins, mode, progress)
    out.write(
        "pinned_rows", "rows", [bench.hot_count], {"dataset": config.dataset}, evidence="static"
    )
    bench.finish(out)


def _measure_one_table(
    bench: Bench,
    out: RecordWriter,
    plain: Mapping[str, Target],
    pins: Mapping[str, Any],
    progress: Progress,
) -> None:
    config = bench.config
    with ExitStack() as stack:
        targets = {(name, ""): target for name, target in plain.items()}
        if "hint" in config.l2_modes:  # no set-aside: it can stand among the others
            for name, variant in pins.items():
                targets[name, "hint"] = stack.enter_context(pinned(bench, variant, "hint"))
        targets["", "event"] = empty_launch(bench.device)
        _write_times(bench, out, targets, progress)
    for mode in config.l2_modes:
        if mode == "hint" or not pins:
            continue
        with ExitStack() as stack:
            _write_times(
                bench,
                out,
                {(n, mode): stack.enter_context(pinned(bench, v, mode)) for n, v in pins.items()},
                progress,
            )


def _write_times(
    bench: Bench,
    out: RecordWriter,
    targets: Mapping[tuple[str, str], Target],
    progress: Progress,
) -> None:
    config = bench.config
    keyed = {"/".join(key): target for key, target in targets.items()}
    times = _interleave(bench, keyed, progress)
    for name, mode in targets:
        samples = times[f"{name}/{mode}"]
        labels = {"dataset": config.dataset}
        if not name:
            out.write("event_overhead", "us", samples, labels, note=_EVENT_NOTE)
            continue
        labels |= {"variant": name, "launch": "one_table"}
        note = STATE
        if mode:
            labels["l2_mode"] = mode
            note += f"; {bench.hot_count} rows pinned, the cost of pinning left out"
        out.write("kernel_time", "us", samples, labels, warmup=config.warmup, note=note)


def _measure_mode(
    bench: Bench, out: RecordWriter, pins: Mapping[str, Any], mode: str, progress: Progress
) -> None:
    config = bench.config
    with ExitStack() as stack:
        targets: dict[str, Target] = {}
        for name, variant in pins.items():
            target = stack.enter_context(pinned(bench, variant, mode))
            targets[f"{name}/kernel_time"] = target
            if target.before:
                both = [_in_turn(a, b) for a, b in zip(target.before, target.calls, strict=True)]
                targets[f"{name}/pin_and_kernel_time"] = Target(calls=both, outside=target.outside)
                alone = Target(calls=target.before, outside=target.outside)
                targets[f"{name}/pin_time"] = alone
        for key, samples in _interleave(bench, targets, progress).items():
            name, _, metric = key.partition("/")
            labels = {"variant": name, "dataset": config.dataset, "l2_mode": mode}
            out.write(metric, "us", samples, labels, warmup=config.warmup)
        if mode == "setaside_reset":
            labels = {"dataset": config.dataset, "l2_mode": mode}
            note = "host call, between tables, in no other time"
            out.write("reset_time", "us", _reset_times(bench), labels, note=note)


def _in_turn(first: Any, second: Any) -> Any:
    def call() -> None:
        first()
        second()

    return call


def _reset_times(bench: Bench, samples: int = 20) -> list[float]:
    times = []
    for _ in range(samples):
        torch.cuda.synchronize(bench.device)
        start = time.perf_counter_ns()
        pin.reset()
        times.append((time.perf_counter_ns() - start) / 1000)
    return times


def _interleave(
    bench: Bench, targets: Mapping[str, Target], progress: Progress
) -> dict[str, list[float]]:
    if not targets:
        return {}
    config = bench.config
    return interleave(
        targets,
        config.samples,
        config.warmup,
        bench.device,
        on_round=lambda _: progress.step(f"{config.experiment} rounds"),
    )


def _write_attributes(bench: Bench, out: RecordWriter, name: str, variant: Any) -> None:
    """Registers and occupancy of the kernel that was timed, as the driver reports them."""
    if not hasattr(variant, "attributes"):
        return
    facts = variant.attributes(bench.device)
    if isinstance(facts, Mapping):
        registers, blocks = facts["registers"], facts["blocks_per_sm"]
        warps, local, spilled = blocks * 8, facts["local_bytes"], 0
    else:
        registers, warps = facts.registers, facts.warps_per_sm
        local, spilled = facts.local_bytes, facts.spill_bytes
    labels = {"variant": name, "dataset": bench.config.dataset}
    for metric, unit, value in (
        ("kernel_registers", "registers", registers),
        ("kernel_warps_per_sm", "warps", warps),
        ("kernel_local_bytes", "bytes", local),
        ("kernel_spill_bytes", "bytes", spilled),
    ):
        out.write(metric, unit, [value], labels, evidence="static", note="as the driver reports")


def _write_limit(bench: Bench, out: RecordWriter) -> None:
    """`limit_time`: unique rows, indices and output once each, at the copy rate measured here."""
    config = bench.config
    labels = {"dataset": config.dataset}
    measured = copy_bandwidth(bench.device)
    for method, kept in measured.items():
        note = "bytes read plus bytes written"
        out.write("copy_bandwidth", "GB/s", kept, {**labels, "method": method}, note=note)
    rates = max(measured.values(), key=median)
    index_bytes = config.draws * bench.offsets.element_size()
    out_bytes = config.batch * config.row_bytes
    unique = [
        bench.batches.unique_rows(table, batch)
        for table in range(config.tables)
        for batch in range(config.batches)
    ]
    total = median(unique) * config.row_bytes + index_bytes + out_bytes
    note = "bytes that must move at least, each counted once, at the faster measured copy rate"
    out.write(
        "limit_time",
        "us",
        [total / rate / 1000 for rate in rates],
        labels,
        evidence="scaled",
        note=note,
    )

"""The embedding stage on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median
from typing import Any

from reprokit.progress import Progress
from reprokit.records import RecordWriter

from dlrm_inference.config import PINNING, Config
from dlrm_inference.cuda.bench import Bench, all_tables, one_table, pinned, why_not_together
from dlrm_inference.cuda.best import Best
from dlrm_inference.cuda.fbgemm import Fbgemm
from dlrm_inference.cuda.rounds import STATE, in_rounds, with_pin
from dlrm_inference.cuda.timing import Target, copy_bandwidth, empty_launch
from dlrm_inference.cuda.tuning import choose
from dlrm_inference.describe import compulsory_bytes

_Key = tuple[str, str, str]  # variant, L2 mode, metric
_EVENT_NOTE = "an event pair around a kernel that does nothing; not subtracted anywhere"


def embedding(config: Config, out: RecordWriter) -> None:
    """Write `kernel_time` (us per table) of every variant, one table a launch and, where a
    variant can, all tables in one; beside it the limit by the copy rate measured here.

    Variants run interleaved; pinning ones per L2 mode, those with a set-aside in rounds of their
    own, because a set-aside takes cache away from everybody. Pinning is outside `kernel_time` and
    inside `pin_and_kernel_time`.
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
        together = {}
        for name, variant in variants.items():
            if not isinstance(variant, Best | Fbgemm):
                continue  # it has no such launch
            if reason := why_not_together(variant, bench):
                out.skip({**labels, "variant": name, "launch": "all_tables"}, reason)
            else:
                together[name] = all_tables(bench, variant)
        for name, samples in in_rounds(bench, together, progress).items():
            out.write(
                "kernel_time",
                "us",
                [sample / config.tables for sample in samples],
                {**labels, "variant": name, "launch": "all_tables"},
                warmup=config.warmup,
                note=f"all {config.tables} tables in one launch, time per table",
            )
    _write_limit(bench, out)
    bench.finish()


def _measure_one_table(
    bench: Bench,
    out: RecordWriter,
    plain: Mapping[str, Target],
    pins: Mapping[str, Any],
    progress: Progress,
) -> None:
    targets: dict[_Key, Target] = {(name, "", "kernel_time"): one for name, one in plain.items()}
    targets["", "", "event_overhead"] = empty_launch(bench.device)
    modes = bench.config.l2_modes if pins else ()
    with ExitStack() as stack:
        if "hint" in modes:  # no set-aside: it can stand among the others
            targets |= _pinned_targets(bench, pins, "hint", stack)
        _write_times(bench, out, targets, progress)
    for mode in modes:
        if mode != "hint":
            with ExitStack() as stack:
                _write_times(bench, out, _pinned_targets(bench, pins, mode, stack), progress)


def _pinned_targets(
    bench: Bench, pins: Mapping[str, Any], mode: str, stack: ExitStack
) -> dict[_Key, Target]:
    """Every pinning variant in an L2 mode twice: the pin ahead of the event pair, and inside."""
    targets: dict[_Key, Target] = {}
    for name, variant in pins.items():
        target = stack.enter_context(pinned(bench, variant, mode))
        targets[name, mode, "kernel_time"] = target
        if (both := with_pin(target)) is not None:
            targets[name, mode, "pin_and_kernel_time"] = both
    return targets


def _write_times(
    bench: Bench, out: RecordWriter, targets: Mapping[_Key, Target], progress: Progress
) -> None:
    config = bench.config
    times = in_rounds(bench, {"/".join(key): one for key, one in targets.items()}, progress)
    for name, mode, metric in targets:
        samples = times[f"{name}/{mode}/{metric}"]
        labels = {"dataset": config.dataset}
        if not name:
            out.write(metric, "us", samples, labels, note=_EVENT_NOTE)
            continue
        labels |= {"variant": name, "launch": "one_table"}
        note = STATE
        if mode:
            labels["l2_mode"] = mode
            counted = "left out" if metric == "kernel_time" else "counted in"
            note += f"; {bench.hot_count} rows pinned, the cost of pinning {counted}"
        out.write(metric, "us", samples, labels, warmup=config.warmup, note=note)


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
    total = median(compulsory_bytes(config, bench.batches, *one) for one in bench.sets)
    note = "bytes that must move at least, each counted once, at the faster measured copy rate"
    out.write(
        "limit_time",
        "us",
        [total / rate / 1000 for rate in rates],
        labels,
        evidence="scaled",
        note=note,
    )

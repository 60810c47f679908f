"""The embedding stage on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median
from typing import Any

from reprokit.progress import Progress
from reprokit.records import RecordWriter

from dlrm_inference.config import Config
from dlrm_inference.cuda.bench import Bench, all_tables, choose, one_table, pinned
from dlrm_inference.cuda.rounds import PINNING, STATE, in_rounds
from dlrm_inference.cuda.timing import Target, copy_bandwidth, empty_launch

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
    times = in_rounds(bench, keyed, progress)
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

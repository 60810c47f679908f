"""What it costs that ids out of range are never summed in silence (cuda/report.py)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from reprokit import timing
from reprokit.progress import Progress
from reprokit.records import RecordWriter

from dlrm_inference.config import Config
from dlrm_inference.cuda.bench import Bench, one_table
from dlrm_inference.cuda.best import Best
from dlrm_inference.cuda.override import embedding_bag_variant
from dlrm_inference.cuda.rounds import in_rounds

_KERNEL = "one launch; without: compiled with ids taken as they are"
_BLOCK = "host time of a block of one call, to its end on the device; without: waited for by hand"


def run(config: Config, out: RecordWriter) -> None:
    """Write `check_time` (us): of the kernel `best` and of a block of `embedding_bag_variant`,
    each with and without the look at ids out of range."""
    bench = Bench(config, out)
    kernels = {"with": Best(), "without": Best().reshaped(check=0)}
    for name, kernel in kernels.items():
        bench.prove(f"best {name} its look", kernel.forward)
    targets = {name: one_table(bench, kernel) for name, kernel in kernels.items()}
    progress = Progress(2 * (config.samples + config.warmup))
    found = {("kernel", name): kept for name, kept in in_rounds(bench, targets, progress).items()}
    blocks = {("block", name): _block(bench, name == "with") for name in kernels}
    found |= timing.interleave(
        blocks, config.samples, config.warmup, lambda _: progress.step("check_cost rounds")
    )
    for (part, look), samples in found.items():
        labels = {"variant": "best", "dataset": config.dataset, "part": part, "look": look}
        note = _KERNEL if part == "kernel" else _BLOCK
        out.write("check_time", "us", samples, labels, warmup=config.warmup, note=note)
    bench.finish()


def _block(bench: Bench, check: bool) -> Callable[[int], float]:
    def call(number: int) -> float:
        table, batch = bench.sets[number % len(bench.sets)]
        weight, ids, offsets = bench.arguments(table, batch)

        def block() -> None:
            with torch.no_grad(), embedding_bag_variant("best", check=check):
                torch.nn.functional.embedding_bag(
                    ids, weight, offsets, mode="sum", include_last_offset=True
                )
            if not check:
                torch.cuda.synchronize(bench.device)

        torch.cuda.synchronize(bench.device)
        return timing.microseconds(block)

    return call

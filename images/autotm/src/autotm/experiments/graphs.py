"""Footprints and kernels of all networks, and what memory costs at every ratio: arithmetic."""

from __future__ import annotations

from reprokit.progress import Progress
from reprokit.records import RecordWriter

from autotm.config import RATIOS, Config
from autotm.networks.catalogue import CONVENTIONAL, GPU, LARGE, build, footprint

DRAM_PRICE = 2.1  # of a GB, over that of persistent memory


def memory_cost(share: float) -> float:
    """Cost of memory of which `share` is DRAM, over the same amount all in DRAM."""
    return ((1 - share) / DRAM_PRICE + share) if share < 1 else 1.0


def run(config: Config, out: RecordWriter) -> None:
    """Records of every network of the evaluation, and of every ratio."""
    names = dict.fromkeys(("vgg19_16", *CONVENTIONAL, *LARGE, *GPU))
    progress = Progress(len(names))
    for name in names:
        graph = build(name)
        found = footprint(graph)
        labels = {"network": name}
        out.write("footprint", "GB", [found.pool / 1e9], labels, "static")
        out.write("fixed_bytes", "GB", [found.fixed / 1e9], labels, "static")
        out.write("kernels", "1", [len(graph.ops)], labels, "static")
        progress.step(name)
    for ratio, share in RATIOS.items():
        out.write("memory_cost", "1", [memory_cost(share)], {"ratio": ratio}, "static")

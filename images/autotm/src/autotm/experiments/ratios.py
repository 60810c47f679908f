"""Figures 7 and 9: an iteration of a network at ratios of slow to fast memory, by policy."""

from __future__ import annotations

from reprokit.progress import Progress
from reprokit.records import RecordWriter

from autotm.config import RATIOS, Config
from autotm.experiments.hosts import iteration
from autotm.networks.catalogue import build, footprint
from autotm.sim.tiers import timed_on_host

WHOLE = ("DRAM", "PMM")  # all of it in one tier, whatever the ratio


def run(config: Config, out: RecordWriter) -> None:
    """Every variant at every ratio and pair of slow rates.

    The rates stand in the label `slow`, as r<read>w<write> in GB/s.
    """
    network = build(config.network)
    pool = footprint(network).pool
    progress = Progress(len(config.hosts) * len(config.ratios) * len(config.variants))
    for host in config.hosts:
        graph = timed_on_host(network, host)
        slow = f"r{host.slow_read / 1e9:g}w{host.slow_write / 1e9:g}"
        for ratio in config.ratios:
            for variant in config.variants:
                if variant not in WHOLE or ratio == config.ratios[0]:
                    labels = {"slow": slow, "ratio": "any" if variant in WHOLE else ratio}
                    share = RATIOS[ratio]
                    room = int(share * pool)
                    iteration(config, out, graph, host, variant, room, labels, share)
                progress.step(f"{slow} {ratio} {variant}")

"""Figure 8: networks of about 650 GB, against DRAM as a hardware cache of slow memory."""

from __future__ import annotations

from reprokit.progress import Progress
from reprokit.records import RecordWriter

from autotm.config import Config
from autotm.experiments.hosts import iteration
from autotm.networks.catalogue import build, footprint
from autotm.sim.baselines import cached
from autotm.sim.tiers import timed_on_host

CACHE = 192 * 10**9


def run(config: Config, out: RecordWriter) -> None:
    """Both formulations at the limit; the cache once for each pair of rates of its misses.

    Those stand in the label `miss`, as r<read>w<write> in GB/s.
    """
    host = config.hosts[0]
    graph = timed_on_host(build(config.network), host)
    room = int(config.fast_gb * 1e9) - footprint(graph).fixed
    progress = Progress(len(config.variants) - 1 + len(config.miss_read))
    for variant in config.variants:
        if variant != "MemoryMode":
            iteration(config, out, graph, host, variant, room, {})
            progress.step(variant)
            continue
        for read, write in zip(config.miss_read, config.miss_write, strict=True):
            found = cached(graph, host, CACHE, miss_read=read * 1e9, miss_write=write * 1e9)
            labels = {"variant": variant, "miss": f"r{read:g}w{write:g}"}
            out.write("iteration_time", "s", [found.seconds], labels, "simulated")
            out.write("slow_read", "GB", [found.read / 1e9], labels, "simulated")
            out.write("slow_written", "GB", [found.written / 1e9], labels, "simulated")
            progress.step(f"{variant} {read:g}/{write:g}")

"""Figure 10: slowdown, operands in DRAM and bytes moved, from no DRAM to as much as is needed."""

from __future__ import annotations

from reprokit.progress import Progress
from reprokit.records import RecordWriter

from autotm.config import Config
from autotm.experiments.hosts import iteration
from autotm.networks.catalogue import build, footprint
from autotm.sim.tiers import timed_on_host


def run(config: Config, out: RecordWriter) -> None:
    """Every variant at every limit; `dram` is the limit plus what is always in DRAM, in GB."""
    host = config.hosts[0]
    graph = timed_on_host(build(config.network), host)
    found = footprint(graph)
    iteration(config, out, graph, host, "DRAM", found.pool, {"limit": "1", "dram": "all"})
    progress = Progress(len(config.limits) * len(config.variants))
    for limit in config.limits:
        room = int(limit * found.pool)
        labels = {"limit": f"{limit:.4g}", "dram": f"{(room + found.fixed) / 1e9:.2f}"}
        for variant in config.variants:
            iteration(config, out, graph, host, variant, room, labels)
            progress.step(f"{limit:.3g} {variant}")

"""Figure 13: which 2 MiB blocks of memory are accessed when, over one iteration."""

from __future__ import annotations

import numpy as np
from reprokit.progress import Progress
from reprokit.records import RecordWriter
from reprokit.skip import cannot_run

from pasta_workloads.collector import require_collector, require_gpus, run_traced, target
from pasta_workloads.config import Config
from pasta_workloads.errors import RunFailed
from pasta_workloads.mapping import Heat, heat_of

CELLS = 24  # of the heat map in the records, each way
ALWAYS, SELDOM = 0.9, 0.1


def run(config: Config, out: RecordWriter) -> None:
    """Windows of as many million accesses as keep them at 4,096; untouched blocks have no row."""
    if config.device == "cpu":
        cannot_run("hotness counts accesses of GPU kernels and needs a GPU; fix: --device cuda")
    require_gpus()
    require_collector()
    progress = Progress(1)
    folder = out.out_dir / "traces" / f"{config.model}-{config.mode}"
    command = target(config, config.mode, iterations=1)
    run_traced("hotness", folder, command, {"by": "accesses"}, config.patience)
    labels = {"model": config.model, "mode": config.mode}
    write_heat(heat_of(folder), labels, out)
    progress.step(f"{config.model} {config.mode}")


def write_heat(heat: Heat, labels: dict[str, str], out: RecordWriter) -> None:
    """Blocks, windows, the shares that Figure 13 shows, and sums over a grid of at most 24 x 24."""
    counts = heat.counts[heat.counts.sum(axis=1) > 0]
    if not counts.size:
        raise RunFailed("no access was counted: did the collector reach the GPU?")
    blocks, windows = counts.shape
    note = f"a window is {heat.window} accesses; block is address >> 21"
    out.write("hot_windows", "windows", [windows], labels, note=note)
    out.write("hot_blocks", "blocks", [blocks], labels, note=note)
    active = (counts > 0).mean(axis=1)
    shares = {"always": active >= ALWAYS, "burst": active <= SELDOM}
    for name, mask in shares.items():
        out.write("block_share", "%", [100 * float(mask.mean())], labels | {"activity": name})
    for y, rows in enumerate(np.array_split(np.arange(blocks), min(CELLS, blocks))):
        for x, columns in enumerate(np.array_split(np.arange(windows), min(CELLS, windows))):
            total = float(counts[np.ix_(rows, columns)].sum())
            where = labels | {"window": str(x), "block": str(y)}
            out.write("accesses", "accesses", [total], where)

"""Figure 7 and Table V: every launch of an iteration, and the memory that it touches."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
from reprokit.progress import Progress
from reprokit.records import RecordWriter

from pasta_workloads.collector import require_collector, require_gpus, run_traced, target
from pasta_workloads.config import Config
from pasta_workloads.errors import RunFailed
from pasta_workloads.experiments.oracle import write_oracle
from pasta_workloads.mapping import (
    Launch,
    check_followed,
    launches_of,
    own_memory,
    region_launches,
)
from pasta_workloads.memory import OperatorBytes
from pasta_workloads.models.sizes import PUBLISHED
from pasta_workloads.oracle.statistics import MIB, STATS, statistics
from pasta_workloads.turns import write_turns
from pasta_workloads.workload import build

ATTENTION = "fmha_cutlass"  # in the names of PyTorch's memory-efficient attention


def run(config: Config, out: RecordWriter) -> None:
    """One row for each mode of --modes; on a CPU the argument-based bound alone."""
    if config.device == "cpu":
        for mode in config.modes:
            _bounds(config, mode, out)
        return
    require_gpus()
    require_collector()
    progress = Progress(len(config.modes) * config.repeats)
    for mode in config.modes:
        runs, own, without = [], [], []
        for repeat in range(config.repeats):
            folder = out.out_dir / "traces" / f"{config.model}-{mode}-{repeat}"
            launches = traced_launches(config, mode, folder)
            if config.model == PUBLISHED:
                other = folder.with_name(f"{folder.name}-global")
                seen = traced_launches(config, mode, other, classes="global")
                launches = attention_of(seen, launches)
            runs.append(launches)
            own.append(own_memory(folder) / MIB)
            without.append(region_launches(folder)[0] - len(launches))
            progress.step(f"{config.model} {mode}: {len(runs[-1])} launches")
        labels = {"model": config.model, "mode": mode}
        if config.scale != "full":
            labels["size"] = config.scale
        write_row(runs, labels, out)
        write_maps(runs, without, labels, out)
        write_turns(out, "profiling_memory", "MiB", own, labels, note="on the GPU")
        write_oracle(config.model, mode, config.scale, out, labels)


def traced_launches(
    config: Config, mode: str, folder: Path, *, classes: str = ""
) -> list[Launch]:  # fmt: skip
    """Run one mode once under the GPU-resident working-set analysis. Raises RunFailed.

    `classes` are the accesses that are patched; empty: all that the analysis knows.
    """
    command = target(config, mode, iterations=1)
    settings = {"variant": "gpu"} | ({"classes": classes} if classes else {})
    run_traced("working_set", folder, command, settings, config.patience)
    check_followed(folder)
    return launches_of(folder)


def attention_of(seen: list[Launch], whole: list[Launch]) -> list[Launch]:
    """The launches of `whole`, those of the fused attention as in `seen`.

    The paper's tool patches no asynchronous copies, by which this kernel reads. So do cuBLAS's on
    this GPU, and not on the paper's: they stay whole. Raises RunFailed where the runs differ.
    """
    if [one.short for one in seen] != [one.short for one in whole]:
        raise RunFailed("two runs of one model launched different kernels: nothing to join them by")
    return [part if ATTENTION in part.short else one for part, one in zip(seen, whole, strict=True)]


def write_row(runs: list[list[Launch]], labels: dict[str, str], out: RecordWriter) -> None:
    """The records of one row, one of each run. MiB."""
    write_turns(out, "kernels", "launches", [len(run) for run in runs], labels)
    footprints = [[launch.footprint / MIB for launch in run] for run in runs]
    write_turns(
        out, "footprint", "MiB", [float(np.mean(values)) for values in footprints], labels,
        note="the mean over launches of what the driver had allocated",
    )  # fmt: skip
    write_turns(out, "footprint_max", "MiB", [max(values) for values in footprints], labels)
    levels = {
        "working_set": [[launch.ws / MIB for launch in run] for run in runs],
        "working_set_object": [[launch.ws_object / MIB for launch in run] for run in runs],
    }
    for metric, sizes in levels.items():
        found = [statistics(values) for values in sizes]
        for stat in STATS:
            note = _behind(runs[0], sizes[0], found[0][stat]) if stat != "mean" else None
            samples = [one[stat] for one in found]
            write_turns(out, metric, "MiB", samples, labels | {"stat": stat}, note=note)
    _write_names(runs, labels, out)


def write_maps(
    runs: list[list[Launch]], without: list[int], labels: dict[str, str], out: RecordWriter
) -> None:  # fmt: skip
    """Launches that got tensor maps, and those of which less is known than they touched.

    `without` says of each run how many launches have no row, since nothing is known of them.
    """
    write_turns(
        out, "tensor_map_launches", "launches", [sum(one.described for one in run) for run in runs],
        labels, note="taken to touch the tensors that their maps (TMA) name",
    )  # fmt: skip
    partly = [sum(one.unseen for one in run) for run in runs]
    unseen = [some + none for some, none in zip(partly, without, strict=True)]
    write_turns(out, "not_seen", "launches", unseen, labels, note="copies by unknown tensor maps")


def _write_names(runs: list[list[Launch]], labels: dict[str, str], out: RecordWriter) -> None:
    """Figure 7: launches by short name. A name that a run lacks counts 0 there."""
    counts = [Counter(launch.short for launch in run) for run in runs]
    names: defaultdict[str, int] = defaultdict(int)
    for count in counts:
        for name, number in count.items():
            names[name] += number
    for name in sorted(names, key=lambda name: (-names[name], name)):
        samples = [count[name] for count in counts]
        write_turns(out, "kernel_launches", "launches", samples, labels | {"kernel": name})
    shares = [
        100 * sum(number for _, number in count.most_common(5)) / count.total() for count in counts
    ]
    write_turns(out, "top5_share", "%", shares, labels)
    im2col = [sum(n for name, n in count.items() if "im2col" in name) for count in counts]
    write_turns(out, "im2col", "launches", im2col, labels)


def _behind(run: list[Launch], sizes: list[float], value: float) -> str:
    """The first launch of the first run that has, or is nearest to, a statistic."""
    number = int(np.argmin(np.abs(np.asarray(sizes) - value)))
    return f"{run[number].short}, launch {number + 1} of {len(run)}"


def _bounds(config: Config, mode: str, out: RecordWriter) -> None:
    """The argument-based upper bound, from one iteration on the CPU."""
    workload = build(config.model, mode, config.scale, "cpu", config.seed)
    with OperatorBytes() as recorder:
        workload.iteration()
    labels = {"model": config.model, "mode": mode, "size": config.scale, "device": "cpu"}
    out.write("operators", "operators", [len(recorder.sizes)], labels)
    found = statistics([size / MIB for size in recorder.sizes])
    for stat in STATS:
        out.write(
            "working_set_bound", "MiB", [found[stat]], labels | {"stat": stat},
            note="operators' arguments and results, on a CPU",
        )  # fmt: skip

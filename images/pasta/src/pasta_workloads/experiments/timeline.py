"""Figure 14: what is allocated over one iteration of GPT-2's training (or of another model)."""

from __future__ import annotations

from reprokit.progress import Progress
from reprokit.records import RecordWriter

from pasta_workloads.collector import require_collector, require_gpus, run_traced, target
from pasta_workloads.config import Config
from pasta_workloads.lines import write_timeline
from pasta_workloads.mapping import timelines_of
from pasta_workloads.memory import TensorTimeline
from pasta_workloads.workload import build


def run(config: Config, out: RecordWriter) -> None:
    """On a GPU the framework's blocks (tensor) and the driver's (object); on a CPU storages."""
    labels = {"model": config.model, "mode": config.mode}
    progress = Progress(1)
    if config.device == "cpu":
        labels |= {"level": "tensor", "size": config.scale, "device": "cpu"}
        own = cpu_timeline(config)
        write_timeline(own.changes, own.allocated, labels, out)
    else:
        require_gpus()
        require_collector(patches=False)
        folder = out.out_dir / "traces" / f"{config.model}-{config.mode}"
        command = target(config, config.mode, iterations=1)
        # No region: the figure begins with the first tensor of the process.
        run_traced("memory_timeline", folder, command, {}, config.patience, region="")
        for (device, level), line in timelines_of(folder).items():
            where = labels | {"level": level, "device": device}
            write_timeline(line.changes, line.allocated, where, out)
    progress.step(f"{config.model} {config.mode}")


def cpu_timeline(config: Config) -> TensorTimeline:
    """One iteration on the CPU, weights and batch first."""
    workload = build(config.model, config.mode, config.scale, "cpu", config.seed)
    known = [*workload.model.parameters(), *workload.model.buffers(), *workload.batch]
    with TensorTimeline(known) as timeline:
        workload.iteration()
    return timeline

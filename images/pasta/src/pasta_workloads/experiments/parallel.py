"""Figure 15: memory of two GPUs under data, tensor and pipeline parallelism."""

from __future__ import annotations

import sys

from reprokit.progress import Progress
from reprokit.records import RecordWriter

from pasta_workloads.collector import require_collector, require_gpus, run_traced
from pasta_workloads.config import Config
from pasta_workloads.errors import RunFailed
from pasta_workloads.lines import write_timeline
from pasta_workloads.mapping import timelines_of
from pasta_workloads.parallel.ranks import Found, Job, read_ranks, run_ranks

RANKS = 2


def run(config: Config, out: RecordWriter) -> None:
    """One kind of parallelism. On GPUs the timelines are the collector's, on a CPU our own."""
    labels = {"parallelism": config.parallelism}
    progress = Progress(1)
    folder = out.out_dir / "ranks"
    if config.device == "cpu":
        where = labels | {"size": config.scale, "level": "tensor"}
        job = Job(
            kind=config.parallelism, size=config.scale, device="cpu", folder=folder, ranks=RANKS,
            iterations=config.iterations, seed=config.seed,
        )  # fmt: skip
        try:
            found = run_ranks(job)
        except ChildProcessError as error:
            raise RunFailed(str(error)) from error
        for rank in found:
            place = where | {"device": str(rank.rank)}
            write_timeline(rank.changes, rank.allocated, place, out)
    else:
        require_gpus(RANKS)
        require_collector(patches=False)
        where = labels
        traces = out.out_dir / "traces" / config.parallelism
        command = [
            sys.executable, "-m", "pasta_workloads", "ranks", "--device", "cuda",
            "--parallelism", config.parallelism, "--size", config.scale,
            "--iterations", str(config.iterations), "--seed", str(config.seed),
            "--out", str(folder),
        ]  # fmt: skip
        run_traced("memory_timeline", traces, command, {}, config.patience, region="")
        lines = timelines_of(traces)
        if len({device for device, level in lines if level == "tensor"}) != RANKS:
            raise RunFailed(f"the collector saw tensors of {len(lines)} lines, expected 2 GPUs")
        for (device, level), line in lines.items():
            place = where | {"device": device, "level": level}
            write_timeline(line.changes, line.allocated, place, out)
        found = read_ranks(folder, RANKS)
    _write_ranks(found, where, out)
    progress.step(config.parallelism)


def _write_ranks(found: list[Found], labels: dict[str, str], out: RecordWriter) -> None:
    """What the ranks say of themselves: the loss, and their allocator's own peak."""
    for rank in found:
        where = labels | {"rank": str(rank.rank)}
        out.write("loss", "nats", rank.losses, where)
        out.write("peak_of_rank", "MiB", [rank.peak / 2**20], where)

"""Starts the ranks of one parallel step as processes, and collects what they found.

Each rank leaves `rank-N.json` in a folder: its loss, its peak, and on a CPU its memory timeline. On
GPUs the timelines come from the collector, which follows the ranks' processes.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

from pasta_workloads.memory import TensorTimeline
from pasta_workloads.parallel.sizes import SIZES
from pasta_workloads.parallel.step import make_rank
from pasta_workloads.pinned import pin_torch
from pasta_workloads.target import REGION, region, wait

_THREADS = 1  # of a rank on a CPU


@dataclass(frozen=True)
class Found:
    """What one rank found. Bytes; `changes` is empty on a GPU."""

    rank: int
    losses: list[float]
    peak: int
    changes: list[int] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One parallel run: `kind` of dp, tp, pp or one (then a single rank), `folder` for results."""

    kind: str
    size: str
    device: str
    folder: Path
    ranks: int = 2
    iterations: int = 1
    seed: int = 100
    keep_weights: bool = False


def run_ranks(job: Job) -> list[Found]:
    """Run the job and return every rank's findings. Raises ChildProcessError when a rank fails."""
    job.folder.mkdir(parents=True, exist_ok=True)
    meeting = (job.folder / "meeting").resolve()  # of a relative one PyTorch takes the last part
    meeting.unlink(missing_ok=True)
    try:
        spawn(_rank, args=(job, str(meeting)), nprocs=job.ranks, join=True)
    except ProcessRaisedException as error:
        last = str(error).strip().splitlines()[-1]
        raise ChildProcessError(f"a rank of {job.kind} failed: {last}") from error
    except ProcessExitedException as error:
        raise ChildProcessError(f"a rank of {job.kind} was ended: {error}") from error
    return read_ranks(job.folder, job.ranks)


def read_ranks(folder: Path, ranks: int) -> list[Found]:
    """Read what the ranks left. Raises FileNotFoundError where one left nothing."""
    texts = [(folder / f"rank-{number}.json").read_text() for number in range(ranks)]
    return [Found(**json.loads(text)) for text in texts]


def _rank(number: int, job: Job, meeting: str) -> None:
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(job.ranks)}
    pin_torch()
    device = "cpu"
    if job.device == "cuda":
        device = f"cuda:{number}"
        torch.cuda.set_device(number)
    else:
        torch.set_num_threads(_THREADS)
    torch.manual_seed(job.seed + (number if job.kind == "dp" else 0))  # dropout
    dist.init_process_group(
        "nccl" if job.device == "cuda" else "gloo", init_method=f"file://{meeting}",
        rank=number, world_size=job.ranks,
        device_id=torch.device(device) if job.device == "cuda" else None,
    )  # fmt: skip
    try:
        found = _train(number, job, device)
    finally:
        dist.destroy_process_group()
    (job.folder / f"rank-{number}.json").write_text(json.dumps(asdict(found)))
    if job.device == "cpu":
        # Gloo's threads may still hold Python objects, and taking the interpreter's lock while it
        # ends aborts the process (PyTorch, pull request 179291). All that was found is on the disk.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _train(number: int, job: Job, device: str) -> Found:
    rank = make_rank(job.kind, number, job.ranks, SIZES[job.size], device, job.seed)
    losses = []
    timeline = None
    if job.device == "cpu":
        timeline = TensorTimeline([*rank.stage.parameters(), *rank.optimizer.masters])
        timeline.__enter__()
    for index in range(job.iterations):
        with region(REGION):
            losses.append(rank.iteration(job.seed + 1 + index))
            wait(job.device)
    if timeline is not None:
        timeline.__exit__(None, None, None)
    if job.keep_weights:
        state = {name: tensor.cpu() for name, tensor in rank.stage.state_dict().items()}
        torch.save(state, job.folder / f"rank-{number}.pt")
    if timeline is None:
        return Found(number, losses, torch.cuda.max_memory_allocated())
    changes = list(timeline.changes)  # as of now: more is let go of meanwhile
    allocated = list(accumulate(changes))
    return Found(number, losses, max(allocated), changes, allocated)

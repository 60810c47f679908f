"""Ranks as processes: what each returns, or the test fails with its traceback."""

from __future__ import annotations

import multiprocessing
import queue
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
Work = Callable[..., Any]  # work(rank, world, *given), at the top of a module


def run_ranks(
    work: Work, world: int, folder: Path, *given: Any, backend: str | None = "gloo"
) -> list:
    """The results of all ranks, by rank; they share a process group unless `backend` is None.

    Results must not hold tensors: their memory would end with the process.
    """
    # Forked from a process that has PyTorch loaded and nothing else done, so it is loaded once.
    context = multiprocessing.get_context("forkserver" if backend != "nccl" else "spawn")
    context.set_forkserver_preload(["torch", "torch.distributed"])
    said = context.Queue()
    meeting = f"file://{folder}/meeting"
    ranks = [
        context.Process(target=_one, args=(work, rank, world, backend, meeting, said, given))
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    found: dict[int, Any] = {}
    try:
        for _ in ranks:
            rank, result, error = said.get(timeout=110)
            assert not error, f"rank {rank}: {error}"
            found[rank] = result
    except queue.Empty:
        pytest.fail(f"no answer; exit codes {[process.exitcode for process in ranks]}")
    finally:
        for process in ranks:
            process.join(timeout=20 if len(found) == world else 0)
            process.kill()
            process.join()
    return [found[rank] for rank in range(world)]


def _one(work: Work, rank: int, world: int, backend: str | None, meeting: str, said, given) -> None:  # type: ignore[no-untyped-def]
    try:
        torch.set_num_threads(1)
        if backend:
            dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=world)
        said.put((rank, work(rank, world, *given), ""))
        if backend:
            dist.destroy_process_group()
    except BaseException:
        said.put((rank, None, traceback.format_exc()))
        raise

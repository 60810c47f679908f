"""How a process takes its place: its device, and its communicators with the other ranks."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from rap_training.config import Config
from rap_training.train.collectives import Collectives


def device_of(config: Config, rank: int) -> torch.device:
    """The device of a rank, made current."""
    if config.device == "cpu":
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // config.gpus))
        return torch.device("cpu")
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    return device


def join(config: Config, rank: int, device: torch.device) -> tuple[Collectives, Collectives]:
    """Two communicators: one for training, one for what runs beside it."""
    if config.gpus == 1:
        alone = Collectives(rank=0, world=1)
        return alone, alone
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo", init_method=f"file://{os.environ['RAP_RENDEZVOUS']}",
        rank=rank, world_size=config.gpus,
        timeout=timedelta(seconds=config.patience), device_id=device if on_gpu else None,
    )  # fmt: skip
    both = [
        Collectives(rank=rank, world=config.gpus, group=group, inputs=config.trainer != "torchrec")
        for group in (dist.group.WORLD, dist.new_group())
    ]
    return both[0], both[1]

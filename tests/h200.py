"""A machine with H200s, as a plan sees it."""

from __future__ import annotations

from dataclasses import replace

from ae.model import Gpu, Machine

GPU = Gpu(
    index=0, uuid="GPU-0", name="NVIDIA H200", memory_gib=139.0, memory_free_gib=138.0,
    compute_capability=(9, 0), driver="580.159.03",
)  # fmt: skip


def machine(gpus: int) -> Machine:
    """So many of them."""
    cards = [replace(GPU, index=number, uuid=f"GPU-{number}") for number in range(gpus)]
    return Machine(gpus=tuple(cards), cpus=16, memory_gib=128)

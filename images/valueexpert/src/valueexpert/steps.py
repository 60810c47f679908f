"""A PyTorch program to look at: training steps of a small transformer, a JSON object each.

    python -m valueexpert.steps STEPS [DEVICE]

A step is timed on the host, from an idle device to an idle device: `kernel_us` has all of it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from accel_trace.region import step

BATCH, LENGTH, WIDTH, WORDS = 4, 32, 64, 500  # so small that a tool can record all accesses


def trainer(device: str) -> Callable[[], float]:
    """A function that makes one step and returns its loss."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(WORDS, WIDTH, padding_idx=0), nn.TransformerEncoder(layer, 2),
        nn.Linear(WIDTH, WORDS),
    ).to(device)  # fmt: skip
    optimiser = torch.optim.Adam(model.parameters())
    words = torch.randint(0, WORDS, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))

    def one() -> float:
        given = words.to(device)  # as a loader does, in every step
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(given).flatten(0, 1), given.flatten())
        loss.backward()
        optimiser.step()
        return float(loss)  # waits

    return one


def main() -> None:
    """Train, and print each step's microseconds and loss."""
    steps, device = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "cuda"
    one = trainer(device)
    for _ in range(steps):
        step()
        start = time.perf_counter()
        loss = one()
        spent = 1e6 * (time.perf_counter() - start)
        print(json.dumps({"kernel_us": spent, "memory_us": 0.0, "loss": loss}), flush=True)


if __name__ == "__main__":
    main()

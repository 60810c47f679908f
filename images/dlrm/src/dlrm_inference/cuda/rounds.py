"""Rounds of interleaved launches on one Bench, for every experiment on a GPU."""

from __future__ import annotations

from collections.abc import Mapping

from reprokit.progress import Progress

from dlrm_inference.cuda.bench import Bench
from dlrm_inference.cuda.timing import Target, interleave

PINNING = ("l2p", "rpf_l2p")
STATE = (
    "tables and batches rotate from launch to launch, variants in an order drawn anew each round; "
    "the L2 holds what launches on other tables left"
)


def in_rounds(
    bench: Bench, targets: Mapping[str, Target], progress: Progress
) -> dict[str, list[float]]:
    """Return the samples (us) of every target by its name; nothing for no target."""
    if not targets:
        return {}
    config = bench.config
    return interleave(
        targets,
        config.samples,
        config.warmup,
        bench.device,
        on_round=lambda _: progress.step(f"{config.experiment} rounds"),
    )

"""Why preprocessing beside training costs throughput, in a sentence of the plan's own numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rap_training.planner.capacity import SLOWER
from rap_training.planner.cost import StageCapacity

ENOUGH = 0.98  # of the throughput of training alone
PAID = 0.1  # of the kernels' own time: so close to it is what an iteration takes more
PROMISED = 0.5  # of the stages' capacity: up to so much work, ENOUGH is to be reached


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What making one batch ready keeps busy. Times in us, by themselves, of one iteration."""

    busy_us: float  # the GPU, with kernels
    kernels: int
    longest: str  # of the kernels
    longest_us: float
    copy_us: float = 0.0  # the link to the host
    exchange_us: float = 0.0  # the links between GPUs


def why_below(
    iteration_us: float, ideal_us: float, batch: Batch, stages: Sequence[StageCapacity]
) -> str:
    """Return why an iteration takes longer than training alone; "" from ENOUGH of it on.

    The first that holds: more work than the stages hide; more than the share of it for which
    ENOUGH is promised; a kernel that fits beside no stage; links that are busy for longer than
    training; kernels that cost the time that they take alone; no more than the slowdown that stages
    had when what they hide was measured; otherwise that these numbers do not explain it.
    """
    share = ideal_us / iteration_us
    if share >= ENOUGH:
        return ""
    idle = sum(stage.capacity_us for stage in stages)
    roomy = max(stages, key=lambda stage: stage.capacity_us)
    busy = batch.busy_us
    if busy > idle:
        cause = (
            f"preprocessing keeps the GPU busy for {busy:.1f} us, and training hides {idle:.1f}: "
            f"{busy - idle:.1f} us fit nowhere"
        )
    elif busy > PROMISED * idle:
        cause = (
            f"preprocessing keeps the GPU busy for {busy:.1f} us, over {PROMISED:.0%} of the "
            f"{idle:.1f} us that training hides while its stages become up to {SLOWER:.0%} slower"
        )
    elif batch.longest_us > roomy.capacity_us:
        cause = (
            f"its longest kernel, {batch.longest}, takes {batch.longest_us:.1f} us and fits no "
            f"gap: the roomiest stage, {roomy.name}, hides {roomy.capacity_us:.1f}"
        )
    elif max(batch.copy_us, batch.exchange_us) > ideal_us:
        link, us = max(
            ("copies from the host", batch.copy_us),
            ("exchanges between GPUs", batch.exchange_us),
            key=lambda each: each[1],
        )
        cause = f"{link} take {us:.1f} us, longer than training"
    elif abs(iteration_us - ideal_us - busy) <= PAID * busy:
        cause = (
            f"its kernels cost the {busy:.1f} us that they take alone: none of it is hidden beside "
            "stages whose capacity was found with smaller kernels"
        )
    elif iteration_us <= ideal_us * (1 + SLOWER):
        cause = (
            f"stages that hide work become up to {SLOWER:.0%} slower by it, and this is within that"
        )
    else:
        cause = "the plan's numbers do not explain it"
    return (
        f"{share:.3f} of training alone, {iteration_us - ideal_us:.1f} us an iteration more: "
        f"{cause} (idle capacity {idle:.1f} us of {ideal_us:.1f}; GPU busy {busy:.1f} us in "
        f"{batch.kernels} kernels, the longest {batch.longest_us:.1f}; copies {batch.copy_us:.1f} "
        f"us, exchanges {batch.exchange_us:.1f})"
    )

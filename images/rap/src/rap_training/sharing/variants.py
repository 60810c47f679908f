"""The variants: what each is, as data. All share trainer, data, loop and barriers.

Names are the paper's; what is ours or is built as the artifact builds it says so. The table of
sources: docs/papers/rap.md, 3.8, 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rap_training.planner.choice import IN_ORDER


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to preprocess the next batch.

    place: `none` (input prepared beforehand), `serial` (in the training lane), `line` (the same,
    with raw columns copied beside it), `side` (a lane beside it), `stages` (beside it, gated by
    training stages), `process` (a second process), `workers` (processes on the CPU).
    """

    name: str
    place: str
    fusion: str = "none"  # none | horizontal | vertical
    mapping: str = "data_parallel"  # data_parallel | search
    # Preprocessing as a CUDA graph; in the training lane of one GPU: one with the training step.
    graph: bool = False
    branches: bool = True  # of a graph: launches that need nothing of each other side by side
    priority: bool = False  # training's stream goes first
    green: bool = False  # preprocessing held to a green context's SMs
    mps: bool = False  # its process under MPS
    begins: str = ""  # of `side`: the training stage with which it begins; "": at once
    chooses: bool = False  # of `ways` the one that is measured not to be slower
    # As the artifact does it, to show what that costs; never part of a comparison.
    synchronise: bool = False  # the device is waited for after every launch
    barrier: bool = False  # device and ranks are waited for after every iteration

    @property
    def session(self) -> str:
        """Which processes it needs: variants of one session are measured in turns."""
        if self.place != "process":
            return "one_process"
        return "mps" if self.mps else "two_processes"


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant(name="cpu", place="workers", mapping="search"),
        Variant(name="sequential", place="serial"),
        Variant(name="sequential_fused", place="serial", fusion="horizontal"),
        Variant(name="sequential_graph", place="serial", graph=True, chooses=True),
        Variant(
            name="sequential_fused_graph", place="serial", fusion="horizontal", graph=True,
            chooses=True,
        ),
        Variant(name="sequential_timeslice", place="process"),
        Variant(name="stream", place="side"),
        Variant(name="stream_graph", place="side", graph=True, chooses=True),
        Variant(
            name="stream_fused_graph", place="side", fusion="horizontal", graph=True, priority=True,
            chooses=True,
        ),
        Variant(name="stream_priority", place="side", priority=True),
        Variant(name="stream_sync", place="side", synchronise=True),
        Variant(name="mps", place="process", mps=True),
        Variant(
            name="rap_no_mapping", place="stages", fusion="horizontal", priority=True, chooses=True,
        ),
        Variant(
            name="rap_no_fusion", place="stages", mapping="search", priority=True, chooses=True
        ),
        Variant(
            name="rap", place="stages", fusion="horizontal", mapping="search", priority=True,
            chooses=True,
        ),
        Variant(
            name="rap_no_mapping_graph", place="stages", fusion="horizontal", graph=True,
            priority=True, chooses=True,
        ),
        Variant(
            name="rap_graph", place="stages", fusion="horizontal", mapping="search", graph=True,
            priority=True, chooses=True,
        ),
        Variant(name="rap_mps", place="process", fusion="horizontal", mapping="search", mps=True),
        Variant(
            name="rap_green", place="side", fusion="vertical", mapping="search", graph=True,
            branches=False, priority=True, green=True,  # a branch's stream would have all SMs
        ),
        Variant(
            name="rap_plus", place="side", fusion="vertical", mapping="search", graph=True,
            priority=True, chooses=True,
        ),
        Variant(name="ideal", place="none", mapping="search"),
        Variant(name="ideal_barrier", place="none", mapping="search", barrier=True),
    )
}  # fmt: skip


def ways(variant: Variant, stages: Sequence[str], *, several: bool) -> dict[str, Variant]:
    """What a variant that chooses may be run as, by the names of `planner.choice.WAYS`.

    RAP, also without a part, may go without its gates, or be a plain stream. RAP+ may begin later
    in the iteration, or run in line with training. `several`: launches of a graph may run side by
    side, or one after another. `stages` are the trainer's.
    """
    if not variant.graph:
        ungated = replace(variant, place="side")
        return {"gated": variant, "ungated": ungated, "stream": VARIANTS["stream"]}
    found = {"branches": variant}
    if variant.fusion == "vertical":
        later = {stage: replace(variant, begins=stage) for stage in stages[1:]}
        found = {"at_once": variant, "in_line": replace(variant, place="line"), **later}
    if several:
        found |= {IN_ORDER[way]: replace(each, branches=False) for way, each in found.items()}
    return found


# What RAP gains over Sequential, a part a step: (part, without it, with it). Two variants of a step
# differ in that part alone; gates have the training step be a graph a stage. On one GPU there is
# nothing to map, and no such step.
STEPS = (
    ("graph", "sequential", "sequential_graph"),
    ("fusion", "sequential_graph", "sequential_fused_graph"),
    ("overlap", "sequential_fused_graph", "stream_fused_graph"),
    ("schedule", "stream_fused_graph", "rap_no_mapping_graph"),
    ("mapping", "rap_no_mapping_graph", "rap_graph"),
    ("all", "sequential", "rap_graph"),
)

"""Launches as CUDA graphs. On a CPU the same calls, put together in the same way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import cache, partial

import torch

from rap_training.launches import Call, needs_of
from rap_training.sharing.lanes import Lane, StreamLane
from rap_training.sharing.preparation import Part, all_calls
from rap_training.sharing.rap import RapPlan

BRANCHES = 16  # of a graph, at most


def graph_of(
    calls: Sequence[Call], device: torch.device, stream: torch.cuda.Stream | None = None
) -> Call:
    """The calls as one CUDA graph. They are run once first, which compiles what must be."""
    for call in set(calls):
        call()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        all_calls(calls)
    kept = list(calls)  # and with them the memory that the graph works on
    return lambda _kept=kept: graph.replay()  # type: ignore[misc]


def together(
    calls: Sequence[Call], needs: Sequence[Collection[int]] | None, device: torch.device
) -> Call:
    """The calls as one. `needs[i]`: the earlier calls that i needs; None: all of them.

    On a GPU they are queued in streams that part and meet again, so that in a graph of it those
    that need nothing of each other run side by side.
    """
    needs = needs or ()
    branches = branches_of(needs, BRANCHES)
    if device.type == "cpu" or max(branches, default=0) == 0:
        return partial(all_calls, calls)

    waits = [
        [other for other in needed if branches[other] != branch]
        for needed, branch in zip(needs, branches, strict=True)
    ]

    def call() -> None:
        here = torch.cuda.current_stream(device)
        streams = [here, *_streams(device, here.priority)][: max(branches) + 1]
        begun = here.record_event()
        for stream in streams[1:]:
            stream.wait_event(begun)
        ended: list[torch.cuda.Event] = []
        for own, branch, others in zip(calls, branches, waits, strict=True):
            for earlier in others:
                streams[branch].wait_event(ended[earlier])
            with torch.cuda.stream(streams[branch]):
                own()
            ended.append(streams[branch].record_event())
        for stream in streams[1:]:
            here.wait_event(stream.record_event())

    return call


def branches_of(needs: Sequence[Collection[int]], most: int) -> list[int]:
    """A branch for each call: one that ends with what it needs, else a new one, at most `most`,
    else the shortest.

    `needs[i]`: the earlier calls that call i needs.
    """
    found: list[int] = []
    ends: list[int] = []  # the last call of each branch
    lengths: Counter[int] = Counter()
    for at, needed in enumerate(needs):
        after = [branch for branch, end in enumerate(ends) if end in needed]
        if not after and len(ends) < most:
            after = [len(ends)]
            ends.append(at)
        branch = min(after or range(most), key=lengths.__getitem__)
        found.append(branch)
        ends[branch] = at
        lengths[branch] += 1
    return found


@cache
def _streams(device: torch.device, priority: int) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device, priority=priority) for _ in range(BRANCHES - 1)]


def captured(calls: Sequence[Call], lane: Lane) -> Call:
    """The calls as one: where the lane is a CUDA stream, as a graph."""
    if isinstance(lane, StreamLane):
        return graph_of(calls, lane.stream.device, lane.stream)
    return partial(all_calls, calls)


def captured_parts(
    plan: RapPlan,
    calls: Sequence[Sequence[Call]],
    lane: Lane,
    device: torch.device,
    *,
    branches: bool,
) -> tuple[list[list[Call]], dict[str, Part]]:
    """A graph for each stage of a plan, slot by slot, and for each stage what queues its graph."""
    stages = list(plan.stages.values())
    needs = [
        needs_of([plan.launches[at] for at in which]) if branches else None for which in stages
    ]
    graphs = [
        [
            captured([together([slot[at] for at in which], needed, device)], lane)
            for which, needed in zip(stages, needs, strict=True)
        ]
        for slot in calls
    ]
    return graphs, {stage: _nth(at) for at, stage in enumerate(plan.stages)}


def _nth(at: int) -> Part:
    def run(calls: Sequence[Call]) -> None:
        calls[at]()

    return run

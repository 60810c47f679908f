"""Launches as CUDA graphs. On a CPU the same calls, put together in the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from rap_training.launches import Call
from rap_training.sharing.lanes import Lane, StreamLane
from rap_training.sharing.preparation import Part, all_calls


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


def side_by_side(calls: Sequence[Call], device: torch.device) -> Call:
    """Calls that need nothing of each other as one: on a GPU each in a stream of its own, after
    what the current stream holds and before what follows there."""
    if device.type == "cpu" or len(calls) == 1:
        return partial(all_calls, calls)
    first, *others = calls
    beside = [(torch.cuda.Stream(device), call) for call in others]

    def call() -> None:
        here = torch.cuda.current_stream(device)
        begun = here.record_event()
        first()
        for stream, other in beside:
            stream.wait_event(begun)
            with torch.cuda.stream(stream):
                other()
            here.wait_event(stream.record_event())

    return call


def captured(calls: Sequence[Call], lane: Lane) -> Call:
    """The calls as one: where the lane is a CUDA stream, as a graph."""
    if isinstance(lane, StreamLane):
        return graph_of(calls, lane.stream.device, lane.stream)
    return partial(all_calls, calls)


def captured_parts(
    parts: Mapping[str, Part], calls: Sequence[Sequence[Call]], lane: Lane
) -> tuple[list[list[Call]], dict[str, Part]]:
    """The parts of a program, and the calls of every slot, with each part as one graph."""
    graphs = [[captured([partial(part, slot)], lane) for part in parts.values()] for slot in calls]
    return graphs, {stage: _nth(at) for at, stage in enumerate(parts)}


def _nth(at: int) -> Part:
    def run(calls: Sequence[Call]) -> None:
        calls[at]()

    return run

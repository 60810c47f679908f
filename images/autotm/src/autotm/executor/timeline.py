"""Who did what when, in three lanes: as predicted, as measured, as Perfetto shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotm.check import check
from autotm.executor.lanes import Lanes
from autotm.graph import Graph, Machine, Plan

LANES = {"compute": "compute", "out": "device to host", "in": "host to device"}


@dataclass(frozen=True)
class Span:
    """Something in a lane, from `begin` (s, since the iteration began) for `seconds`."""

    lane: str
    name: str
    begin: float
    seconds: float


def predicted(graph: Graph, machine: Machine, plan: Plan) -> list[Span]:
    """The timeline that the plan expects, ops and copies."""
    replay = check(graph, machine, plan)
    found = [
        Span("compute", _step(graph, plan, number), begin, end - begin)
        for number, (begin, end) in enumerate(zip(replay.starts, replay.ends, strict=True))
    ]
    found += [
        Span(way, _tensor(graph, tensor), begin, end - begin)
        for way, tensor, begin, end in replay.copies
        if graph.tensors[tensor].bytes
    ]
    return found


def measured(graph: Graph, plan: Plan, lanes: Lanes) -> list[Span]:
    """What the lanes' trace holds of one iteration; waits for the lanes."""
    lanes.idle()
    trace = lanes.trace or []
    if not trace:
        return []
    origin = next(begin for lane, _, begin, _ in trace if lane == "compute")
    return [
        Span(
            lane,
            _step(graph, plan, int(label)) if lane == "compute" else _tensor(graph, int(label)),
            lanes.seconds(origin, begin),
            lanes.seconds(begin, end),
        )
        for lane, label, begin, end in trace
    ]


@dataclass(frozen=True)
class Lost:
    """By how many seconds an iteration takes longer than its plan says; together they are all of
    it, from the first operator's begin to the last one's end.

    beside: in operators that run beside copies for half of their time or more. alone: in others.
    waits: before operators that wait for a copy. gaps: before others, which the host is late with;
    a plan counts such a gap as a part of the operator.
    """

    beside: float = 0.0
    alone: float = 0.0
    waits: float = 0.0
    gaps: float = 0.0

    @property
    def seconds(self) -> float:
        return self.beside + self.alone + self.waits + self.gaps


def lost(timelines: Mapping[str, Sequence[Span]], waits: Sequence[bool]) -> Lost:
    """Of the timelines `measured` and `predicted`. waits: whether a step waits for a copy."""
    ops, theirs = (_lane(timelines[name], "compute") for name in ("measured", "predicted"))
    copies = [each for each in timelines["measured"] if each.lane != "compute"]
    found = dict.fromkeys(("beside", "alone", "waits", "gaps"), 0.0)
    for each, other, gap, their_gap, waiting in zip(
        ops, theirs, _gaps(ops), _gaps(theirs), waits, strict=True
    ):
        where = "beside" if 2 * _beside(each, copies) >= each.seconds else "alone"
        found[where] += each.seconds - other.seconds
        found["waits" if waiting else "gaps"] += gap - their_gap
    return Lost(**found)


def _lane(spans: Sequence[Span], lane: str) -> list[Span]:
    return [each for each in spans if each.lane == lane]


def _gaps(spans: Sequence[Span]) -> list[float]:
    """Seconds before each one in which its lane does nothing."""
    ends = [spans[0].begin, *(each.begin + each.seconds for each in spans)]
    return [each.begin - end for each, end in zip(spans, ends, strict=False)]


def _beside(span: Span, copies: Sequence[Span]) -> float:
    """Seconds of it in which copies run, of one lane or the other, whichever are more."""
    end, found = span.begin + span.seconds, {"out": 0.0, "in": 0.0}
    for copy in copies:
        both = min(end, copy.begin + copy.seconds) - max(span.begin, copy.begin)
        found[copy.lane] += max(0.0, both)
    return max(found.values())


def chrome(timelines: Mapping[str, Sequence[Span]]) -> str:
    """Timelines by name as the JSON that Perfetto (ui.perfetto.dev) and chrome://tracing read."""
    events: list[dict[str, object]] = []
    for process, (title, spans) in enumerate(timelines.items(), 1):
        events.append(_meta("process_name", process, 0, title))
        for thread, (lane, name) in enumerate(LANES.items(), 1):
            events.append(_meta("thread_name", process, thread, name))
            events += [
                {
                    "ph": "X", "pid": process, "tid": thread, "name": span.name,
                    "ts": span.begin * 1e6, "dur": span.seconds * 1e6,
                }
                for span in spans
                if span.lane == lane
            ]  # fmt: skip
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _meta(kind: str, process: int, thread: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _step(graph: Graph, plan: Plan, number: int) -> str:
    op = plan.steps[number]
    again = " (again)" if op in plan.steps[:number] else ""
    return f"{graph.ops[op].name}{again}"


def _tensor(graph: Graph, tensor: int) -> str:
    each = graph.tensors[tensor]
    return f"{each.name} {each.bytes / 1e6:.3g} MB"

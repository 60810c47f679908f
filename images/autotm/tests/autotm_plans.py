"""Plans that are right by construction, from choices that may be drawn at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from autotm.graph import ENDS, OUTSIDE, STAYS, Graph, Plan, Stay, aligned

Decide = Callable[[int, int], str]  # (tensor, step) -> "keep", "drop" or "save", after a use
ALIGN = 512
Ahead = Callable[[int, int], int]  # (tensor, steps at most) -> how many steps a copy in is early


@dataclass
class _Open:
    tensor: int
    begin: int
    source: str
    last: int
    saved: int | None = None


class Planner:
    """Follows the graph; whatever an op lacks is fetched, or made again."""

    def __init__(self, graph: Graph, decide: Decide, ahead: Ahead = lambda t, most: most) -> None:
        self.graph, self.decide, self.ahead = graph, decide, ahead
        self.steps: list[int] = []
        self.present: dict[int, _Open] = {}
        self.closed: list[_Open] = []
        self.ready: dict[int, int] = {}
        self.host: dict[int, int] = {}  # tensor -> the step of its save
        self.done: set[int] = set()

    def plan(self) -> Plan:
        for tensor in self.graph.tensors:
            if tensor.kind in STAYS:
                self.present[tensor.id] = _Open(tensor.id, 0, "start", 0)
        for op in self.graph.ops:
            self._run(op.index)
            for tensor in op.operands:
                if self.graph.tensors[tensor].kind not in OUTSIDE and tensor in self.present:
                    self._after(tensor, op.index)
        for tensor, still in list(self.present.items()):
            if self.graph.tensors[tensor].kind in ENDS:
                still.last = len(self.steps) - 1
            self._close(tensor)
        stays = _placed(self.graph, [self._stay(each) for each in self.closed])
        sizes = [aligned(tensor.bytes, ALIGN) for tensor in self.graph.tensors]
        peak = max((stay.address + sizes[stay.tensor] for stay in stays), default=0)
        choices = tuple("keep" for _ in self.graph.tensors)
        return Plan(self.graph.name, "test", tuple(self.steps), stays, choices, 0, peak, 0, 0, 0)

    def _run(self, op: int) -> None:
        node = self.graph.ops[op]
        for tensor in node.inputs:
            self._fetch(tensor, set(node.inputs))
        step = len(self.steps)
        self.steps.append(op)
        for tensor in node.inputs:
            self.present[tensor].last = step
        for tensor in node.outputs:
            new = _Open(tensor, step, "op", step)
            if tensor in self.present:  # made again, though nobody needs it
                self.closed.append(new)
            else:
                self.present[tensor] = new
        self.done.add(op)

    def _fetch(self, tensor: int, pinned: set[int]) -> None:
        if tensor in self.present:
            return
        now = len(self.steps)
        if tensor in self.host:
            ends = [each.last for each in self.closed if each.tensor == tensor]
            first = max(self.host[tensor] + 1, max(ends) + 1)
            begin = now - self.ahead(tensor, now - first)
            self.present[tensor] = _Open(tensor, begin, "host", now)
            self.ready[id(self.present[tensor])] = now
            return
        producer = self.graph.producer[tensor]
        assert producer is not None
        self._run(producer)

    def _after(self, tensor: int, op: int) -> None:
        later = [use for use in self.graph.uses[tensor] if use > op]
        again = self.graph.ops[self.graph.producer[tensor]].recomputable
        choice = self.decide(tensor, len(self.steps) - 1) if later else "drop"
        if later and self.graph.tensors[tensor].name.startswith("workspace"):  # it cannot move
            choice = "keep"
        if choice == "save" and tensor not in self.host and self.present[tensor].source == "op":
            self.present[tensor].saved = self.present[tensor].last = len(self.steps) - 1
            self.host[tensor] = len(self.steps) - 1
            choice = "drop"
        if choice == "drop" and (again or tensor in self.host):
            self._close(tensor)

    def _close(self, tensor: int) -> None:
        self.closed.append(self.present.pop(tensor))

    def _stay(self, each: _Open) -> Stay:
        ready = self.ready.get(id(each), each.begin)
        return Stay(each.tensor, 0, each.begin, each.last, each.source, ready, each.saved)


def _placed(graph: Graph, stays: list[Stay]) -> tuple[Stay, ...]:
    """First fit, by begin."""
    found: list[Stay] = []
    for stay in sorted(stays, key=lambda each: (each.begin, -graph.tensors[each.tensor].bytes)):
        size = graph.tensors[stay.tensor].bytes
        taken = sorted(
            (other.address, other.address + graph.tensors[other.tensor].bytes)
            for other in found
            if other.begin <= stay.end and stay.begin <= other.end
        )
        address = 0
        for low, high in taken:
            if address + size <= low:
                break
            address = max(address, aligned(high, ALIGN))
        found.append(replace(stay, address=address))
    return tuple(found)


def kept(graph: Graph) -> Plan:
    """Everything stays until its last use."""
    return Planner(graph, lambda tensor, step: "keep").plan()


def saved(graph: Graph) -> Plan:
    """Everything leaves after each use."""
    return Planner(graph, lambda tensor, step: "save", lambda tensor, most: min(most, 2)).plan()


def dropped(graph: Graph) -> Plan:
    """Everything that can be made again is, but what would cost more than a few steps."""
    cheap = {tensor for op in graph.ops for tensor in op.outputs if op.index % 3}
    return Planner(graph, lambda t, step: "drop" if t in cheap else "keep").plan()


def mixed(graph: Graph) -> Plan:
    """By turns: keep, make again, move."""
    return Planner(graph, lambda t, step: ("keep", "drop", "save")[t % 3]).plan()


KINDS = {"keep": kept, "offload": saved, "recompute": dropped, "both": mixed}

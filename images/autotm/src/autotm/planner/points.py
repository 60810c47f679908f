"""Where a tensor may be wanted: at its uses, and where something else could be made again of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from autotm.graph import Graph, Machine, aligned
from autotm.planner.model import INFINITY


@dataclass(frozen=True)
class Limits:
    """What a planner looks at; less is faster, and what is left out is kept.

    least_bytes: smaller tensors are never moved. least_ops: shorter gaps between two uses are
    never used. reach: how many ops before a use a tensor may be back early. depth: ops in a row
    that are made again for one use; 0: none. offload: tensors may be copied out.
    whole: from how many bytes on a tensor counts as a whole while it is copied, not by the byte.
    """

    least_bytes: int = 0
    least_ops: int = 1
    reach: int = 40
    depth: int = 4
    offload: bool = True
    whole: float = INFINITY


@dataclass
class Line:
    """One movable tensor's points: ops, in order; the first is its producer.

    need: it is read there (or written); else it may be back there before its next use.
    again: it may itself be made again just before that op. hold: the segment after the point is
    too short to leave. gap: which gap between two uses the segment belongs to.
    """

    tensor: int
    points: list[int] = field(default_factory=list)
    need: list[bool] = field(default_factory=list)
    again: list[bool] = field(default_factory=list)
    hold: list[bool] = field(default_factory=list)
    gap: list[int] = field(default_factory=list)

    def covers(self, op: int) -> int | None:
        """The segment within which `op` lies, ends apart; None after the last point."""
        place = bisect_left(self.points, op)
        return place - 1 if 0 < place < len(self.points) else None


@dataclass(frozen=True)
class Lines:
    """The movable tensors' lines; until which op the small ones live; (op, before op) to repeat."""

    lines: dict[int, Line]
    last: dict[int, int]
    again: set[tuple[int, int]]


def lines_of(graph: Graph, limits: Limits) -> Lines:
    """Points of every movable tensor of a graph."""
    movable = {
        each.id
        for each in graph.tensors
        if each.kind in ("activation", "gradient") and each.bytes >= max(limits.least_bytes, 1)
    }
    true = {t: (_producer(graph, t), *graph.uses[t]) for t in movable}
    wanted: dict[int, set[int]] = {}  # tensor -> ops before which another is made again of it
    again: dict[int, set[int]] = {}
    for tensor in sorted(movable):
        for a, b in pairwise(true[tensor]):
            if b - a > limits.least_ops:
                _chain(graph, movable, tensor, b, limits.depth, wanted, again)
    last = {}
    for each in graph.tensors:
        if each.id not in movable and each.kind in ("activation", "gradient"):
            last[each.id] = max((graph.life(each.id)[1], *wanted.get(each.id, ())))
    lines = {t: _line(t, true[t], wanted, again, limits) for t in sorted(movable)}
    pairs = {(_producer(graph, tensor), at) for tensor, ats in again.items() for at in ats}
    return Lines(lines, last, pairs)


def least_bytes(graph: Graph, machine: Machine, limits: Limits) -> tuple[int, int]:
    """What the most demanding op needs beside what `limits` keep, and which op it is.

    That is its operands, small tensors, those that are never moved, and those between two uses that
    are too near. Without offloading it may need more.
    """
    found, change = lines_of(graph, limits), [0] * (len(graph.ops) + 1)

    def present(first: int, last: int, size: int) -> None:
        change[first] += size
        change[last + 1] -= size

    for each in graph.tensors:
        size = aligned(each.bytes, machine.align)
        line = found.lines.get(each.id)
        if line is None:
            begin, end = graph.life(each.id)
            present(begin, found.last.get(each.id, end), size)
            continue
        held = (False, *line.hold)  # the segment before a point
        for j, point in enumerate(line.points):
            if held[j]:
                present(line.points[j - 1] + 1, point, size)
            elif line.need[j]:
                present(point, point, size)
    needs = list(accumulate(change[:-1]))
    most = max(range(len(needs)), key=needs.__getitem__)
    return needs[most], most


def _producer(graph: Graph, tensor: int) -> int:
    found = graph.producer[tensor]
    assert found is not None
    return found


def _chain(
    graph: Graph, movable: set[int], tensor: int, at: int, depth: int,
    wanted: dict[int, set[int]], again: dict[int, set[int]],
) -> None:  # fmt: skip
    """Let `tensor` be made again before op `at`, and what that reads, `depth` ops deep."""
    op = graph.ops[_producer(graph, tensor)]
    if depth < 1 or not op.recomputable or graph.tensors[tensor].kind == "gradient":
        return
    if any(graph.tensors[x].kind == "gradient" for x in op.inputs):
        return
    again.setdefault(tensor, set()).add(at)
    for x in op.inputs:
        if graph.tensors[x].kind != "activation":
            continue
        wanted.setdefault(x, set()).add(at)
        if x in movable:
            _chain(graph, movable, x, at, depth - 1, wanted, again)


def _line(
    tensor: int, true: Sequence[int], wanted: dict[int, set[int]], again: dict[int, set[int]],
    limits: Limits,
) -> Line:  # fmt: skip
    line, made = Line(tensor), again.get(tensor, set())
    early = sorted(wanted.get(tensor, ()))

    def point(op: int, need: bool, hold: bool, gap: int) -> None:
        line.points.append(op)
        line.need.append(need)
        line.again.append(op > true[0] and op in made)
        line.hold.append(hold)
        line.gap.append(gap)

    for gap, (a, b) in enumerate(pairwise(true)):
        short = b - a <= limits.least_ops
        point(a, True, short, gap)
        split = next((at for at in early if max(a, b - limits.reach - 1) < at < b), None)
        if split is not None and not short:
            point(split, False, False, gap)
    point(true[-1], True, False, len(true) - 1)
    return line

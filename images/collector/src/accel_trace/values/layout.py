"""Where the nodes of a value flow graph stand: rows, from top to bottom, as the program goes."""

from __future__ import annotations

from collections import defaultdict

from accel_trace.values.flow import HOST, Graph
from accel_trace.values.shadow import ALLOC

_SWEEPS = 4


def place(graph: Graph) -> dict[int, tuple[float, float]]:
    """A column and a row for every node; no two nodes share both.

    A node stands below all that it takes values from, as far as those came first, and just above
    the first that takes its own. Edges that go back, of loops, do not count.
    """
    sources, targets = defaultdict(set), defaultdict(set)
    for edge in graph.edges:
        if edge.source != edge.target:
            sources[edge.target].add(edge.source)
            targets[edge.source].add(edge.target)
    row: dict[int, int] = {}
    movable = {n for n, node in graph.nodes.items() if node.kind in (ALLOC, HOST)}
    for number in sorted(graph.nodes):
        if number not in movable:
            above = [row[one] for one in sources[number] if one in row]
            row[number] = 1 + max(above, default=0)
    for number in sorted(row, reverse=True):  # a fill of the last layer stands at the last layer
        below = [row[one] for one in targets[number] if one in row and one > number]
        row[number] = min(below, default=row[number] + 1) - 1
    for number in sorted(movable):
        below = [row[one] for one in targets[number] if one in row and one not in movable]
        row[number] = min(below, default=1) - 1
    rows: dict[int, list[int]] = defaultdict(list)
    for number in sorted(graph.nodes):
        rows[row[number]].append(number)
    column = {
        number: at - (len(line) - 1) / 2 for line in rows.values() for at, number in enumerate(line)
    }
    for _ in range(_SWEEPS):  # each line in the order of its neighbours' mean columns
        for line in sorted(rows):
            wanted = {
                number: _mean(
                    [column[o] for o in sources[number] | targets[number]], column[number]
                )
                for number in rows[line]
            }
            rows[line].sort(key=lambda number: (wanted[number], number))
            for at, number in enumerate(rows[line]):
                column[number] = at - (len(rows[line]) - 1) / 2
    return {number: (column[number], float(row[number])) for number in graph.nodes}


def _mean(values: list[float], default: float) -> float:
    return sum(values) / len(values) if values else default

"""The value flow graph: who defined the values that an operation overwrites or reads.

Nodes are calling contexts, so that a loop is one node with a count. Edges: `write` from the last
definer of an object to who overwrites it, with the bytes written and those that did not change;
`read` from the definer to the reader; `sink` to the host. Source: ValueExpert's data_flow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from accel_trace.values.shadow import ALLOC, DOWNLOAD, UPLOAD, Effect

HOST = "host"


@dataclass
class Node:
    """A calling context: `kind` of an Effect, or host; `count` operations; `bytes` written."""

    number: int
    kind: str
    context: str
    count: int = 0
    bytes: int = 0


@dataclass
class Edge:
    """Values that flow: `bytes` written or read; `unchanged` of them (of writes and sinks)."""

    source: int
    target: int
    kind: str  # write, read, sink
    thing: str  # where the object was allocated
    bytes: int = 0
    unchanged: int = 0
    objects: int = 0  # bytes of the objects, summed over the operations
    count: int = 0

    @property
    def redundancy(self) -> float:
        """The share of bytes that were written and did not change."""
        return self.unchanged / self.bytes if self.bytes else 0.0

    @property
    def overwrite(self) -> float:
        """The share of the objects' bytes that was written."""
        return self.bytes / self.objects if self.objects else 0.0


@dataclass
class Graph:
    """Nodes by number, and edges."""

    nodes: dict[int, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Bytes that were written in all."""
        return sum(edge.bytes for edge in self.edges if edge.kind == "write")


def build(effects: Iterable[Effect]) -> Graph:
    """The graph of operations in their order."""
    graph = Graph()
    numbers: dict[tuple[str, str], int] = {}
    edges: dict[tuple[int, int, str, str], Edge] = {}
    last: dict[int, int] = {}  # object -> node of its last definer
    done: set[tuple[int, int]] = set()

    def node(kind: str, context: str, operation: int) -> Node:
        number = numbers.setdefault((kind, context), len(numbers))
        one = graph.nodes.setdefault(number, Node(number, kind, context))
        if (number, operation) not in done:  # an operation on several objects is one
            done.add((number, operation))
            one.count += 1
        return one

    def edge(source: int, target: Node, kind: str, effect: Effect) -> Edge:
        key = (source, target.number, kind, effect.thing.context)
        one = edges.setdefault(key, Edge(*key))
        one.count += 1
        one.objects += effect.thing.size
        return one

    for effect in effects:
        own = node(effect.kind, effect.context, effect.number)
        definer = last.get(effect.thing.number, own.number)
        if effect.kind == ALLOC:
            last[effect.thing.number] = own.number
            continue
        if effect.kind == UPLOAD:
            host = node(HOST, HOST, -1)
            edge(host.number, own, "read", effect).bytes += effect.written
        if effect.source is not None:
            origin = last.get(effect.source.number, own.number)
            edge(origin, own, "read", effect).bytes += effect.written
        if effect.read:
            edge(definer, own, "read", effect).bytes += effect.read
        if effect.kind == DOWNLOAD:
            sink = edge(own.number, node(HOST, HOST, -1), "sink", effect)
            sink.bytes += effect.written
            sink.unchanged += effect.unchanged
        elif effect.written:
            write = edge(definer, own, "write", effect)
            write.bytes += effect.written
            write.unchanged += effect.unchanged
            own.bytes += effect.written
            last[effect.thing.number] = own.number
    graph.edges = list(edges.values())
    return graph


def prune(graph: Graph, redundancy: float = 0.99, share: float = 0.1) -> Graph:
    """Edges that redundant, or with that share of all bytes, and the nodes at their ends."""
    least = share * max(sum(edge.bytes for edge in graph.edges), 1)
    kept = [
        edge
        for edge in graph.edges
        if (edge.bytes and edge.redundancy >= redundancy) or edge.bytes >= least
    ]
    ends = {number for edge in kept for number in (edge.source, edge.target)}
    return Graph({number: graph.nodes[number] for number in sorted(ends)}, kept)

"""The paper's three formulations edge by edge: the oracle of the compact ones.

A tensor's life is a path through a layered graph, a layer per kernel where it may change place: its
users, and in the asynchronous formulation the kernels near them. `pre` is fast memory before any
copy out, `fast` is fast memory with a valid copy, `slow` is slow memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from typing import Literal

from autotm.graph import Graph, Machine, aligned
from autotm.planner.formulations import FREE, MB
from autotm.planner.model import Model

Formulation = Literal["static", "synchronous", "asynchronous"]
Terms = dict[int, float]
Vertex = tuple[str, int]  # where, and in which layer


class Layered:
    """One formulation of one graph; `room`: bytes of fast memory for free tensors."""

    def __init__(
        self, graph: Graph, machine: Machine, room: int, formulation: Formulation, window: int = 15
    ) -> None:
        self.graph, self.machine, self.formulation, self.window = (
            graph, machine, formulation, window,
        )  # fmt: skip
        self.model = Model()
        self.fast: dict[int, dict[int, Terms]] = {}  # tensor -> op -> it is in fast memory then
        self.beside: list[Terms] = [{} for _ in graph.ops]  # op -> copy -> its time
        for each in graph.tensors:
            if each.kind in FREE and each.bytes:
                self._tensor(each.id)
        for op in graph.ops:
            self._kernel(op.index)
            held: Terms = {}
            for tensor, places in self.fast.items():
                for variable, factor in places.get(op.index, {}).items():
                    mb = aligned(graph.tensors[tensor].bytes, machine.align) * MB
                    held[variable] = held.get(variable, 0.0) + factor * mb
            self.model.row(held, high=room * MB)

    def seconds(self) -> float:
        """The optimum."""
        return self.model.solve(600.0, 0.0).objective

    def _layers(self, tensor: int) -> tuple[list[int], set[int]]:
        """Ops with a layer, and those of them that use the tensor."""
        users = [self.graph.producer[tensor] or 0, *self.graph.uses[tensor]]
        if self.formulation == "static":
            return users[:1], set(users)
        layers = set(users)
        if self.formulation == "asynchronous":
            for op in range(users[0], users[-1]):
                if any(abs(op - user) <= self.window for user in users):
                    layers.add(op)
        return sorted(layers), set(users)

    def _tensor(self, tensor: int) -> None:
        model, size = self.model, self.graph.tensors[tensor].bytes
        layers, users = self._layers(tensor)
        last = len(layers) - 1
        write = self.machine.latency + size / self.machine.to_host
        read = self.machine.latency + size / self.machine.from_host
        inside: dict[Vertex, Terms] = {}
        outside: dict[Vertex, Terms] = {}
        arriving: list[Terms] = [{} for _ in layers]  # edges into fast memory, per layer
        staying: list[Terms] = [{} for _ in layers]  # edges that keep it there after the layer
        writes: list[int] = []  # those that kernels wait for
        for a, b in self._edges(last):
            edge = model.binary()
            outside.setdefault(a, {})[edge] = 1.0
            inside.setdefault(b, {})[edge] = -1.0
            if b[0] in ("pre", "fast"):
                arriving[b[1]][edge] = 1.0
            if a[0] in ("pre", "fast") and b[0] != "slow":
                staying[a[1]][edge] = 1.0
            if a[0] in ("pre", "slow") and b[0] in ("slow", "fast") and a[0] != b[0]:
                waits = layers[a[1]] in users
                if not waits:
                    self.beside[layers[a[1]]][edge] = read if b[0] == "fast" else write
                elif b[0] == "fast":
                    model.costs[edge] = read
                else:
                    writes.append(edge)
        model.row(outside["source", 0], 1, 1)
        for vertex, edges in inside.items():
            if vertex[0] != "sink":
                model.row({**outside[vertex], **edges}, 0, 0)
        written = model.number(write)
        for edge in writes:
            model.row({written: 1.0, edge: -1.0}, low=0)
        places: dict[int, Terms] = {}
        begin, end = self.graph.life(tensor)
        for op in range(begin, end + 1):
            before = max(j for j, layer in enumerate(layers) if layer <= op)
            places[op] = arriving[before] if layers[before] == op else staying[before]
        self.fast[tensor] = places

    def _edges(self, last: int) -> Iterator[tuple[Vertex, Vertex]]:
        yield ("source", 0), ("pre", 0)
        yield ("source", 0), ("slow", 0)
        for j, k in pairwise(range(last + 1)):
            yield ("pre", j), ("pre", k)
            yield ("slow", j), ("slow", k)
            yield ("pre", j), ("slow", k)
            yield ("slow", k), ("fast", k)
            if j:
                yield ("fast", j), ("fast", k)
                yield ("fast", j), ("slow", k)
        for where in ("pre", "slow", *(["fast"] if last else [])):
            yield (where, last), ("sink", last)

    def _kernel(self, index: int) -> None:
        """One binary per placement of the operands; where slow memory cannot be read, only one."""
        model, op = self.model, self.graph.ops[index]
        free = [t for t in op.operands if t in self.fast]
        cost = model.number(1.0)
        if not op.placed:
            for tensor in free:
                model.row(self.fast[tensor][index], 1, 1)
            model.row({cost: 1.0}, low=op.seconds)
        else:
            time: Terms = {cost: 1.0}
            every: Terms = {}
            for slow in product((False, True), repeat=len(free)):
                chosen = model.binary()
                every[chosen] = 1.0
                away = {t for t, there in zip(free, slow, strict=True) if there}
                mask = sum(1 << bit for bit, t in enumerate(op.operands) if t in away)
                time[chosen] = -op.placed[mask]
                least, missing = {chosen: 1.0}, 0.0  # chosen >= 1 + sum of terms - their number
                for tensor in free:
                    sign = -1.0 if tensor in away else 1.0
                    there = {v: -sign * f for v, f in self.fast[tensor][index].items()}
                    model.row({chosen: 1.0, **there}, high=float(tensor in away))
                    for variable, factor in there.items():
                        least[variable] = least.get(variable, 0.0) + factor
                    missing += 1.0 - float(tensor in away)
                model.row(least, low=1.0 - missing)
            model.row(every, 1, 1)
            model.row(time, low=0)
        if self.beside[index]:
            model.row({cost: 1.0, **{v: -s for v, s in self.beside[index].items()}}, low=0)

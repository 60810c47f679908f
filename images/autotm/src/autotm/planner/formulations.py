"""The paper's static and synchronous formulations, in a compact form with the same optimum.

Per free tensor and user j: x_j, it lies in fast memory there; y_j, it stays there until the next
user; w, it was written to fast memory and has ever left it, which costs one copy, once. Static
tensors have one place for life. Where kernels cannot read slow memory (a GPU), every x_j is 1.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from autotm.graph import Graph, Machine, aligned
from autotm.planner.model import Model, Solution
from autotm.planner.packing import Box
from autotm.planner.realise import Decisions, Held

MS, MB = 1e3, 1e-6
FREE = ("activation", "gradient")


@dataclass(frozen=True)
class Placement:
    """A solved formulation: per free tensor and user, in fast memory or not, and staying or not."""

    users: dict[int, tuple[int, ...]]
    fast: dict[int, tuple[bool, ...]]
    stays: dict[int, tuple[bool, ...]]
    seconds: float
    bound: float
    solution: Solution
    solve_seconds: float

    def moved(self, graph: Graph) -> tuple[int, int]:
        """Bytes copied out of fast memory, and into it."""
        out = back = 0
        for tensor, fast in self.fast.items():
            stays, size = self.stays[tensor], graph.tensors[tensor].bytes
            if fast[0] and not all(stays):
                out += size
            back += size * sum(fast[j] and not stays[j - 1] for j in range(1, len(fast)))
        return out, back

    def slow(self, graph: Graph, op: int) -> int:
        """The operands of an op that are in slow memory then, as a mask."""
        mask = 0
        for bit, tensor in enumerate(graph.ops[op].operands):
            users = self.users.get(tensor, ())
            if op in users and not self.fast[tensor][users.index(op)]:
                mask |= 1 << bit
        return mask

    def shares(self, graph: Graph) -> tuple[float, float]:
        """Share of the bytes that kernels read, and write, in fast memory; fixed tensors are."""
        totals, fasts = [0, 0], [0, 0]
        places = {t: dict(zip(self.users[t], self.fast[t], strict=True)) for t in self.fast}
        for op in graph.ops:
            for kind, tensors in enumerate((op.inputs, op.outputs)):
                for tensor in tensors:
                    size = graph.tensors[tensor].bytes
                    totals[kind] += size
                    known = places.get(tensor)
                    fasts[kind] += size * (known is None or known[op.index])
        return fasts[0] / max(totals[0], 1), fasts[1] / max(totals[1], 1)

    def lies(
        self, graph: Graph, machine: Machine
    ) -> tuple[list[tuple[int, Box]], list[tuple[int, Box]]]:
        """Tensors with when they lie in fast memory, and in slow memory: first and last op."""
        pools: tuple[list[tuple[int, Box]], list[tuple[int, Box]]] = ([], [])
        for tensor, fast in self.fast.items():
            users, stays = self.users[tensor], self.stays[tensor]
            size, begin = aligned(graph.tensors[tensor].bytes, machine.align), users[0]
            slow: list[int] = []  # ops between which the copy in slow memory is needed
            for j, there in enumerate(fast):
                stayed = j > 0 and stays[j - 1]
                begin = begin if stayed else users[j]
                if there and not (j + 1 < len(fast) and stays[j]):
                    pools[0].append((tensor, (begin, users[j], size)))
                    if j + 1 < len(fast) and not slow:
                        slow.append(users[j])  # copied out
                if not there or (j > 0 and not stayed):
                    slow.append(users[j])
            if slow:
                pools[1].append((tensor, (slow[0], slow[-1], size)))
        return pools

    def decisions(self, graph: Graph) -> Decisions:
        """The same for `realise`, with copies that kernels wait for."""
        held = {}
        for tensor, fast in self.fast.items():
            stays = [*self.stays[tensor], False]
            arrives: list[str | None] = ["op" if fast[0] else None]
            for j in range(1, len(fast)):
                arrives.append("host" if fast[j] and not stays[j - 1] else None)
            gaps = range(len(fast) - 1)
            leaves = next((j for j in gaps if fast[0] and not stays[j]), None)
            points = list(self.users[tensor])
            held[tensor] = Held(points, [True] * len(points), arrives, stays, leaves)
        return Decisions(
            held, {}, [0.0] * len(graph.ops), self.seconds, self.bound, {}, spread=False
        )


class TwoTiers:
    """Static or synchronous for one graph; `room`: bytes for free tensors, or per op."""

    def __init__(
        self, graph: Graph, machine: Machine, room: int | Sequence[int], *, static: bool
    ) -> None:
        self.graph, self.machine, self.static = graph, machine, static
        self.rooms = [room] * len(graph.ops) if isinstance(room, int) else room
        self.slow = any(op.placed for op in graph.ops)
        self.model = Model()
        self.users = {
            each.id: ((graph.producer[each.id] or 0), *graph.uses[each.id])
            for each in graph.tensors
            if each.kind in FREE and each.bytes
        }
        self.x: dict[int, list[int]] = {}
        self.y: dict[int, list[int]] = {}
        self._change: list[dict[int, float]] = [{} for _ in range(len(graph.ops) + 1)]
        for tensor in self.users:
            self._tensor(tensor)
        self._kernels()
        self._capacity()

    def _tensor(self, tensor: int) -> None:
        model, users = self.model, self.users[tensor]
        size = self.graph.tensors[tensor].bytes
        write = self.machine.latency + size / self.machine.to_host
        read = self.machine.latency + size / self.machine.from_host
        count = len(users)
        if self.static:
            one = model.binary() if self.slow else model.number(0, 1, 1)
            x, y = [one] * count, [one] * (count - 1)
        else:
            x = [model.binary() if self.slow else model.number(0, 1, 1) for _ in users]
            y = [model.binary() for _ in users[1:]]
            out = model.number(write * MS, 0, 1)
            for j in range(count - 1):
                model.row({y[j]: 1, x[j]: -1}, high=0)
                model.row({y[j]: 1, x[j + 1]: -1}, high=0)
                model.row({out: 1, x[0]: -1, y[j]: 1}, low=0)
                model.costs[x[j + 1]] += read * MS
                model.costs[y[j]] -= read * MS
        self.x[tensor], self.y[tensor] = x, y
        mb = aligned(size, self.machine.align) * MB
        for j, user in enumerate(users):
            self._add(user, x[j], mb)
            self._add(user + 1, x[j], -mb)
            if j + 1 < count:
                self._add(user + 1, y[j], mb)
                self._add(users[j + 1], y[j], -mb)

    def _add(self, op: int, variable: int, mb: float) -> None:
        row = self._change[op]
        row[variable] = row.get(variable, 0.0) + mb

    def _kernels(self) -> None:
        """An op's time by the places of its free operands: one share per combination."""
        model = self.model
        for op in self.graph.ops:
            free = [t for t in op.operands if t in self.x] if op.placed else []
            bits = {t: 1 << bit for bit, t in enumerate(op.operands)}
            place = {t: self.x[t][self.users[t].index(op.index)] for t in free}
            base = op.placed[0] if op.placed else op.seconds
            model.offset += base * MS
            if len(free) == 1:
                extra = (op.placed[bits[free[0]]] - base) * MS
                model.offset += extra
                model.costs[place[free[0]]] -= extra
            if len(free) < 2:
                continue
            shares = {}
            for slow in product((False, True), repeat=len(free)):
                mask = sum(bits[t] for t, away in zip(free, slow, strict=True) if away)
                shares[slow] = model.number((op.placed[mask] - base) * MS)
            model.row(dict.fromkeys(shares.values(), 1.0), 1, 1)
            for i, tensor in enumerate(free):
                fast = {share: 1.0 for slow, share in shares.items() if not slow[i]}
                model.row({**fast, place[tensor]: -1.0}, 0, 0)

    def _capacity(self) -> None:
        """Bytes in fast memory, op by op: what was there, and what changes."""
        before: int | None = None
        for op in self.graph.ops:
            now = self.model.number(0, 0, self.rooms[op.index] * MB)
            row = {now: 1.0}
            for variable, mb in self._change[op.index].items():
                row[variable] = row.get(variable, 0.0) - mb
            if before is not None:
                row[before] = -1.0
            self.model.row(row, 0, 0)
            before = now

    def solve(self, seconds: float = 3600.0, gap: float = 0.01) -> Placement:
        """By branch and bound, with the paper's limits as defaults. Raises NoPlan."""
        began = time.perf_counter()
        solution = self.model.solve(seconds, gap)
        x = {t: tuple(solution.on(each) for each in row) for t, row in self.x.items()}
        y = {t: tuple(solution.on(each) for each in row) for t, row in self.y.items()}
        return Placement(
            self.users, x, y, solution.objective / MS, solution.bound / MS, solution,
            time.perf_counter() - began,
        )  # fmt: skip


def fixed_bytes(graph: Graph, machine: Machine) -> int:
    """What the paper takes off the limit: parameters, inputs and outputs, for the whole time."""
    return sum(
        aligned(each.bytes, machine.align) for each in graph.tensors if each.kind not in FREE
    )

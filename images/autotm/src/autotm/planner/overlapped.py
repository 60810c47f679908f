"""The paper's asynchronous formulation, for GPUs: copies beside kernels near a tensor's users.

Per gap between two users: the copy out waits at the first, or runs beside one kernel of its
window, and its bytes count until that has ended; the copy back likewise before the second. All
copies beside one kernel share its time. The first time out pays the copy, later ones do not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from autotm.graph import Graph, Machine, aligned
from autotm.planner.formulations import FREE, MB, MS
from autotm.planner.model import Model, Solution
from autotm.planner.realise import Decisions, Held


@dataclass
class _Gap:
    """Variables of one gap: away, copied out here, and beside which kernel (None: waits)."""

    away: int
    out: dict[int | None, int]
    back: dict[int | None, int]


class Overlapped:
    """The programme of one graph; `room`: bytes of fast memory for free tensors, or per op."""

    def __init__(
        self, graph: Graph, machine: Machine, room: int | Sequence[int], *, window: int = 15
    ) -> None:
        self.graph, self.machine, self.window = graph, machine, window
        self.rooms = [room] * len(graph.ops) if isinstance(room, int) else room
        self.model = Model(offset=graph.seconds * MS)
        self.users = {
            each.id: ((graph.producer[each.id] or 0), *graph.uses[each.id])
            for each in graph.tensors
            if each.kind in FREE and each.bytes
        }
        self.gaps: dict[int, list[_Gap]] = {}
        self._fixed = [0.0] * (len(graph.ops) + 1)
        self._change: list[dict[int, float]] = [{} for _ in range(len(graph.ops) + 1)]
        self._beside: list[dict[int, float]] = [{} for _ in graph.ops]
        for tensor in self.users:
            self._tensor(tensor)
        self._rows()

    def _tensor(self, tensor: int) -> None:
        model, users = self.model, self.users[tensor]
        size = self.graph.tensors[tensor].bytes
        write = (self.machine.latency + size / self.machine.to_host) * MS
        read = (self.machine.latency + size / self.machine.from_host) * MS
        mb = aligned(size, self.machine.align) * MB
        self._fixed[users[0]] += mb
        self._fixed[users[-1] + 1] -= mb
        gaps: list[_Gap] = []
        paid: dict[int, float] = {}
        for a, b in pairwise(users):
            away = model.binary()
            near = [n for n in range(a + 1, b) if min(n - a, b - n) <= self.window]
            gap = _Gap(
                away,
                {None: model.binary(write), **{g: model.binary() for g in near}},
                {None: model.binary(read), **{h: model.binary() for h in near}},
            )
            gaps.append(gap)
            model.row({**dict.fromkeys(gap.back.values(), 1.0), away: -1.0}, 0, 0)
            model.row({**dict.fromkeys(gap.out.values(), 1.0), away: -1.0}, high=0)
            paid |= dict.fromkeys(gap.out.values(), 1.0)
            model.row({**{v: -p for v, p in paid.items()}, away: 1.0}, high=0)
            for op, when in self._when(gap, a, b):
                self._change[op] |= {k: v * mb for k, v in when.items()}
            for n in range(a + 1, b):
                late = {v: 1.0 for g, v in gap.out.items() if g is not None and g >= n}
                early = {v: 1.0 for h, v in gap.back.items() if h is not None and h <= n}
                if late and early:
                    model.row({**late, **early}, high=1)
            for g, variable in gap.out.items():
                if g is not None:
                    self._beside[g][variable] = write
            for h, variable in gap.back.items():
                if h is not None:
                    self._beside[h][variable] = read
        if len(gaps) > 1:
            model.row(paid, high=1)
        self.gaps[tensor] = gaps

    def _when(self, gap: _Gap, a: int, b: int) -> list[tuple[int, dict[int, float]]]:
        """Changes of presence at ops: away from a + 1, later for a copy beside a kernel."""
        found: list[tuple[int, dict[int, float]]] = [(a + 1, {gap.away: -1.0})]
        first = found[0][1]
        for g, variable in gap.out.items():
            if g is not None:
                first[variable] = 1.0
                found.append((g + 1, {variable: -1.0}))
        for h, variable in gap.back.items():
            found.append((b if h is None else h, {variable: 1.0}))
        merged: dict[int, dict[int, float]] = {}
        for op, when in found:
            row = merged.setdefault(op, {})
            for variable, sign in when.items():
                row[variable] = row.get(variable, 0.0) + sign
        return list(merged.items())

    def _rows(self) -> None:
        model, before = self.model, None
        for op in self.graph.ops:
            now = model.number(0, 0, self.rooms[op.index] * MB)
            row = {now: 1.0, **{v: -mb for v, mb in self._change[op.index].items()}}
            if before is not None:
                row[before] = -1.0
            model.row(row, self._fixed[op.index], self._fixed[op.index])
            before = now
            if self._beside[op.index]:
                late = model.number(1.0)
                model.row({late: 1.0, **{v: -ms for v, ms in self._beside[op.index].items()}},
                          low=-op.seconds * MS)  # fmt: skip

    def solve(
        self, seconds: float = 3600.0, gap: float = 0.01
    ) -> tuple[Decisions, Solution, float]:
        """Decisions, what the solver says, and all of its seconds. Raises NoPlan."""
        began = time.perf_counter()
        solution = self.model.solve(seconds, gap)
        held = {tensor: self._held(tensor, solution) for tensor in self.users}
        chosen = Decisions(
            held, {}, [0.0] * len(self.graph.ops), solution.objective / MS, solution.bound / MS,
            {}, spread=False,
        )  # fmt: skip
        return chosen, solution, time.perf_counter() - began

    def _held(self, tensor: int, solution: Solution) -> Held:
        users, gaps = list(self.users[tensor]), self.gaps[tensor]
        held = Held(users, [True] * len(users), ["op"], [])
        for j, gap in enumerate(gaps):
            away = solution.on(gap.away)
            held.stays.append(not away)
            held.arrives.append("host" if away else None)
            if not away:
                continue
            for g, variable in gap.out.items():
                if solution.on(variable):
                    held.leaves, held.until = j, g
            for h, variable in gap.back.items():
                if solution.on(variable) and h is not None:
                    held.since[j + 1] = h
        held.stays.append(False)
        return held

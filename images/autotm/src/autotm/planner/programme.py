"""Ours: per tensor keep, recompute, offload or both, over a link whose copies span kernels.

Between two points of a tensor's line it is in the arena or not. What leaves joins a queue that the
link drains beside the kernels, and its bytes count until they are gone; what comes back is fetched
ahead, and its bytes count from then on. A kernel waits only where the link is behind. Queues are
counted by the byte, not by the tensor, so the optimum is a bound of what `realise` makes of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotm.graph import ENDS, STAYS, Graph, Machine, aligned
from autotm.planner.counted import Counted
from autotm.planner.model import Aim, Model, Solution
from autotm.planner.points import Limits, Line, Lines, lines_of
from autotm.planner.realise import Decisions
from autotm.planner.variables import Variables
from autotm.planner.wholes import Wholes

IDLE = 1e-4  # of a copy's time, so that nothing moves without need
MS, MB = 1e3, 1e-6  # the programme counts in milliseconds and megabytes


class Programme:
    """The mixed-integer programme of one graph and machine."""

    def __init__(
        self, graph: Graph, machine: Machine, limits: Limits, rooms: Sequence[int] | None = None,
        most: float | None = None, aim: Aim | None = None,
    ) -> None:  # fmt: skip
        """rooms: bytes at each op, where they differ. most: s that a plan takes beyond its ops.

        With `most` copies of whole tensors have an order; plans that take more are left out.
        """
        self.most = most
        self.graph, self.machine, self.limits = graph, machine, limits
        self._rooms = rooms or [machine.capacity] * len(graph.ops)  # bytes, per op
        self.found: Lines = lines_of(graph, limits)
        self.model, self.at = Model(offset=graph.seconds * MS), Variables()
        self._births: dict[int, dict[int, float]] = {}  # slot -> variable -> MB from there on
        self._changes: dict[int, list[tuple[int, dict[int, int]]]] = {}  # slot -> (tensor, same)
        self._fixed: dict[int, float] = {}
        self._out: dict[int, dict[int, float]] = {}  # after op -> variable -> MB
        self._in: dict[int, dict[int, float]] = {}  # before op -> variable -> MB
        self._wholes = Wholes(self.model)
        self.idle = 0.0  # the most that all copies add to the objective
        self._ats: dict[int, list[int]] = {}  # op -> before which ops it may run again
        self._wants()
        for tensor in self.found.lines:
            self._line(tensor)
        self._always()
        self._time()
        if aim is not None:
            self.model.enough, self.model.most = aim.enough * MS, aim.most * MS + self.idle

    def solve(self, seconds: float, gap: float) -> Decisions:
        """The best decisions found in the time, from rounding. Raises NoPlan."""
        return self.read(self.model.dive(seconds, gap))

    def bound(self, seconds: float) -> float:
        """What none of its plans takes less than, in s. Raises NoPlan."""
        return (self.model.bound(seconds) - self.idle) / MS

    def exact(self, seconds: float, gap: float, start: Solution | None = None) -> Decisions:
        """The same by branch and bound alone. Raises NoPlan."""
        return self.read(self.model.solve(seconds, gap, None if start is None else start.values))

    def near(self, chosen: Decisions, seconds: float, gap: float) -> Solution | None:
        """The best that differs from `chosen` in its copies' windows and order alone, or None."""
        return self.model.near(self.at.values(chosen), seconds, gap)

    def _mb(self, tensor: int) -> float:
        return aligned(self.graph.tensors[tensor].bytes, self.machine.align) * MB

    def _change(self, slot: int, tensor: int, terms: dict[int, int]) -> None:
        self._changes.setdefault(slot, []).append((tensor, terms))
        size, row = self._mb(tensor), self._births.setdefault(slot, {})
        for variable, change in terms.items():
            row[variable] = row.get(variable, 0.0) + change * size

    def _wants(self) -> None:
        """A binary for each op that may run again before another."""
        for op, point in sorted(self.found.again):
            cost = self.graph.ops[op].seconds * MS
            self.at.again[op, point] = self.model.binary(cost)
            self._ats.setdefault(op, []).append(point)

    def _line(self, tensor: int) -> None:
        """Presence over the points; slot 2n is just before op n, slot 2n + 1 is op n."""
        line, model, at = self.found.lines[tensor], self.model, self.at
        size, count = self._mb(tensor), len(line.points)
        link = size + self.machine.latency * self.machine.to_host * MB
        back = size + self.machine.latency * self.machine.from_host * MB
        for j in range(count):
            at.there[tensor, j] = model.number(0, 1, 1) if line.need[j] else model.binary()
            if j + 1 < count:
                at.stay[tensor, j] = model.number(0, 1, 1) if line.hold[j] else model.binary()
        leaves: dict[int, list[int]] = {}  # by gap
        loads: dict[int, list[int]] = {}
        for j in range(1, count):
            there, before = at.there[tensor, j], at.stay[tensor, j - 1]
            point, gap = line.points[j], line.gap[j - 1]
            if not line.need[j - 1]:
                model.row({before: 1, at.there[tensor, j - 1]: -1}, high=0)
            if not line.need[j]:
                model.row({before: 1, there: -1}, high=0)
            arrive = {before: 1.0, there: -1.0}
            if self.limits.offload and not line.hold[j - 1]:
                if gap not in leaves:  # of a gap, only its first segment can be left with a copy
                    leave = at.leave[tensor, j - 1] = self._copy(link / self.machine.to_host)
                    model.row({leave: 1, before: 1}, high=1)
                    leaves[gap] = [leave]
                    self._leave(tensor, line, j - 1, size, link)
                load = at.load[tensor, j] = self._copy(back / self.machine.from_host)
                loads.setdefault(gap, []).append(load)
                self._load(tensor, line, j, size, back)
                arrive[load] = 1.0
            if line.again[j]:
                arrive[at.again[line.points[0], point]] = 1.0
            model.row(arrive, low=0)
        for gap, coming in loads.items():
            left = [leave for other, some in leaves.items() if other <= gap for leave in some]
            model.row({**dict.fromkeys(coming, 1.0), **dict.fromkeys(left, -1.0)}, high=0)
        if len(leaves) > 1:
            model.row({leave: 1.0 for some in leaves.values() for leave in some}, high=1)
        self._space(tensor)
        self._inputs(tensor)

    def _leave(self, tensor: int, line: Line, j: int, size: float, link: float) -> None:
        """Out after point `j`, by the byte or as a whole: then its bytes count until some op."""
        leave, begin = self.at.leave[tensor, j], line.points[j]
        if size < self.limits.whole * MB:
            self._out.setdefault(begin, {})[leave] = link
            return
        end = next(
            op for op, need in zip(line.points, line.need, strict=True) if op > begin and need
        )
        gone = self.at.until[tensor, j] = self._wholes.until(begin, end, leave, link)
        self._change(2 * begin + 2, tensor, {leave: 1})
        before: int | None = None
        for op, variable in gone.items():
            self._become(2 * op + 2, variable, before, tensor)
            before = variable

    def _load(self, tensor: int, line: Line, j: int, size: float, link: float) -> None:
        """Back for point `j`, likewise: its bytes count from some op on."""
        load, point = self.at.load[tensor, j], line.points[j]
        if size < self.limits.whole * MB:
            self._in.setdefault(point, {})[load] = link
            return
        begin = max(
            op for op, need in zip(line.points, line.need, strict=True) if op < point and need
        )
        first = self.at.since[tensor, j] = self._wholes.since(begin, point, load, link)
        self._change(2 * point, tensor, {load: -1})
        before: int | None = None
        for op, variable in first.items():
            self._become(2 * op + (op < point), before, variable, tensor)
            before = variable

    def _copy(self, seconds: float) -> int:
        """Whether something is copied; `seconds` in units of MB and bytes per second."""
        cost = IDLE * seconds / MB * MS
        self.idle += cost
        return self.model.number(cost, 0, 1)

    def _space(self, tensor: int) -> None:
        line, at = self.found.lines[tensor], self.at
        now: int | None = None  # the variable that says whether it takes its bytes
        for j, point in enumerate(line.points):
            stay = at.stay.get((tensor, j))
            if j:
                now = self._become(2 * point, now, at.there[tensor, j], tensor)
            if line.need[j]:
                now = self._become(2 * point + 1, now, at.there[tensor, j], tensor)
                now = self._become(2 * point + 2, now, stay, tensor)
            else:
                now = self._become(2 * point + 1, now, stay, tensor)

    def _become(self, slot: int, before: int | None, after: int | None, tensor: int) -> int | None:
        terms: dict[int, int] = {}
        if before is not None:
            terms[before] = -1
        if after is not None:
            terms[after] = terms.get(after, 0) + 1
        self._change(slot, tensor, terms)
        return after

    def _inputs(self, tensor: int) -> None:
        """An op that runs again before `point` finds its movable inputs there.

        Made for that alone, an input takes its bytes until op `point` begins.
        """
        line, at = self.found.lines[tensor], self.at
        place = {point: j for j, point in enumerate(line.points)}
        users = self.graph.uses[tensor]
        spots = {point for user in users for point in self._ats.get(user, ())}
        for point in sorted(spots):
            if point <= line.points[0]:
                continue
            terms: dict[int, float] = {}
            if point in place:
                if line.need[place[point]]:
                    continue
                terms[at.there[tensor, place[point]]] = -1.0
            else:
                segment = line.covers(point)
                if segment is not None:
                    terms[at.stay[tensor, segment]] = -1.0
                own = at.again.get((line.points[0], point))
                if own is not None:
                    terms[own] = -1.0
                    self._change(2 * point, tensor, {own: 1})
                    self._change(2 * point + 1, tensor, {own: -1})
            for user in users:
                again = at.again.get((user, point))
                if again is not None:
                    self.model.row({again: 1.0, **terms}, high=0)

    def _always(self) -> None:
        """What never moves: parameters, inputs, outputs and small tensors."""
        for each in self.graph.tensors:
            if each.id in self.found.lines:
                continue
            begin, end = self.graph.life(each.id)
            end = self.found.last.get(each.id, end)
            slot = 0 if each.kind in STAYS else 2 * begin + 1
            self._fixed[slot] = self._fixed.get(slot, 0.0) + self._mb(each.id)
            if each.kind not in ENDS:
                self._fixed[2 * end + 2] = self._fixed.get(2 * end + 2, 0.0) - self._mb(each.id)

    def _time(self) -> None:
        model, machine = self.model, self.machine
        out_rate, in_rate = machine.to_host * MB / MS, machine.from_host * MB / MS
        again: dict[int, dict[int, float]] = {}
        for (repeated, point), variable in self.at.again.items():
            again.setdefault(point, {})[variable] = self.graph.ops[repeated].seconds * MS
        memory = queue = ahead = None
        self.waits = []
        for n, op in enumerate(self.graph.ops):
            room = self._rooms[n] * MB
            wait = model.number(1.0)
            self.waits.append(wait)
            spare = {wait: 1.0, **again.get(n, {})}
            took = op.seconds * MS
            early_out, late_out = model.number(), model.number(0, 0, out_rate * took)
            early_in, late_in = model.number(), model.number(0, 0, in_rate * took)
            before, beside = ([early_out], [early_in]), ([late_out], [late_in])
            self._wholes.share(before, beside, spare, took)
            self._shared(*before, spare, 0.0, out_rate, in_rate)
            self._shared(*beside, {}, took, out_rate, in_rate)
            # waiting to leave, when op n begins and when it has ended
            waiting, after = model.number(), model.number()
            terms = {waiting: 1.0, early_out: 1.0}
            for variable, size in self._out.get(n - 1, {}).items():
                terms[variable] = terms.get(variable, 0.0) - size
            if queue is not None:
                terms[queue] = -1.0
            model.row(terms, 0, 0)
            model.row({after: 1, waiting: -1, late_out: 1}, 0, 0)
            # fetched ahead of need, likewise
            middle, end = model.number(), model.number()
            terms = {middle: 1.0, early_in: -1.0}
            for variable, size in self._in.get(n, {}).items():
                terms[variable] = terms.get(variable, 0.0) + size
            if ahead is not None:
                terms[ahead] = -1.0
            model.row(terms, 0, 0)
            model.row({end: 1, middle: -1, late_in: -1}, 0, 0)
            for slot in (2 * n, 2 * n + 1):
                now = model.number(0, 0, room)
                change = {now: 1.0}
                for variable, size in self._births.get(slot, {}).items():
                    change[variable] = change.get(variable, 0.0) - size
                if memory is not None:
                    change[memory] = -1.0
                fixed = self._fixed.get(slot, 0.0)
                model.row(change, fixed, fixed)
                memory = now
                if slot % 2 or n in again:
                    full = {now: 1.0, waiting: 1.0, (end if slot % 2 else middle): 1.0}
                    model.row(full, high=room)
            queue, ahead = after, end
        self._counted()
        self._wholes.rows()
        if self.most is not None:
            self._wholes.ordered(self.most * MS, out_rate, in_rate, machine.duplex)

    def _counted(self) -> None:
        """Large tensors fit a whole number of times, wherever bytes are counted."""
        tensors, align = self.graph.tensors, self.machine.align
        size = {each: aligned(tensors[each].bytes, align) for each in self.found.lines}
        large = {t: each for t, each in size.items() if each >= self.limits.whole}
        counted, fixed = Counted(self.model, large), 0.0
        for slot in range(2 * len(self.graph.ops)):
            fixed += self._fixed.get(slot, 0.0)
            for tensor, terms in self._changes.get(slot, ()):
                counted.change(tensor, terms)
            op = self.graph.ops[slot // 2]
            forced = {each for each in op.operands if each in size} if slot % 2 else set()
            left = self._rooms[slot // 2] - round(fixed / MB) - sum(size[t] for t in forced)
            counted.rows(left, forced)

    def _shared(
        self, out: list[int], back: list[int], spare: dict[int, float], took: float,
        out_rate: float, in_rate: float,
    ) -> None:  # fmt: skip
        """What the link carries in some time: each way by itself, or both in turn."""
        outs = dict.fromkeys(out, 1 / out_rate)
        backs = dict.fromkeys(back, 1 / in_rate)
        for terms in (outs, backs) if self.machine.duplex else (outs | backs,):
            if spare or len(terms) > 1:  # else its bound says it
                self.model.row({**terms, **{k: -v for k, v in spare.items()}}, high=took)

    def read(self, solution: Solution) -> Decisions:
        """What a solution of the programme decides."""
        starts = {} if self.most is None else self._wholes.starts
        held, again = self.at.read(self.found.lines, solution, starts)
        waits = [max(solution.values[wait], 0.0) / MS for wait in self.waits]
        total, bound = solution.objective / MS, (solution.bound - self.idle) / MS
        return Decisions(held, again, waits, total, bound, self.found.last)

"""Turns decisions into a plan: steps, stays with their windows of copies, addresses."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from autotm.graph import ENDS, STAYS, Choice, Graph, Machine, Plan, Stay, aligned
from autotm.planner.model import NoPlan
from autotm.planner.packing import height_at_least, pack

_AT = attrgetter("at")


@dataclass
class Held:
    """What is decided for one tensor: per point, how it is there, and what follows.

    arrives: None, or `op` or `host` where it has to be brought for that point. stays: it remains
    in the arena until the next point. need: the op at the point reads or writes it; else it is
    there for what is made again before that op. leaves: the point after which it is copied out.
    until, since: ops beside which copies run: the last one of the copy out, and by point the first
    one of the copy back. at: by point, when its copy starts, where copies have an order.
    """

    points: list[int]
    need: list[bool]
    arrives: list[str | None]
    stays: list[bool]
    leaves: int | None = None
    until: int | None = None
    since: dict[int, int] = field(default_factory=dict)
    at: dict[int, float] = field(default_factory=dict)


@dataclass
class Decisions:
    """A solved programme: choices, ops that are run again before an op, waits (s) before an op.

    last: until which op a tensor without a line lives, where that is not its natural end.
    spread: copies may run beside as many steps as they take; else `until` and `since` say it.
    """

    held: dict[int, Held]
    again: Mapping[int, list[int]]
    waits: list[float]
    seconds: float
    bound: float
    last: dict[int, int]
    spread: bool = True


@dataclass
class Window:
    """A stay under construction, copied out or back: steps `until`, `since`; in order of `at`."""

    stay: Stay
    out: bool = False
    back: bool = False
    until: int | None = None
    since: int | None = None
    at: float | None = None


class Schedule:
    """Steps and stays of decisions, before addresses."""

    def __init__(self, graph: Graph, machine: Machine, chosen: Decisions) -> None:
        self.graph, self.machine, self.chosen = graph, machine, chosen
        self.steps: list[int] = []
        self.first: list[int] = []  # per op, the step of its first run
        self.rerun: dict[tuple[int, int], int] = {}  # (op, before op) -> step
        self._again: dict[int, list[int]] = {}
        for n in range(len(graph.ops)):
            for op in chosen.again.get(n, ()):
                self.rerun[op, n] = len(self.steps)
                self._again.setdefault(op, []).append(len(self.steps))
                self.steps.append(op)
            self.first.append(len(self.steps))
            self.steps.append(n)
        self.windows: list[Window] = []
        self._taken: set[tuple[int, int]] = set()  # (tensor, step) that has a stay from its op
        for tensor, held in chosen.held.items():
            self._line(tensor, held)
        self._always()
        self._scratch()
        if chosen.spread:
            self._spread()

    def size(self, tensor: int) -> int:
        """Bytes in the arena."""
        return aligned(self.graph.tensors[tensor].bytes, self.machine.align)

    def _readers(self, tensor: int, after: int, point: int) -> list[int]:
        """Steps of ops made again after op `after` and before op `point` that read the tensor."""
        low, high = self.first[after], self.first[point]
        users = self.graph.uses[tensor]
        return [step for user in users for step in self._again.get(user, ()) if low < step < high]

    def _line(self, tensor: int, held: Held) -> None:
        own = self.graph.producer[tensor]
        assert own is not None
        begin, end, source, arrived = 0, 0, "op", 0
        for j, point in enumerate(held.points):
            stayed = j > 0 and held.stays[j - 1]
            after = held.points[j - 1] if stayed else point - 1
            readers = self._readers(tensor, after, point) if j else []
            if held.arrives[j] is not None:
                source, arrived = held.arrives[j] or "", j
                begin = min([self.first[point], *readers])
                if source == "op":
                    begin = self.rerun[own, point] if j else self.first[point]
                end = begin
            elif not stayed:
                continue
            end = max([end, *readers, *([self.first[point]] if held.need[j] else [])])
            if held.stays[j]:
                continue
            stay = Stay(tensor, 0, begin, end, source, begin)  # type: ignore[arg-type]
            leaves = held.leaves == j
            if leaves:
                stay = replace(stay, saved=end)
            window = Window(stay, leaves, source == "host")
            if leaves and held.until is not None:
                window.until = max(end, self.first[held.until])
                window.at = held.at.get(j)
            if source == "host" and arrived in held.since:
                window.since = min(begin, self.first[held.since[arrived]])
                window.at = held.at.get(arrived)
            if not self.chosen.spread:
                window.stay = replace(
                    stay, end=stay.end if window.until is None else window.until,
                    begin=stay.begin if window.since is None else window.since,
                )  # fmt: skip
            self.windows.append(window)
            if source == "op":
                self._taken.add((tensor, begin))

    def _always(self) -> None:
        final = len(self.steps) - 1
        for each in self.graph.tensors:
            if each.id in self.chosen.held:
                continue
            if each.kind in STAYS:
                self.windows.append(Window(Stay(each.id, 0, 0, final, "start", 0)))
                continue
            first, last = self.graph.life(each.id)
            begin = self.first[first]
            end = self.first[max(last, self.chosen.last.get(each.id, last))]
            end = final if each.kind in ENDS else end
            self.windows.append(Window(Stay(each.id, 0, begin, end, "op", begin)))
            self._taken.add((each.id, begin))

    def _scratch(self) -> None:
        """Outputs of repeated ops: read by another one made again for the same op, or by nobody."""
        for (op, point), step in self.rerun.items():
            for tensor in self.graph.ops[op].outputs:
                if (tensor, step) in self._taken:
                    continue
                readers = [each for each in self._readers(tensor, point - 1, point) if each > step]
                last = max([step, *readers])
                if any(w.stay.begin <= step and last <= w.stay.end for w in self._of(tensor)):
                    last = step
                self.windows.append(Window(Stay(tensor, 0, step, last, "op", step)))

    def _of(self, tensor: int) -> Iterable[Window]:
        if not hasattr(self, "_index"):
            self._index: dict[int, list[Window]] = {}
            for window in self.windows:
                self._index.setdefault(window.stay.tensor, []).append(window)
        return self._index.get(tensor, ())

    def _spread(self) -> None:
        """Let copies run as long as the link takes them: out from the front, in from the back."""
        begins: list[float] = []
        ends: list[float] = []
        now = 0.0
        for index in self.steps:
            waited = index < len(self.chosen.waits) and self.first[index] == len(begins)
            now += self.chosen.waits[index] if waited else 0.0
            begins.append(now)
            now += self.graph.ops[index].seconds
            ends.append(now)
        free, last = 0.0, 0
        outs = sorted((w for w in self.windows if w.out), key=lambda w: w.stay.end)
        while outs:
            start = max(free, ends[outs[0].stay.end])
            due = min((w for w in outs if w.at is not None), key=_AT, default=outs[0])
            ready = [w for w in outs if ends[w.stay.end] <= start and w.at in (None, due.at)]
            window = min(ready or [due], key=lambda w: (w.until is None, w.until))
            start = max(start, ends[window.stay.end])
            outs.remove(window)
            stay = window.stay
            saved = stay.end
            if window.until is not None or saved < last:  # it may have let another go first
                saved = max(saved, bisect_right(ends, start) - 1)
            last = saved
            free = start + self._seconds(stay, self.machine.to_host)
            after = bisect_left(begins, free - 1e-12)  # the first step that begins when it is out
            coming = min(w.stay.begin for w in self._of(stay.tensor) if w.stay.begin > stay.end)
            limit = coming - 1 if window.until is None else window.until
            end = max(stay.end, min(after - 1, coming - 1, limit))
            window.stay = replace(stay, saved=min(saved, end), end=end)
        latest = now
        backs = sorted((w for w in self.windows if w.back), key=lambda w: -w.stay.ready)
        while backs:
            stop = min(latest, begins[backs[0].stay.ready])
            due = max((w for w in backs if w.at is not None), key=_AT, default=backs[0])
            ready = [w for w in backs if begins[w.stay.ready] >= stop and w.at in (None, due.at)]
            window = max(ready or [due], key=lambda w: w.since or 0)
            stop = min(stop, begins[window.stay.ready])
            backs.remove(window)
            stay = window.stay
            latest = stop - self._seconds(stay, self.machine.from_host)
            begin = bisect_right(ends, latest + 1e-12)  # after the last step that has ended by then
            gone = max(w.stay.end for w in self._of(stay.tensor) if w.stay.end < stay.ready)
            limit = window.since or 0
            window.stay = replace(stay, begin=min(stay.ready, max(begin, gone + 1, limit)))

    def _seconds(self, stay: Stay, rate: float) -> float:
        return self.machine.latency + self.graph.tensors[stay.tensor].bytes / rate

    def fit(self, room: int) -> None:
        """Shorten windows of copies until the stays of every step are within `room` bytes."""
        count = len(self.steps)
        change = [0] * (count + 1)
        for window in self.windows:
            change[window.stay.begin] += self.size(window.stay.tensor)
            change[window.stay.end + 1] -= self.size(window.stay.tensor)
        live, outs, backs = 0, self._starts(True), self._starts(False)
        going: list[Window] = []
        coming: list[Window] = []
        for step in range(count):
            live += change[step]
            going = [w for w in going + outs.get(step, []) if w.stay.end >= step]
            coming = [w for w in coming + backs.get(step, []) if w.stay.ready > step]
            while live > room:
                late = max(coming, key=lambda w: w.stay.ready, default=None)
                old = next((w for w in going if (w.stay.saved or 0) < step), None)
                if late is not None and (old is None or self._cheaper(late, old, step)):
                    size = self.size(late.stay.tensor)
                    late.stay = replace(late.stay, begin=step + 1)
                    change[step + 1] += size
                    coming.remove(late)
                    if step + 1 < late.stay.ready:
                        backs.setdefault(step + 1, []).append(late)
                elif old is not None:
                    size = self.size(old.stay.tensor)
                    change[old.stay.end + 1] += size
                    old.stay = replace(old.stay, end=step - 1)
                    going.remove(old)
                else:
                    raise NoPlan(f"step {step} needs {live} bytes of {room}, whatever is moved")
                live -= size

    def _cheaper(self, late: Window, old: Window, step: int) -> bool:
        """Whether to fetch later costs less than to wait for what is leaving: who is far off."""
        return late.stay.ready - step > old.stay.end - step

    def _starts(self, out: bool) -> dict[int, list[Window]]:
        found: dict[int, list[Window]] = {}
        for w in sorted(self.windows, key=lambda w: w.stay.saved or 0):
            if out and w.out and w.stay.saved is not None and w.stay.end > w.stay.saved:
                found.setdefault(w.stay.saved + 1, []).append(w)
            if not out and w.back and w.stay.begin < w.stay.ready:
                found.setdefault(w.stay.begin, []).append(w)
        return found

    def placed(self, room: int, until: float) -> tuple[list[Stay], int, int]:
        """Stays with addresses, the height they reach, and the least that any packing reaches."""
        boxes = [(w.stay.begin, w.stay.end, self.size(w.stay.tensor)) for w in self.windows]
        addresses, height = pack(boxes, room, until)
        stays = [
            replace(w.stay, address=address)
            for w, address in zip(self.windows, addresses, strict=True)
        ]
        return stays, height, height_at_least(boxes)


def realise(
    graph: Graph, machine: Machine, chosen: Decisions, formulation: str, rounds: int = 6,
    until: float = float("inf"),
) -> Plan:  # fmt: skip
    """Stays, windows and addresses within the machine's capacity. Raises NoPlan.

    Where the packing is too high, copies are given less time, so that less lies beside each other,
    as far as that goes, unless it is `until` (of `time.perf_counter`).
    """
    room = machine.capacity
    schedule = Schedule(graph, machine, chosen)
    for turn in range(rounds):
        try:
            schedule.fit(room)
        except NoPlan:
            if not turn:
                raise
            break
        stays, height, least = schedule.placed(machine.capacity, until)
        if height <= machine.capacity:
            return Plan(
                graph.name, formulation, tuple(schedule.steps), tuple(stays),
                _choices(graph, schedule), chosen.seconds, height, chosen.bound, 0.0, 0.0,
                {"fragmentation": height / max(least, 1) - 1.0},
            )  # fmt: skip
        if not chosen.spread or time.perf_counter() > until:
            break
        room -= max(height - machine.capacity, machine.capacity // 1600 << turn)
    raise NoPlan(
        f"the stays do not pack into {machine.capacity} bytes, but into {height}",
        over=height - machine.capacity,
        high=[s.tensor for s in stays if s.address + schedule.size(s.tensor) > machine.capacity],
    )


def _choices(graph: Graph, schedule: Schedule) -> tuple[Choice, ...]:
    moved = {w.stay.tensor for w in schedule.windows if w.back}
    made = {
        tensor for op, _ in schedule.rerun for tensor in graph.ops[op].outputs
        if any(w.stay.source == "op" and w.stay.begin > schedule.first[op]
               and w.stay.end > w.stay.begin for w in schedule._of(tensor))
    }  # fmt: skip
    words: dict[tuple[bool, bool], Choice] = {
        (False, False): "keep", (True, False): "offload", (False, True): "recompute",
        (True, True): "both",
    }  # fmt: skip
    return tuple(words[each.id in moved, each.id in made] for each in graph.tensors)

"""A plan as a program: steps with fixed addresses, copies, and who waits for what.

Three lanes run it (`lanes.py`). An order between two lanes exists only where it is written here:

- a copy out starts after the step that the plan names;
- a copy in starts after the step before its stay, and after that tensor's copy out;
- whoever writes bytes of the arena that a copy out still reads waits for that copy;
- a step waits for the copies in of what it reads.

Each lane keeps its own order, so that a lane that waited for a copy waited for all before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotm.check import PlanError
from autotm.executor.calls import Capture
from autotm.graph import Graph, Plan, Stay, aligned

HOST_ALIGN = 4096


@dataclass(frozen=True)
class Step:
    """One run of op `op`. reads, writes: addresses of tensors in the arena.

    again: it ran before, and is recomputed. waits: copies that must have ended before it.
    """

    op: int
    reads: dict[int, int]
    writes: dict[int, int]
    again: bool
    waits: tuple[int, ...]


@dataclass(frozen=True)
class Copy:
    """Copy number `index`, `out` to the host or in from it, of a tensor.

    address, host: where in the arena and in the host arena. after: the step after whose end it
    may start. waits: copies that must have ended before it.
    """

    index: int
    out: bool
    tensor: int
    address: int
    host: int
    bytes: int
    after: int
    waits: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """What is run in an iteration: `steps[:split]`, then the loss is known, then the rest."""

    steps: tuple[Step, ...]
    copies: tuple[Copy, ...]
    split: int
    arena_bytes: int
    host_bytes: int

    @property
    def waits(self) -> list[bool]:
        """Whether a step waits for a copy."""
        return [bool(step.waits) for step in self.steps]

    def copies_after(self) -> dict[int, tuple[Copy, ...]]:
        """For each step the copies that may start at its end, in order."""
        found: dict[int, list[Copy]] = {}
        for copy in self.copies:
            found.setdefault(copy.after, []).append(copy)
        return {step: tuple(copies) for step, copies in found.items()}


def compile_plan(capture: Capture, graph: Graph, plan: Plan) -> Program:
    """The program of a plan for `graph`, the captured one with the bytes that the arena holds.

    Raises PlanError where a step reads or writes what has no place, or its workspace moves.
    """
    rooms = set(capture.rooms.values())
    for _, stay in plan.copies():
        if stay.tensor in rooms:
            raise PlanError(f"the {graph.tensors[stay.tensor].name} moves, and it cannot")
    return _Compiling(capture, graph, plan).result()


class _Compiling:
    def __init__(self, capture: Capture, graph: Graph, plan: Plan) -> None:
        self._capture = capture
        self._graph = graph
        self._plan = plan
        self._stays = [stay for stay in plan.stays if graph.tensors[stay.tensor].bytes]
        self._written = {
            (stay.tensor, stay.begin): stay for stay in self._stays if stay.source == "op"
        }
        self._waited = {"compute": -1, "in": -1}  # the last copy out that a lane waited for
        self._outs: list[tuple[int, int, int, int]] = []  # (copy, low, high, last step)
        self._host: dict[int, int] = {}

    def result(self) -> Program:
        copies, arrivals = self._copies()
        steps = []
        seen: set[int] = set()
        for number, op in enumerate(self._plan.steps):
            steps.append(self._step(number, op, op in seen, arrivals.get(number, [])))
            seen.add(op)
        host = sum(aligned(self._graph.tensors[each].bytes, HOST_ALIGN) for each in self._host)
        return Program(tuple(steps), tuple(copies), self._split(), self._plan.peak_bytes, host)

    def _bytes(self, stay: Stay) -> int:
        return self._graph.tensors[stay.tensor].bytes

    def _copies(self) -> tuple[list[Copy], dict[int, list[int]]]:
        """All copies as they may start; and for each step the copies that it awaits."""
        copies: list[Copy] = []
        arrivals: dict[int, list[int]] = {}
        saved: dict[int, int] = {}
        offset = 0
        for way, stay in self._plan.copies():
            if not self._bytes(stay):
                continue
            index, low, inwards = len(copies), stay.address, way == "in"
            if inwards:
                if stay.tensor not in saved:
                    raise PlanError(f"tensor {stay.tensor} comes back before it has left")
                first = self._overlap(stay, "in")
                waits = sorted({saved[stay.tensor]} | ({first} if first is not None else set()))
                arrivals.setdefault(stay.ready, []).append(index)
            else:
                waits = []
                saved[stay.tensor] = index
                self._host[stay.tensor] = offset
                offset += aligned(self._bytes(stay), HOST_ALIGN)
                self._outs.append((index, low, low + self._bytes(stay), stay.end))
            after = stay.begin - 1 if inwards or stay.saved is None else stay.saved
            copies.append(Copy(index, not inwards, stay.tensor, low, self._host[stay.tensor],
                               self._bytes(stay), after, tuple(waits)))  # fmt: skip
        return copies, arrivals

    def _overlap(self, stay: Stay, lane: str) -> int | None:
        """The last copy out that still may read bytes of a stay and that a lane must await."""
        low, high = stay.address, stay.address + self._bytes(stay)
        known = self._waited[lane]
        found = max(
            (
                index
                for index, begin, end, last in self._outs
                if index > known and begin < high and low < end and last < stay.begin
            ),
            default=None,
        )
        if found is not None:
            self._waited[lane] = found
        return found

    def _step(self, number: int, op: int, again: bool, arrivals: list[int]) -> Step:
        node = self._graph.ops[op]
        waits = set(arrivals)
        reads, writes = {}, {}
        for tensor in node.inputs:
            if self._graph.tensors[tensor].bytes:
                try:
                    reads[tensor] = self._plan.read_at(tensor, number).address
                except KeyError as error:
                    raise PlanError(f"step {number} ({node.name}): {error.args[0]}") from error
        for tensor in node.outputs:
            if self._graph.tensors[tensor].bytes:
                stay = self._written.get((tensor, number))
                if stay is None:
                    raise PlanError(f"step {number} ({node.name}) has no place for {tensor}")
                writes[tensor] = stay.address
                before = self._overlap(stay, "compute")
                if before is not None:
                    waits.add(before)
        return Step(op, reads, writes, again, tuple(sorted(waits)))

    def _split(self) -> int:
        """How many steps run before the loss is given back: up to the first of the backward."""
        calls = self._capture.calls
        for number, op in enumerate(self._plan.steps):
            if not calls[op].forward:
                missing = {call for call, each in enumerate(calls) if each.forward}
                if missing - set(self._plan.steps[:number]):
                    raise PlanError("the plan begins the backward before the forward has ended")
                return number
        return len(self._plan.steps)

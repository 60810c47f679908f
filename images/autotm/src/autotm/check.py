"""Replays a plan and says what is wrong with it; knows nothing of the planners."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from autotm.graph import ENDS, STAYS, Graph, Machine, Plan, Stay, aligned


class PlanError(ValueError):
    """A plan that must not run. One sentence."""


@dataclass
class Replay:
    """What a replay finds: times in s, bytes; `starts` and `ends` of every step in s."""

    seconds: float = 0.0
    peak_bytes: int = 0
    live_bytes: int = 0
    out_bytes: int = 0
    in_bytes: int = 0
    recompute_seconds: float = 0.0
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    copies: list[tuple[str, int, float, float]] = field(default_factory=list)


def check(graph: Graph, machine: Machine, plan: Plan) -> Replay:
    """Run `plan` in mind: every read, write, copy and address. Raises PlanError."""
    _steps(graph, plan)
    _reads(graph, plan)
    peak, live = _addresses(graph, machine, plan)
    found = _clock(graph, machine, plan)
    found.peak_bytes, found.live_bytes = peak, live
    if peak != plan.peak_bytes:
        raise PlanError(f"the plan says {plan.peak_bytes} bytes and takes {peak}")
    return found


def _steps(graph: Graph, plan: Plan) -> None:
    done = 0
    for step, index in enumerate(plan.steps):
        if not 0 <= index <= done or index >= len(graph.ops):
            raise PlanError(f"step {step} runs op {index} before op {done}")
        if index < done and not graph.ops[index].recomputable:
            raise PlanError(f"step {step} repeats op {index}, which cannot be repeated")
        done += index == done
    if done < len(graph.ops):
        raise PlanError(f"op {done} never runs")


def _reads(graph: Graph, plan: Plan) -> None:
    """Every operand is where its op reads or writes it; copies have something to copy."""
    writes = {(stay.tensor, stay.begin) for stay in plan.stays if stay.source == "op"}
    ran: set[int] = set()
    for step, index in enumerate(plan.steps):
        op = graph.ops[index]
        for tensor in op.inputs:
            try:
                plan.read_at(tensor, step)
            except KeyError:
                if not op.placed or not _in_slow(graph, plan, tensor, step):
                    raise PlanError(
                        f"step {step} ({op.name}) reads tensor {tensor}, away"
                    ) from None
        for tensor in op.outputs:
            slow = op.placed and index not in ran
            if (tensor, step) not in writes and not slow:
                raise PlanError(f"step {step} ({op.name}) has no place for tensor {tensor}")
            writes.discard((tensor, step))
        ran.add(index)
    if writes:
        raise PlanError(f"no op writes tensor {min(writes)[0]} at step {min(writes)[1]}")
    last = len(plan.steps) - 1
    for each in graph.tensors:
        stays = plan.by_tensor.get(each.id, ())
        _stays_of(each.id, stays, _made_slow(graph, plan, each.id), len(plan.steps))
        if any(stay.source == "start" for stay in stays) and each.kind not in STAYS:
            raise PlanError(f"tensor {each.id} is not there before the first step")
        there = plan.steps and any(stay.end == last for stay in stays)
        if each.kind in ENDS and not there and not all(op.placed for op in graph.ops):
            raise PlanError(f"tensor {each.id} ({each.kind}) is away after the last step")


def _stays_of(tensor: int, stays: tuple[Stay, ...], saved: bool, steps: int) -> None:
    freed = -1
    for stay in stays:
        if not 0 <= stay.begin <= stay.ready <= stay.end < steps:
            raise PlanError(f"a stay of tensor {tensor} has no order: {stay}")
        if stay.source == "start" and stay.begin:
            raise PlanError(f"tensor {tensor} is said to start at step {stay.begin}")
        if stay.source != "host" and stay.ready != stay.begin:
            raise PlanError(f"tensor {tensor} is read from its op at step {stay.begin}")
        if stay.source == "host" and not (saved and freed < stay.begin):
            raise PlanError(f"tensor {tensor} comes back at step {stay.begin}, but was never saved")
        if stay.saved is not None:
            if saved:
                raise PlanError(f"tensor {tensor} is saved twice")
            if not stay.begin <= stay.saved <= stay.end:
                raise PlanError(f"tensor {tensor} is saved while it is away: {stay}")
            saved, freed = True, stay.end


def _made_slow(graph: Graph, plan: Plan, tensor: int) -> bool:
    """Whether a kernel writes the tensor to slow memory itself, or it begins there."""
    producer = graph.producer[tensor]
    stays = plan.by_tensor.get(tensor, ())
    if producer is None:
        return not any(stay.source == "start" for stay in stays)
    return bool(graph.ops[producer].placed) and not any(stay.source == "op" for stay in stays)


def _in_slow(graph: Graph, plan: Plan, tensor: int, step: int) -> bool:
    stays = plan.by_tensor.get(tensor, ())
    return _made_slow(graph, plan, tensor) or any(
        stay.saved is not None and stay.end < step for stay in stays
    )


def _addresses(graph: Graph, machine: Machine, plan: Plan) -> tuple[int, int]:
    """The highest end of a stay, and the most bytes of stays at a step."""
    begins: dict[int, list[Stay]] = {}
    ends: dict[int, list[Stay]] = {}
    peak = live = most = 0
    for stay in plan.stays:
        size = aligned(graph.tensors[stay.tensor].bytes, machine.align)
        if stay.address % machine.align or stay.address < 0:
            raise PlanError(f"tensor {stay.tensor} lies at address {stay.address}")
        if stay.address + size > machine.capacity:
            raise PlanError(f"tensor {stay.tensor} ends at {stay.address + size}, over the cap")
        peak = max(peak, stay.address + size)
        if size:
            begins.setdefault(stay.begin, []).append(stay)
            ends.setdefault(stay.end, []).append(stay)
    active: list[tuple[int, int, int]] = []
    for step in range(len(plan.steps)):
        for stay in begins.get(step, ()):
            size = aligned(graph.tensors[stay.tensor].bytes, machine.align)
            new = (stay.address, stay.address + size, stay.tensor)
            place = bisect_left(active, new)
            for other in active[max(place - 1, 0) : place + 1]:
                if other[0] < new[1] and new[0] < other[1]:
                    raise PlanError(f"tensors {other[2]} and {new[2]} overlap at step {step}")
            insort(active, new)
            live += size
        most = max(most, live)
        for stay in ends.get(step, ()):
            size = aligned(graph.tensors[stay.tensor].bytes, machine.align)
            active.remove((stay.address, stay.address + size, stay.tensor))
            live -= size
    return peak, most


def _clock(graph: Graph, machine: Machine, plan: Plan) -> Replay:
    """Three streams: compute, copies out, copies in (one for both where the link is not duplex)."""
    found = Replay()
    issued: dict[int, list[tuple[str, Stay]]] = {}
    for way, stay in plan.copies():
        at = stay.begin - 1 if way == "in" else stay.saved
        assert at is not None
        issued.setdefault(at, []).append((way, stay))
    waits: dict[int, float] = {}  # step -> end of the copies that it reads
    pending: list[tuple[int, int, int, float]] = []  # bytes that a copy out still reads
    begun: dict[int, list[Stay]] = {}
    for stay in plan.stays:
        begun.setdefault(stay.begin, []).append(stay)
    free = {"out": 0.0, "in": 0.0}
    now, ran = 0.0, 0

    def reserve(stay: Stay) -> float:
        low, high = stay.address, stay.address + graph.tensors[stay.tensor].bytes
        return max((end for a, b, _, end in pending if a < high and low < b), default=0.0)

    def copy(way: str, stay: Stay) -> None:
        size = graph.tensors[stay.tensor].bytes
        lane = way if machine.duplex else "out"
        start = max(free[lane], now, reserve(stay) if way == "in" else 0.0)
        rate = machine.from_host if way == "in" else machine.to_host
        free[lane] = start + machine.latency + size / rate
        found.copies.append((way, stay.tensor, start, free[lane]))
        if way == "in":
            found.in_bytes += size
            waits[stay.ready] = max(waits.get(stay.ready, 0.0), free[lane])
        else:
            found.out_bytes += size
            pending.append((stay.address, stay.address + size, stay.end, free[lane]))

    for step, index in enumerate(plan.steps):
        for way, stay in issued.get(step - 1, ()):
            copy(way, stay)
        written = (reserve(stay) for stay in begun.get(step, ()) if stay.source == "op")
        now = max([now, waits.get(step, 0.0), *written])
        pending = [each for each in pending if each[3] > now]
        seconds = _seconds(graph, plan, step, index)
        found.starts.append(now)
        now += seconds
        found.ends.append(now)
        if index < ran:
            found.recompute_seconds += seconds
        ran = max(ran, index + 1)
    for way, stay in issued.get(len(plan.steps) - 1, ()):
        copy(way, stay)
    found.seconds = max(now, *free.values())
    return found


def _seconds(graph: Graph, plan: Plan, step: int, index: int) -> float:
    op = graph.ops[index]
    if not op.placed:
        return op.seconds
    mask = 0
    for bit, tensor in enumerate(op.operands):
        stays = plan.by_tensor.get(tensor, ())
        if not any(stay.begin <= step <= stay.end for stay in stays):
            mask |= 1 << bit
    return op.placed[mask]

"""What a fit did, on a page: what moves, what is made again, what it costs, what was measured."""

from __future__ import annotations

from dataclasses import dataclass

from autotm.check import check
from autotm.executor.calls import Capture
from autotm.graph import Graph, Machine, Plan

TOP = 8


@dataclass(frozen=True)
class Measurement:
    """Seconds of whole iterations; peaks in bytes, None where there is nothing to ask.

    allocated: PyTorch's allocator, above what was allocated before and with the arena. driver: the
    device's used memory, of all processes. differ: gradients that are not the plain run's, bit for
    bit; None where the plain run does not fit. unsteady: those of them that the plain run itself
    does not repeat, and that are close to its own.
    """

    seconds: tuple[float, ...]
    arena: int
    allocated: int | None
    driver: int | None
    differ: tuple[str, ...] | None
    unsteady: tuple[str, ...] = ()

    @property
    def void(self) -> str:
        """Why these times count for nothing, or nothing."""
        if self.differ is None:
            return "void: the gradients are not shown to be the plain run's, which does not fit"
        wrong = [name for name in self.differ if name not in self.unsteady]
        return f"void: {len(wrong)} gradients are not the plain run's" if wrong else ""

    @property
    def best(self) -> float:
        return min(self.seconds)


def size(count: float) -> str:
    """Bytes with a unit, powers of ten."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(count) >= limit:
            return f"{count / limit:.3g} {unit}"
    return f"{count:.0f} B"


def enough(count: int) -> str:
    """The next size of three digits: what is written so is no less."""
    step = 10 ** max(0, len(str(count)) - 3)
    return size(-(-count // step) * step)


def seconds(time: float) -> str:
    return f"{time:.3g} s" if time >= 1 else f"{time * 1e3:.3g} ms"


def page(
    found: Capture, graph: Graph, machine: Machine, plan: Plan, budget: int, outside: int,
    measurement: Measurement | None,
) -> str:  # fmt: skip
    """The report as plain text."""
    replay = check(graph, machine, plan)
    moved = _moved(graph, plan)
    again = _again(plan)
    handed = [each.bytes for each in found.graph.tensors if each.kind == "handed"]
    forward = sum(
        op.seconds for op, call in zip(graph.ops, found.calls, strict=True) if call.forward
    )
    lines = [
        f"{graph.name}: {len(graph.ops)} operators, {size(found.graph.peak_bytes)} needed at a "
        f"time, fitted into {size(budget)}",
        f"  outside the arena  {size(found.resident_bytes)} parameters, buffers, inputs, gradients",
        f"  workspace          {size(outside)} at most"
        + (
            f", and in the arena that of {len(found.rooms)} operators"
            if found.device.type == "cuda"
            else " (results only; a CPU does not tell more)"
        ),
        f"  handed on          {len(handed)} gradients to the next operator, {size(sum(handed))}",
        f"  arena              {size(plan.peak_bytes)} of {size(machine.capacity)}",
        f"  leave and return   {len(moved)} tensors, {size(replay.out_bytes)} out, "
        f"{size(replay.in_bytes)} in",
        f"  made again         {len(plan.steps) - len(graph.ops)} operators, "
        f"{seconds(replay.recompute_seconds)}",
        f"  link               {machine.to_host / 1e9:.3g} GB/s out, "
        f"{machine.from_host / 1e9:.3g} GB/s in; while the forward runs "
        f"{size(machine.to_host * forward)} can leave",
        "",
        f"  time     predicted {seconds(replay.seconds)}, uncapped {seconds(graph.seconds)}"
        f" ({replay.seconds / graph.seconds if graph.seconds else 1:.3f} times), no plan is below "
        f"{seconds(plan.bound)} (gap {plan.gap:.2%}, solved in {seconds(plan.solve_seconds)})",
    ]
    lines += _measured(plan, replay.seconds, measurement)
    lines += _table("leave", [(graph.tensors[each].name, graph.tensors[each].bytes, size)
                              for each in moved])  # fmt: skip
    lines += _table("made again", [(graph.ops[op].name, graph.ops[op].seconds * times, seconds)
                                   for op, times in again.items()])  # fmt: skip
    return "\n".join(lines) + "\n"


def _measured(plan: Plan, expected: float, found: Measurement | None) -> list[str]:
    if found is None or not found.seconds:
        return ["  measured nothing yet: call measure()"]
    error = 100 * (expected - found.best) / found.best
    peaks = [f"arena {size(found.arena)} (predicted {size(plan.peak_bytes)})"]
    if found.allocated is not None:
        peaks.append(f"allocator {size(found.allocated)}")
    if found.driver is not None:
        peaks.append(f"driver {size(found.driver)}")
    if found.differ is None:
        equal = "not compared: the plain run does not fit"
    elif not found.void and found.unsteady:
        equal = f"bit for bit, but for {len(found.unsteady)} that the plain run does not repeat"
    elif found.differ:
        equal = f"DIFFER from the plain run: {', '.join(found.differ)}"
    else:
        equal = "bit for bit those of the plain run"
    return [
        f"  time     measured  {seconds(found.best)} (best of {len(found.seconds)}), "
        f"prediction error {error:+.1f} %",
        f"  peak     {', '.join(peaks)}",
        f"  gradients {equal}",
    ]


def _moved(graph: Graph, plan: Plan) -> list[int]:
    return [s.tensor for s in plan.stays if s.saved is not None and graph.tensors[s.tensor].bytes]


def _again(plan: Plan) -> dict[int, int]:
    times: dict[int, int] = {}
    for op in plan.steps:
        times[op] = times.get(op, -1) + 1
    return {op: count for op, count in times.items() if count}


def _table(title: str, rows: list[tuple[str, float, object]]) -> list[str]:
    if not rows:
        return []
    rows = sorted(rows, key=lambda row: -row[1])
    shown = [f"    {name:<44}{unit(value):>10}" for name, value, unit in rows[:TOP]]  # type: ignore[operator]
    more = [f"    and {len(rows) - TOP} more"] if len(rows) > TOP else []
    return ["", f"  {title} (largest first)", *shown, *more]

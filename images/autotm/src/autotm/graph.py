"""What planner and executor say to each other: a graph, a machine, a plan. Plain data, no PyTorch.

Ids and indices are positions: `graph.tensors[t]` is tensor `t`, `graph.ops[i]` is op `i`, and ops
run in that order. A plan runs *steps*: step `s` runs op `plan.steps[s]`; an op that stands twice
is recomputed. Bytes are bytes, times are seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

Kind = Literal["parameter", "input", "activation", "gradient", "handed", "output"]
Source = Literal["start", "op", "host"]
Choice = Literal["keep", "recompute", "offload", "both"]
STAYS: tuple[Kind, ...] = ("parameter", "input")  # there before the first op, never moved
ENDS: tuple[Kind, ...] = ("parameter", "input", "output")  # there after the last op
OUTSIDE: tuple[Kind, ...] = (*ENDS, "handed")  # of a captured graph: never in its arena


@dataclass(frozen=True)
class Tensor:
    """One storage: views of it are the same tensor.

    kind: `parameter` and `input` have no producer and are there all the time; an `output` (the
    loss, a parameter's gradient that is returned) is there from its op to the end; `activation`
    and `gradient` (of an activation) die after their last use; a `handed` one is a gradient that
    only the next op reads. Scratch memory of an op is an activation that nothing reads.
    """

    id: int
    bytes: int
    kind: Kind
    name: str = ""


@dataclass(frozen=True)
class Op:
    """One kernel: reads `inputs`, writes `outputs` (tensor ids, none twice), takes `seconds`.

    recomputable: running it again on the same inputs gives the same bits (no random numbers).
    placed: seconds for each set of operands in slow memory, for machines whose kernels can read it:
    `placed[mask]`, where bit `i` stands for `operands[i]`; empty where kernels cannot.
    """

    index: int
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    seconds: float
    recomputable: bool = True
    flops: float = 0.0
    placed: tuple[float, ...] = ()

    @property
    def operands(self) -> tuple[int, ...]:
        """Inputs, then outputs."""
        return self.inputs + self.outputs


@dataclass(frozen=True)
class Graph:
    """One training iteration. Raises ValueError for a graph that contradicts itself."""

    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    name: str = ""

    def __post_init__(self) -> None:
        for position, tensor in enumerate(self.tensors):
            if tensor.id != position or tensor.bytes < 0 or tensor.kind not in get_args(Kind):
                raise ValueError(f"tensor {position} of graph '{self.name}' is malformed: {tensor}")
        made: set[int] = set()
        for position, op in enumerate(self.ops):
            if op.index != position or op.seconds < 0:
                raise ValueError(f"op {position} of graph '{self.name}' is malformed: {op}")
            if len(set(op.operands)) < len(op.operands):
                raise ValueError(f"op {position} ({op.name}) names a tensor twice")
            if op.placed and len(op.placed) != 2 ** len(op.operands):
                raise ValueError(f"op {position} ({op.name}) lacks times of some placements")
            for name in op.inputs:
                if name not in made and self.tensors[name].kind not in STAYS:
                    raise ValueError(f"op {position} ({op.name}) reads tensor {name} too early")
            for name in op.outputs:
                if name in made or self.tensors[name].kind in STAYS:
                    raise ValueError(f"op {position} ({op.name}) writes tensor {name} again")
            made.update(op.outputs)
        for tensor in self.tensors:
            if tensor.id not in made and tensor.kind not in STAYS:
                raise ValueError(f"no op writes tensor {tensor.id} ({tensor.name})")

    @cached_property
    def producer(self) -> tuple[int | None, ...]:
        """Per tensor the op that writes it; None for parameters and inputs."""
        found: list[int | None] = [None] * len(self.tensors)
        for op in self.ops:
            for tensor in op.outputs:
                found[tensor] = op.index
        return tuple(found)

    @cached_property
    def uses(self) -> tuple[tuple[int, ...], ...]:
        """Per tensor the ops that read it, in order."""
        found: list[list[int]] = [[] for _ in self.tensors]
        for op in self.ops:
            for tensor in op.inputs:
                found[tensor].append(op.index)
        return tuple(map(tuple, found))

    def life(self, tensor: int) -> tuple[int, int]:
        """First and last op (inclusive) during which a tensor exists."""
        first, last = self.producer[tensor], len(self.ops) - 1
        begin = 0 if first is None else first
        if self.tensors[tensor].kind in ENDS:
            return begin, last
        return begin, max((begin, *self.uses[tensor]))

    @cached_property
    def live_bytes(self) -> tuple[int, ...]:
        """Per op the bytes of all tensors that exist while it runs, everything kept."""
        change = [0] * (len(self.ops) + 1)
        for tensor in self.tensors:
            begin, end = self.life(tensor.id)
            change[begin] += tensor.bytes
            change[end + 1] -= tensor.bytes
        total, found = 0, []
        for step in change[:-1]:
            total += step
            found.append(total)
        return tuple(found)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that exist at a time, everything kept, without fragmentation."""
        return max(self.live_bytes, default=0)

    @property
    def seconds(self) -> float:
        """Sum of the ops' times: everything kept, nothing moved."""
        return sum(op.seconds for op in self.ops)


@dataclass(frozen=True)
class Machine:
    """What a plan may use: an arena of `capacity` bytes and a link to slow memory.

    to_host, from_host: bytes per second of the copies; duplex: both ways at once at full rate,
    else they share one link. latency: seconds that each copy costs beside its bytes. align:
    addresses and sizes of stays are multiples of it.
    """

    capacity: int
    to_host: float
    from_host: float
    duplex: bool = True
    latency: float = 0.0
    align: int = 512


@dataclass(frozen=True)
class Stay:
    """One time that a tensor lies in the arena, at `[address, address + bytes)`.

    Its bytes are taken from step `begin` to step `end`, both inclusive; no other stay of these
    steps overlaps them. source: `start`, there before step 0; `op`, written by step `begin`;
    `host`, a copy from the host that may start when step `begin - 1` has ended (the copy runs
    beside step `begin` and later). Steps read it from `ready` on: the copy must have ended
    before step `ready` starts, and `ready == begin` means that compute waits for it.
    saved: the step after whose end a copy to the host may start, or None. It must have ended
    before anything else is written to these bytes, from step `end + 1` on (`saved == end`:
    compute waits). A tensor is saved at most once; later stays drop their bytes for nothing.
    An output of a recomputed op that nobody needs has a stay of that step alone, even when
    another stay of the tensor exists then: read the one with the earlier `begin`.
    """

    tensor: int
    address: int
    begin: int
    end: int
    source: Source
    ready: int
    saved: int | None = None


@dataclass(frozen=True)
class Plan:
    """Where every tensor is at every step.

    seconds, peak_bytes: what the planner predicts; peak_bytes is the highest end of a stay, so the
    arena's size. bound: no plan of the planner's programme is faster, as the solver
    proved (docs/autotm.md says what else the checker lets pass); gap is
    (seconds - bound) / seconds. solve_seconds: building and solving. notes: what else is worth
    to be printed, by name.
    """

    graph: str
    formulation: str
    steps: tuple[int, ...]
    stays: tuple[Stay, ...]
    choices: tuple[Choice, ...]
    seconds: float
    peak_bytes: int
    bound: float
    gap: float
    solve_seconds: float
    notes: dict[str, float] = field(default_factory=dict)

    @cached_property
    def by_tensor(self) -> dict[int, tuple[Stay, ...]]:
        """The stays of each tensor, by `begin`."""
        found: dict[int, list[Stay]] = {}
        for stay in sorted(self.stays, key=lambda each: each.begin):
            found.setdefault(stay.tensor, []).append(stay)
        return {tensor: tuple(stays) for tensor, stays in found.items()}

    def read_at(self, tensor: int, step: int) -> Stay:
        """The stay that step `step` reads. Raises KeyError when the tensor is away."""
        for stay in self.by_tensor.get(tensor, ()):
            if stay.begin <= step <= stay.end and (stay.source != "host" or stay.ready <= step):
                return stay
        raise KeyError(f"tensor {tensor} is away at step {step}")

    def copies(self) -> Iterator[tuple[str, Stay]]:
        """("out", stay) and ("in", stay) of every copy, in the order of their streams."""
        found = [(each.saved, 0, each.end, each) for each in self.stays if each.saved is not None]
        found += [
            (each.begin - 1, 1, each.ready, each) for each in self.stays if each.source == "host"
        ]
        for _, direction, _, stay in sorted(found, key=lambda each: each[:3]):
            yield ("in" if direction else "out"), stay


def aligned(size: int, align: int) -> int:
    """`size` rounded up to a multiple of `align`."""
    return -(-size // align) * align

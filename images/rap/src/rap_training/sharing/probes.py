"""Measurements that RAP's plan rests on: latencies of fused kernels, capacity of stages.

Latency: a kernel repeated in a CUDA graph, so that nothing of the host is inside
(docs/papers/rap.md, 3.2). Capacity: probes beside a stage, both queued behind a delay so that they
start together (3.1), and on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

import torch

from rap_training.launches import Backend, Call, Launch
from rap_training.memory import Buffers
from rap_training.plan.graph import Column, Node, Plan, SparseOutput, ValueType
from rap_training.plan.operators import OPERATORS
from rap_training.planner.capacity import SLOWER, Capacity, search
from rap_training.planner.cost import StageCapacity
from rap_training.planner.latency import Measurement, Shape
from rap_training.sharing.captured import graph_of
from rap_training.sharing.lanes import Lane, StreamLane
from rap_training.train.adapter import AnyTrainer
from rap_training.train.collectives import Collectives
from rap_training.work import Work

REPEATS = 20
_ROUNDS = 5
_DELAY_CYCLES, _MOST_CYCLES = 150_000, 10_000_000  # cover the queueing of what is timed
_SAMPLES, _EXCHANGES = 15, 8
_PROBE = Shape(op="ngram", rows=1024, width=20, fused=4)

# One setting of each operator to measure; what it computes does not depend on the time it takes.
_PARAMETERS: dict[str, dict[str, object]] = {
    "fill_null": {"value": 0}, "cast": {"dtype": "int64"},
    "sigrid_hash": {"salt": 0, "modulus": 65_536}, "bucketize": {"borders": (0.5, 1.0, 1.5)},
    "logit": {"eps": 1e-5}, "boxcox": {"lam": 0.5}, "clamp": {"lo": 0.0, "hi": 1e6},
    "one_hot": {"lo": 0.0, "hi": 1.0}, "ngram": {}, "first_x": {},
    "map_id": {"size": 65_536, "seed": 0},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StageProbe:
    """A stage's time alone, and the stand-alone time of probes that it hides, both in us."""

    stage: str
    us: float
    probe_us: float
    capacity: Capacity

    @property
    def capacity_us(self) -> float:
        """Stand-alone preprocessing time that fits beside the stage."""
        return self.capacity.probes * self.probe_us

    def cost(self) -> StageCapacity:
        """As the cost model takes it."""
        return StageCapacity(self.stage, self.us, self.capacity_us)


def kernel(shape: Shape, backend: Backend, device: torch.device) -> Call:
    """A launch of the given shape on memory of its own; `width` is what it writes per row."""
    operator = OPERATORS[shape.op]
    dtype = "float32" if shape.op == "cast" or operator.takes == "float32" else "int64"
    width, parameters = _inputs(shape)
    columns = tuple(Column(name=f"c{n}", kind="sparse", width=width) for n in range(shape.fused))
    nodes: list[Node] = []
    for column in columns:
        steps: list[tuple[str, str, dict[str, object]]] = [("fill", "fill_null", {"value": 0})]
        if dtype == "float32":
            steps.append(("float", "cast", {"dtype": "float32"}))
        if shape.op != "fill_null":
            steps.append(("op", shape.op, parameters))
        result = operator.shape(ValueType(dtype=dtype, width=width), parameters)
        if result.dtype == "float32":
            steps.append(("id", "cast", {"dtype": "int64"}))
        before = column.name
        for name, op, given in steps:
            nodes.append(Node(name=f"{column.name}.{name}", op=op, input=before, parameters=given))
            before = nodes[-1].name
    dense = Column(name="d", kind="dense")
    plan = Plan(
        name="probe",
        columns=(*columns, dense),
        nodes=(*nodes, Node(name="d.fill", op="fill_null", input="d", parameters={"value": 0})),
        dense=("d.fill",),
        sparse=tuple(
            SparseOutput(node=[n for n in nodes if n.name.startswith(f"{c.name}.")][-1].name,
                         rows=1 << 62)  # more than any id; no table is made
            for c in columns
        ),
    )  # fmt: skip
    home = (0,) * shape.fused
    work = Work(plan=plan, rank=0, world=1, batch=shape.rows, home=home, mapping=home)
    suffix = "fill" if shape.op == "fill_null" else "op"
    members = tuple(work.instance[f"c{n}.{suffix}@global"] for n in range(shape.fused))
    buffers = Buffers.allocate(work, device, slots=1)
    call = backend.bind(Launch(members=members), buffers, 0)
    return lambda _kept=buffers: call()  # type: ignore[misc]


def _inputs(shape: Shape) -> tuple[int, dict[str, object]]:
    """Width of the input and parameters that make an operator write `shape.width` per row."""
    given = dict(_PARAMETERS[shape.op])
    if shape.op == "first_x":
        return shape.width + 2, {"x": shape.width}
    if shape.op == "ngram":
        pairs = shape.width % 2 == 0
        return (shape.width // 2 + 1, {"n": 2}) if pairs else (shape.width, {"n": 1})
    if shape.op == "one_hot":
        k = 4 if shape.width % 4 == 0 else shape.width
        return shape.width // k, {**given, "k": k}
    return shape.width, given


def few(asked: Sequence[Shape], each: int) -> list[Shape]:
    """The `each` smallest shapes of every operator: enough to try the method on a CPU."""
    found: dict[str, list[Shape]] = {}
    for shape in sorted(asked, key=lambda shape: shape.elements):
        found.setdefault(shape.op, []).append(shape)
    return [shape for of_op in found.values() for shape in of_op[:each]]


def latency_us(call: Call, device: torch.device) -> float:
    """Device time of one launch in us, the median of some rounds of REPEATS launches."""
    alone = Collectives(rank=0, world=1)
    if device.type == "cpu":
        call()
        return median(_times_us(call, _ROUNDS, alone, device))
    graph = graph_of([call] * REPEATS, device)
    graph()
    return median(_times_us(graph, _ROUNDS, alone, device)) / REPEATS


def measure_latencies(
    shapes: Sequence[Shape],
    backend: Backend,
    device: torch.device,
    on_step: Callable[[], object] = lambda: None,
) -> list[Measurement]:
    """Every shape's latency on this device."""
    found = []
    for shape in shapes:
        found.append(Measurement(shape, latency_us(kernel(shape, backend, device), device)))
        on_step()
    return found


def stage_probes(
    trainer: AnyTrainer,
    backend: Backend,
    lanes: tuple[Lane, Lane],
    collectives: Collectives,
    *,
    threshold: float = SLOWER,
    cap: int = 512,
) -> list[StageProbe]:
    """Time and capacity of every training stage, the slowest rank deciding for all."""
    device = trainer.device
    probe = kernel(_PROBE, backend, device)
    # The same on all ranks: they must search in step.
    probe_us = collectives.largest(latency_us(probe, device), device)
    found = []
    trainer.learn(False)
    for stage in trainer.stages:
        lanes[0].submit(lambda: trainer.step(0))  # what the stage reads is there

        def measure(count: int, stage: str = stage) -> tuple[float, float]:
            alone, beside = _stage_us(trainer, stage, lanes, [probe] * count, collectives)
            return collectives.largest(alone, device), collectives.largest(beside, device)

        def slowdown(count: int, measure: Callable[[int], tuple[float, float]] = measure) -> float:
            alone, beside = measure(count)
            return beside / alone - 1.0

        us, _ = measure(0)
        # Far beyond the stage's own time there is nothing to hide behind.
        most = max(1, min(cap, int(2 * us / probe_us)))
        found.append(
            StageProbe(
                stage=stage, us=us, probe_us=probe_us,
                capacity=search(slowdown, threshold=threshold, cap=most),
            )
        )  # fmt: skip
    trainer.learn(True)
    return found


def exchange_costs(collectives: Collectives, device: torch.device) -> tuple[float, float]:
    """Time of a nearly empty all-to-all in us, and bytes a rank sends per us in a large one."""
    world = collectives.world
    if world == 1:
        return 0.0, float("inf")
    took = {}
    for each in (64, 4 << 20):
        source = torch.zeros(each * world, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        sizes = [each] * world
        exchange = partial(collectives.all_to_all, target, source, sizes, sizes)
        exchange()  # what is made once is there
        times = _times_us(exchange, _EXCHANGES, collectives, device)
        took[each] = collectives.largest(median(times), device)
    moved = (4 << 20) * (world - 1)
    return took[64], moved / max(took[4 << 20] - took[64], 1.0)


def _stage_us(
    trainer: AnyTrainer,
    stage: str,
    lanes: tuple[Lane, Lane],
    probes: Sequence[Call],
    collectives: Collectives,
) -> tuple[float, float]:
    """Time in us of a stage alone, and of it and probes that start together with it, until both
    have ended: what outlasts a stage is not hidden by it. Medians of samples in turns, so that a
    clock that moves meanwhile moves both."""
    train, side = lanes
    if trainer.device.type == "cpu":
        return _stage_us_on_cpu(trainer, stage, lanes, probes)
    assert isinstance(train, StreamLane)
    beside = graph_of(probes, trainer.device) if probes else None
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample(number: int, cycles: int) -> tuple[bool, float]:
        train.submit(lambda: _before(trainer, stage))
        with torch.cuda.stream(train.stream):
            torch.cuda._sleep(cycles)
            collectives.meet(trainer.device)
        gate = train.record()
        side.wait(gate)
        if beside and number % 2:
            side.submit(beside)
        with torch.cuda.stream(train.stream):
            start.record()
            trainer.run(stage, 0)
            train.wait(side.record())
            end.record()
        early = start.query()
        train.finish()
        return early, 1000.0 * start.elapsed_time(end)

    times = _behind_a_delay(sample, 2 * _SAMPLES, collectives, trainer.device)
    return median(times[::2]), median(times[1::2])


def _behind_a_delay(
    sample: Callable[[int, int], tuple[bool, float]], count: int, collectives: Collectives,
    device: torch.device,
) -> list[float]:  # fmt: skip
    """us of `count` samples that have nothing of a host's time in them.

    `sample(number, cycles)` queues a delay, has the ranks meet, and queues what is timed; it
    returns whether that began before the host had queued all of it, and its us. Then the delay
    doubles and the sample is taken again, by all ranks where it began early on one, as ranks wait
    for each other. For the same reason they meet: who begins sooner waits in what is timed.
    """
    times: list[float] = []
    cycles = _DELAY_CYCLES
    while len(times) < count:
        early, us = sample(len(times), cycles)
        if cycles < _MOST_CYCLES and collectives.largest(float(early), device):
            cycles *= 2
        else:
            times.append(us)
    return times


def _before(trainer: AnyTrainer, stage: str) -> None:
    """What a stage uses up and another makes: gradients can be computed once."""
    if stage == "mlp_bwd":
        trainer.run("mlp_fwd", 0)


def _stage_us_on_cpu(
    trainer: AnyTrainer, stage: str, lanes: tuple[Lane, Lane], probes: Sequence[Call]
) -> tuple[float, float]:
    _, side = lanes
    times: list[float] = []

    def both() -> None:
        trainer.run(stage, 0)
        side.finish()

    for calls in _ROUNDS * ((), probes):
        _before(trainer, stage)
        for call in calls:
            side.submit(call)
        times.append(_host_us(both))
    return median(times[::2]), median(times[1::2])


def _times_us(
    call: Call, count: int, collectives: Collectives, device: torch.device
) -> list[float]:
    """us of what `call` queues in the current stream, `count` times; on a CPU, of the call."""
    if device.type == "cpu":
        times = []
        for _ in range(count):
            collectives.barrier()
            times.append(_host_us(call))
        return times
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample(_number: int, cycles: int) -> tuple[bool, float]:
        torch.cuda._sleep(cycles)
        collectives.meet(device)
        start.record()
        call()
        end.record()
        early = start.query()
        torch.cuda.synchronize(device)
        return early, 1000.0 * start.elapsed_time(end)

    return _behind_a_delay(sample, count, collectives, device)


def _host_us(call: Call) -> float:
    start = perf_counter()
    call()
    return 1e6 * (perf_counter() - start)

"""Random small training graphs, and machines for them; a tensor has some MiB."""

from __future__ import annotations

from autotm.graph import Graph, Kind, Machine, Op, Tensor
from hypothesis import strategies as st

MIB = 1 << 20


@st.composite
def graphs(draw: st.DrawFn, most: int = 5) -> Graph:
    """A chain with skips: forward ops, then a gradient op for each that reads what it read."""
    small = st.integers(1, 3).map(MIB.__mul__)
    tensors = [Tensor(0, draw(small), "parameter"), Tensor(1, draw(small), "input")]
    ops: list[Op] = []
    depth = draw(st.integers(1, most))
    made = [1]
    reads: list[tuple[int, ...]] = []

    def op(inputs: tuple[int, ...], kind: Kind, extra: int = 0) -> int:
        outputs = []
        for _ in range(1 + extra):
            tensors.append(Tensor(len(tensors), MIB * draw(st.integers(1, 6)), kind))
            outputs.append(len(tensors) - 1)
        seconds = float(draw(st.integers(0, 4)))
        again = draw(st.integers(0, 4)) > 0
        ops.append(Op(len(ops), "op", inputs, tuple(outputs), seconds, recomputable=again))
        return outputs[0]

    for _ in range(depth):
        inputs = {made[-1], draw(st.sampled_from(made))}
        if draw(st.booleans()):
            inputs.add(0)
        reads.append(tuple(sorted(inputs)))
        made.append(op(reads[-1], "activation", draw(st.integers(0, 4)) // 4))
    gradient = op((made[-1],), "gradient")
    for inputs in reversed(reads):
        kind: Kind = "output" if draw(st.integers(0, 5)) == 0 else "gradient"
        gradient = op((*inputs, gradient), kind)
    return Graph(tuple(tensors), tuple(ops), "random")


@st.composite
def machines(draw: st.DrawFn, graph: Graph) -> Machine:
    """A capacity between the least of any op and the peak, and a link."""
    fixed = {each.id for each in graph.tensors if each.kind in ("parameter", "input", "output")}
    always = sum(graph.tensors[t].bytes for t in fixed)
    least = max(
        always + sum(graph.tensors[t].bytes for t in op.operands if t not in fixed)
        for op in graph.ops
    )
    capacity = draw(st.integers(least // MIB, max(least, graph.peak_bytes) // MIB))
    rates = st.sampled_from((0.5 * MIB, 1.0 * MIB, 2.0 * MIB))
    return Machine(MIB * capacity, draw(rates), draw(rates), duplex=draw(st.booleans()), align=1)

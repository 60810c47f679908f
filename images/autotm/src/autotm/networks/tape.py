"""Records the forward layers of a network and derives its training iteration, kernel by kernel.

FP32. Kernels as a functional framework has them: convolution with bias, its gradients to data and
to weights apart, ReLU and BatchNorm of their own, an addition where gradients meet, one SGD kernel
per layer with weights, loss and its gradient in one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from autotm.graph import Graph, Kind, Op, Tensor

FLOAT = 4  # bytes


@dataclass(frozen=True)
class Value:
    """A tensor of the tape: its id and its shape, (channels, height, width) or (features,)."""

    id: int
    shape: tuple[int, ...]


class Tape:
    """A network under construction, for one batch size."""

    def __init__(self, name: str, batch: int) -> None:
        self.name, self.batch = name, batch
        self._tensors: list[Tensor] = []
        self._ops: list[Op] = []
        self._backward: list[Callable[[], None]] = []
        self._gradients: dict[int, Value] = {}
        self._roots: set[int] = set()

    def input(self, *shape: int) -> Value:
        """The images; nothing is derived with respect to them."""
        value = self._tensor(shape, "input", "x")
        self._roots.add(value.id)
        return value

    def conv(
        self, x: Value, channels: int, size: tuple[int, int] | int, stride: int = 1,
        pad: tuple[int, int] | int | None = None,
    ) -> Value:  # fmt: skip
        """A convolution with bias; pad: None keeps the size (for stride 1)."""
        rows, columns = (size, size) if isinstance(size, int) else size
        if pad is None:
            pad = ((rows - 1) // 2, (columns - 1) // 2)
        up, left = (pad, pad) if isinstance(pad, int) else pad
        c, height, width = x.shape
        shape = (
            channels,
            (height + 2 * up - rows) // stride + 1,
            (width + 2 * left - columns) // stride + 1,
        )
        flops = 2.0 * self.batch * prod(shape) * c * rows * columns
        return self._weighted("conv", x, shape, channels * (c * rows * columns + 1), flops)

    def dense(self, x: Value, features: int) -> Value:
        """A fully connected layer with bias on all that `x` holds."""
        size = prod(x.shape)
        flops = 2.0 * self.batch * size * features
        return self._weighted("dense", x, (features,), features * (size + 1), flops)

    def relu(self, x: Value) -> Value:
        """Its gradient reads the output."""
        y = self._run("relu", [x], x.shape, self._work(x))
        self._backward.append(
            lambda: self._give(
                x, self._derive("relu_grad", [self._taken(y), y], x.shape, self._work(x))
            )
        )
        return y

    def norm(self, x: Value) -> Value:
        """Batch normalisation in training; its gradient reads the input."""
        y = self._run("norm", [x], x.shape, 8 * self._work(x))
        self._backward.append(
            lambda: self._give(
                x, self._derive("norm_grad", [self._taken(y), x], x.shape, 12 * self._work(x))
            )
        )
        return y

    def pool(
        self, x: Value, size: int, stride: int, pad: int = 0, *, average: bool = False
    ) -> Value:
        """Maximum or average pooling; the maximum's gradient reads input and output."""
        c, height, width = x.shape
        shape = (c, (height + 2 * pad - size) // stride + 1, (width + 2 * pad - size) // stride + 1)
        flops = float(self.batch * prod(shape) * size * size)
        y = self._run("average" if average else "maximum", [x], shape, flops)
        read = [] if average else [x, y]
        name = "average_grad" if average else "maximum_grad"
        self._backward.append(
            lambda: self._give(x, self._derive(name, [self._taken(y), *read], x.shape, flops))
        )
        return y

    def add(self, x: Value, y: Value) -> Value:
        """Element by element; the gradient is that of both, without a kernel."""
        z = self._run("add", [x, y], x.shape, self._work(x))

        def backward() -> None:
            gradient = self._taken(z)
            self._give(x, gradient)
            self._give(y, gradient)

        self._backward.append(backward)
        return z

    def concat(self, parts: Sequence[Value]) -> Value:
        """Along the channels; the gradient is one copy for each part."""
        shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        z = self._run("concat", list(parts), shape, 0.0)

        def backward() -> None:
            gradient = self._taken(z)
            for part in parts:
                self._give(part, self._derive("slice", [gradient], part.shape, 0.0))

        self._backward.append(backward)
        return z

    def graph(self, x: Value) -> Graph:
        """End with the loss of the scores `x` and return the whole iteration."""
        loss = self._tensor((), "output", "loss", batch=1)
        gradient = self._tensor(x.shape, "gradient", "loss_grad")
        self._op("loss", [x], [loss, gradient], 10 * self._work(x))
        self._give(x, gradient)
        for step in reversed(self._backward):
            step()
        return Graph(tuple(self._tensors), tuple(self._ops), f"{self.name}_{self.batch}")

    def _weighted(
        self, name: str, x: Value, shape: tuple[int, ...], weights: int, flops: float
    ) -> Value:
        w = self._tensor((weights,), "parameter", f"{name}_w", batch=1)
        y = self._run(name, [x, w], shape, flops)

        def backward() -> None:
            gradient = self._taken(y)
            if x.id not in self._roots:
                self._give(x, self._derive(f"{name}_data", [gradient, w], x.shape, flops))
            dw = self._tensor(w.shape, "gradient", f"{name}_dw", batch=1)
            self._op(f"{name}_weights", [gradient, x], [dw], flops)
            self._op("sgd", [w, dw], [], 2.0 * weights)

        self._backward.append(backward)
        return y

    def _work(self, x: Value) -> float:
        return float(self.batch * prod(x.shape))

    def _tensor(
        self, shape: tuple[int, ...], kind: Kind, name: str, batch: int | None = None
    ) -> Value:
        size = FLOAT * prod(shape) * (self.batch if batch is None else batch)
        self._tensors.append(Tensor(len(self._tensors), size, kind, name))
        return Value(len(self._tensors) - 1, shape)

    def _op(self, name: str, reads: list[Value], writes: list[Value], flops: float) -> None:
        inputs = tuple(dict.fromkeys(value.id for value in reads))
        outputs = tuple(value.id for value in writes)
        self._ops.append(
            Op(len(self._ops), name, inputs, outputs, 0.0, recomputable=name != "sgd", flops=flops)
        )

    def _run(self, name: str, reads: list[Value], shape: tuple[int, ...], flops: float) -> Value:
        y = self._tensor(shape, "activation", name)
        self._op(name, reads, [y], flops)
        return y

    def _derive(self, name: str, reads: list[Value], shape: tuple[int, ...], flops: float) -> Value:
        y = self._tensor(shape, "gradient", name)
        self._op(name, reads, [y], flops)
        return y

    def _taken(self, y: Value) -> Value:
        return self._gradients.pop(y.id)

    def _give(self, x: Value, gradient: Value) -> None:
        """Add to the gradient of `x`; where it has one already, by a kernel."""
        if x.id in self._roots:
            return
        if (known := self._gradients.get(x.id)) is not None:
            gradient = self._derive("add_grad", [known, gradient], x.shape, self._work(x))
        self._gradients[x.id] = gradient

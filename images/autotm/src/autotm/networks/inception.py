"""Inception v4 with ReLU after every convolution and no BatchNorm."""

from __future__ import annotations

from collections.abc import Sequence

from autotm.graph import Graph
from autotm.networks.classic import CLASSES
from autotm.networks.tape import Tape, Value

Layer = tuple[int, tuple[int, int] | int]  # channels, kernel


class _Stack:
    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def chain(self, x: Value, *layers: Layer) -> Value:
        for channels, size in layers:
            x = self.tape.relu(self.tape.conv(x, channels, size))
        return x

    def valid(self, x: Value, channels: int, size: int, stride: int = 1) -> Value:
        return self.tape.relu(self.tape.conv(x, channels, size, stride, 0))

    def average(self, x: Value) -> Value:
        return self.tape.pool(x, 3, 1, 1, average=True)

    def join(self, *parts: Value) -> Value:
        return self.tape.concat(parts)


def inception_v4(batch: int) -> Graph:
    """4 blocks A, 7 B, 3 C; reductions (192, 224, 256, 384)."""
    tape = Tape("inception", batch)
    net = _Stack(tape)
    x = _stem(tape, net, tape.input(3, 299, 299))
    for _ in range(4):
        x = _block(net, x, 96, 96, [[(64, 1), (96, 3)], [(64, 1), (96, 3), (96, 3)]])
    x = net.join(
        tape.pool(x, 3, 2),
        net.valid(x, 384, 3, 2),
        net.valid(net.chain(x, (192, 1), (224, 3)), 256, 3, 2),
    )
    for _ in range(7):
        long: list[Layer] = [(192, 1), (192, (1, 7)), (224, (7, 1)), (224, (1, 7)), (256, (7, 1))]
        x = _block(net, x, 128, 384, [[(192, 1), (224, (1, 7)), (256, (7, 1))], long])
    x = net.join(
        tape.pool(x, 3, 2),
        net.valid(net.chain(x, (192, 1)), 192, 3, 2),
        net.valid(net.chain(x, (256, 1), (256, (1, 7)), (320, (7, 1))), 320, 3, 2),
    )
    for _ in range(3):
        a = net.chain(x, (384, 1))
        b = net.chain(x, (384, 1), (448, (1, 3)), (512, (3, 1)))
        x = net.join(
            net.chain(net.average(x), (256, 1)),
            net.chain(x, (256, 1)),
            _split(net, a),
            _split(net, b),
        )
    return tape.graph(tape.dense(tape.pool(x, 8, 8, average=True), CLASSES))


def _stem(tape: Tape, net: _Stack, x: Value) -> Value:
    x = net.chain(net.valid(net.valid(x, 32, 3, 2), 32, 3), (64, 3))
    x = net.join(tape.pool(x, 3, 2), net.valid(x, 96, 3, 2))
    x = net.join(
        net.valid(net.chain(x, (64, 1)), 96, 3),
        net.valid(net.chain(x, (64, 1), (64, (1, 7)), (64, (7, 1))), 96, 3),
    )
    return net.join(net.valid(x, 192, 3, 2), tape.pool(x, 3, 2))


def _block(
    net: _Stack, x: Value, pooled: int, single: int, towers: Sequence[Sequence[Layer]]
) -> Value:
    parts = [net.chain(net.average(x), (pooled, 1)), net.chain(x, (single, 1))]
    return net.join(*parts, *(net.chain(x, *tower) for tower in towers))


def _split(net: _Stack, x: Value) -> Value:
    return net.join(net.chain(x, (256, (1, 3))), net.chain(x, (256, (3, 1))))

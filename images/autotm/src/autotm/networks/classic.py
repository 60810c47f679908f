"""VGG, ResNet-200, DenseNet-264 and a plain perceptron, as the artifact's zoo has them."""

from __future__ import annotations

from collections.abc import Sequence

from autotm.graph import Graph
from autotm.networks.tape import Tape, Value

CLASSES = 1000


def vgg(name: str, batch: int, stages: Sequence[Sequence[int]]) -> Graph:
    """3x3 convolutions of the channels that each stage lists, then a pool; three dense layers."""
    tape = Tape(name, batch)
    x = tape.input(3, 224, 224)
    for stage in stages:
        for channels in stage:
            x = tape.relu(tape.conv(x, channels, 3))
        x = tape.pool(x, 2, 2)
    for features in (4096, 4096):
        x = tape.relu(tape.dense(x, features))
    return tape.graph(tape.dense(x, CLASSES))


def vgg19(batch: int) -> Graph:
    """VGG-19."""
    sizes = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
    return vgg("vgg19", batch, [[channels] * count for channels, count in sizes])


def vgg416(batch: int) -> Graph:
    """413 convolutions: what widens stands at the end of a stage, before its pool."""
    return vgg(
        "vgg416",
        batch,
        [
            [64] * 81 + [128],
            [128] * 81 + [256],
            [256] * 82 + [512],
            [512] * 83,
            [512] * 83,
        ],
    )


def resnet200(batch: int) -> Graph:
    """Bottlenecks (3, 24, 36, 3); stride on the last 1x1; a projection in each stage's first."""
    tape = Tape("resnet200", batch)
    x = tape.pool(tape.conv(tape.input(3, 224, 224), 64, 7, 2, 3), 3, 2, 1)
    for stage, blocks in enumerate((3, 24, 36, 3)):
        width = 64 * 2**stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = tape.relu(tape.norm(tape.conv(x, width, 1)))
            y = tape.relu(tape.norm(tape.conv(y, width, 3)))
            y = tape.norm(tape.conv(y, 4 * width, 1, stride, 0))
            short = x if block else tape.norm(tape.conv(x, 4 * width, 1, stride, 0))
            x = tape.relu(tape.add(y, short))
    return tape.graph(tape.dense(tape.pool(x, 7, 7, average=True), CLASSES))


def densenet264(batch: int, growth: int = 32) -> Graph:
    """Blocks (6, 12, 64, 48); transitions to twice the growth, not to half of the channels."""
    tape = Tape("densenet264", batch)
    x = tape.pool(tape.relu(tape.conv(tape.input(3, 224, 224), 64, 7, 2, 3)), 3, 2, 1)
    for block, layers in enumerate((6, 12, 64, 48)):
        if block:
            x = tape.conv(tape.relu(tape.norm(x)), 2 * growth, 1)
            x = tape.pool(x, 2, 2, average=True)
        for _ in range(layers):
            x = tape.concat([x, _dense_layer(tape, x, growth)])
    return tape.graph(tape.dense(tape.pool(x, 7, 7, average=True), CLASSES))


def _dense_layer(tape: Tape, x: Value, growth: int) -> Value:
    y = tape.conv(tape.relu(tape.norm(x)), 4 * growth, 1)
    return tape.conv(tape.relu(tape.norm(y)), growth, 3)


def perceptron(batch: int, layers: int = 4, width: int = 4096) -> Graph:
    """The dense layers of the artifact's GPU example."""
    tape = Tape("perceptron", batch)
    x = tape.input(width)
    for _ in range(layers):
        x = tape.relu(tape.dense(x, width))
    return tape.graph(x)

"""Convolutions without cuDNN: PyTorch's `slow_conv2d`, one image of the batch after another.

Forward: the output is filled with the bias or with zeros; per image im2col into one buffer of
columns, and a GEMM. Backward, for the input: a GEMM and col2im per image; for the weight: zeros,
and im2col and a GEMM per image; for the bias: one sum. A 1x1 convolution with stride 1 needs no
columns forward and for its weight. Source: ATen's ConvolutionMM2d.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torch import Tensor

from pasta_workloads.oracle.kernels import SCRATCH, Gemm, Kernel, blocks_of, rounded


def forward(
    name: str, image: Tensor, weight: Tensor, bias: Tensor | None, output: Tensor,
    stride: Sequence[int], padding: Sequence[int],
) -> Iterator[Kernel]:  # fmt: skip
    """Kernels of `image` (n, channels, ...) by `weight` (planes, channels, ...) into `output`."""
    if bias is None:
        yield Kernel(name="fill", operator=name, blocks=blocks_of([output]))
    else:
        yield Kernel(name="elementwise", operator=name, blocks=blocks_of([output, bias]))
    columns = _columns(weight, output, stride, padding)
    source = columns or blocks_of([image])
    planes, inner = weight.size(0), math.prod(weight.shape[1:])
    gemm = Gemm(rows=planes, columns=math.prod(output.shape[2:]), inner=inner)
    touched = source | blocks_of([weight, output])
    for _ in range(image.size(0)):
        if columns:
            yield Kernel(name="im2col", operator=name, blocks=columns | blocks_of([image]))
        yield Kernel(
            name="gemm", operator=name, blocks=touched, gemm=gemm, output=_size(output)
        )  # fmt: skip


def backward(
    name: str, gradient: Tensor, image: Tensor, weight: Tensor, wanted: Sequence[Tensor | None],
    stride: Sequence[int], padding: Sequence[int],
) -> Iterator[Kernel]:  # fmt: skip
    """Kernels of the gradients that are `wanted`: of input, weight and bias, None where not."""
    of_image, of_weight, of_bias = wanted
    planes, inner = weight.size(0), math.prod(weight.shape[1:])
    place = math.prod(gradient.shape[2:])
    buffer = {SCRATCH: rounded(inner * place * weight.element_size())}
    if of_image is not None:
        gemm = Gemm(rows=inner, columns=place, inner=planes)
        for _ in range(image.size(0)):
            yield Kernel(
                name="gemm", operator=name, blocks=buffer | blocks_of([gradient, weight]),
                gemm=gemm, output=buffer[SCRATCH],
            )  # fmt: skip
            yield Kernel(name="col2im", operator=name, blocks=buffer | blocks_of([of_image]))
    if of_bias is not None:
        yield Kernel(name="reduce", operator=name, blocks=blocks_of([gradient, of_bias]))
    if of_weight is not None:
        yield Kernel(name="fill", operator=name, blocks=blocks_of([of_weight]))
        columns = _columns(weight, gradient, stride, padding)
        source = columns or blocks_of([image])
        gemm = Gemm(rows=inner, columns=planes, inner=place)
        touched = source | blocks_of([gradient, of_weight])
        for _ in range(image.size(0)):
            if columns:
                yield Kernel(name="im2col", operator=name, blocks=columns | blocks_of([image]))
            yield Kernel(
                name="gemm", operator=name, blocks=touched, gemm=gemm, output=_size(of_weight)
            )  # fmt: skip


def _columns(
    weight: Tensor, output: Tensor, stride: Sequence[int], padding: Sequence[int]
) -> dict[int, int]:
    """The buffer of columns for one image, or nothing where the image itself serves."""
    if all(n == 1 for n in (*weight.shape[2:], *stride)) and not any(padding):
        return {}
    inner, place = math.prod(weight.shape[1:]), math.prod(output.shape[2:])
    return {SCRATCH: rounded(inner * place * weight.element_size())}


def _size(tensor: Tensor) -> int:
    return sum(blocks_of([tensor]).values())

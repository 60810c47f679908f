"""Table V of the paper, and the values of it that were computed by hand."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One row; sizes in MiB."""

    kernels: int
    footprint: float
    max: float
    min: float
    mean: float
    median: float
    p90: float


_KIB = 1 / 1024
TABLE_V: dict[tuple[str, str], Row] = {
    ("alexnet", "test"): Row(1428, 1528.13, 876.12, 1.01, 216.25, 148.26, 406.33),
    ("resnet18", "test"): Row(1497, 1232.13, 1024.00, 1.00 * _KIB, 86.07, 64.00, 172.27),
    ("resnet34", "test"): Row(2657, 1261.59, 1024.00, 1.00 * _KIB, 76.61, 43.25, 164.00),
    ("bert", "test"): Row(487, 1179.64, 212.62, 47.50 * _KIB, 75.23, 37.69, 141.75),
    ("gpt2", "test"): Row(583, 4148.10, 1493.85, 4.00 * _KIB, 59.02, 25.08, 138.00),
    ("whisper", "test"): Row(663, 2304.15, 627.44, 2.25, 78.54, 20.81, 153.81),
    ("alexnet", "train"): Row(4040, 3285.17, 1512.09, 0.5 * _KIB, 188.60, 144.62, 406.33),
    ("resnet18", "train"): Row(1542, 3165.13, 1024.00, 0.5 * _KIB, 84.58, 43.25, 172.27),
    ("resnet34", "train"): Row(2734, 4316.86, 1024.00, 0.5 * _KIB, 75.33, 43.25, 164.00),
    ("bert", "train"): Row(554, 5679.03, 235.47, 1.00 * _KIB, 77.71, 37.97, 209.30),
    ("gpt2", "train"): Row(2004, 7862.10, 2240.77, 0.5 * _KIB, 51.37, 24.00, 137.66),
    ("whisper", "train"): Row(665, 2104.80, 937.01, 2.25, 80.42, 20.81, 153.81),
}


class Computed(NamedTuple):
    """A value computed by hand (docs/papers/pasta.md, 6.1), MiB, and the kernel that has it."""

    model: str
    mode: str
    stat: str
    value: float
    kernel: str


COMPUTED: tuple[Computed, ...] = (
    Computed("alexnet", "test", "max", 876.125, "max_pool"),
    Computed("alexnet", "test", "p90", 406.334, "im2col"),
    Computed("alexnet", "train", "p90", 406.334, "im2col"),
    Computed("alexnet", "test", "median", 148.256, "im2col"),
    Computed("alexnet", "train", "max", 1512.094, "elementwise"),
    Computed("resnet18", "test", "max", 1024.0, "batch_norm"),
    Computed("resnet18", "train", "max", 1024.0, "batch_norm"),
    Computed("resnet34", "test", "max", 1024.0, "batch_norm"),
    Computed("resnet34", "train", "max", 1024.0, "batch_norm"),
    Computed("resnet34", "test", "p90", 164.0, "im2col"),
    Computed("resnet34", "train", "p90", 164.0, "im2col"),
    Computed("resnet18", "test", "p90", 172.266, "gemm"),
    Computed("resnet18", "train", "p90", 172.266, "gemm"),
    Computed("resnet34", "test", "median", 43.25, "gemm"),
    Computed("resnet18", "train", "median", 43.25, "gemm"),
    Computed("resnet34", "train", "median", 43.25, "gemm"),
    Computed("bert", "test", "max", 212.625, "elementwise"),
    Computed("bert", "test", "p90", 141.75, "elementwise"),
    Computed("bert", "test", "median", 37.6875, "gemm"),
    Computed("bert", "train", "max", 235.466, "dropout"),
    Computed("bert", "train", "p90", 209.303, "softmax"),
    Computed("gpt2", "test", "max", 1493.845, "softmax"),
    Computed("gpt2", "train", "max", 2240.768, "softmax_backward"),
    Computed("gpt2", "test", "median", 25.078, "gemm"),
    Computed("whisper", "test", "max", 627.393, "gemm"),
    Computed("whisper", "train", "max", 937.014, "softmax"),
)

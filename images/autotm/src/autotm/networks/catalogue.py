"""The workloads of the evaluation by name, with the footprints that they are held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotm.graph import Graph
from autotm.networks.classic import densenet264, perceptron, resnet200, vgg19, vgg416
from autotm.networks.inception import inception_v4

BUILD: dict[str, Callable[[int], Graph]] = {
    "vgg19": vgg19,
    "vgg416": vgg416,
    "inception": inception_v4,
    "resnet200": resnet200,
    "densenet264": densenet264,
    "perceptron": perceptron,
}
CONVENTIONAL = ("inception_1024", "resnet200_512", "vgg19_2048", "densenet264_512")
LARGE = ("vgg416_320", "inception_6144", "resnet200_2560", "densenet264_3072")
# Networks that can be trained as well, and those that can only be trained.
TRAINED = (
    "vgg19", "inception", "resnet200", "densenet264", "gpt2medium", "unet", "small-vgg",
    "small-inception", "small-resnet", "small-densenet", "small-gpt2", "small-unet",
)  # fmt: skip
GPU = tuple(
    f"{net}_{batch}"
    for net, batches in (
        ("inception", (64, 128, 256)),
        ("resnet200", (32, 64, 128)),
        ("densenet264", (32, 64, 128)),
        ("vgg19", (64, 128)),
    )
    for batch in batches
)


@dataclass(frozen=True)
class Footprint:
    """Bytes of a graph: all that lives at the peak, and the part that never moves."""

    peak: int
    fixed: int

    @property
    def pool(self) -> int:
        """What activations and gradients take at the peak."""
        return self.peak - self.fixed


def build(name: str) -> Graph:
    """The graph of `<network>_<batch>`. Raises ValueError with what is known."""
    net, batch = named(name, tuple(BUILD))
    return BUILD[net](batch)


def named(name: str, known: Sequence[str]) -> tuple[str, int]:
    """Network and batch of `<network>_<batch>`. Raises ValueError with what is known."""
    net, _, batch = name.rpartition("_")
    if net not in known or not batch.isdigit() or int(batch) < 1:
        raise ValueError(f"no network '{name}'; fix: <network>_<batch>, of {', '.join(known)}")
    return net, int(batch)


def footprint(graph: Graph) -> Footprint:
    """Peak bytes of a graph with everything kept; parameters and inputs are fixed."""
    fixed = sum(each.bytes for each in graph.tensors if each.kind in ("parameter", "input"))
    return Footprint(graph.peak_bytes, fixed)

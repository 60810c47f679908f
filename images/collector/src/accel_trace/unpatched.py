"""Events about what no patch sees: tensor maps (TMA), textures, launches that came to nothing."""

from __future__ import annotations

from dataclasses import dataclass

from accel_trace.fields import U32, U64, Event

USES = {
    "tensor map loads": 1, "tensor map stores": 2, "tensor map reductions": 4,
    "texture reads": 8, "surface accesses": 16,
}  # fmt: skip
TENSOR_MAP_USES = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMap(Event):
    """A launch got this tensor map as a parameter. Comes right after its launch.

    `address` is the tensor's, `span` the bytes from its first to the end of its last element,
    `size` those of its elements. `type` is a CUtensorMapDataType; extents are elements, innermost
    first, strides bytes between the elements of an outer dimension.
    """

    kind = 40
    launch: U64
    address: U64
    span: U64
    size: U64
    type: U32
    rank: U32
    extent_0: U64
    extent_1: U64
    extent_2: U64
    extent_3: U64
    extent_4: U64
    stride_1: U64
    stride_2: U64
    stride_3: U64
    stride_4: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses(Event):
    """The code of an analysed launch has instructions that are not patched; bits as in USES.

    That it has them does not say that it ran them.
    """

    kind = 41
    launch: U64
    what: U32


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing(Event):
    """An analysed launch touched or counted nothing that patches see: there is no other event."""

    kind = 43
    launch: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration(Event):
    """With --every: an iteration began (1) or ended (0); `analysed` 1 when its launches were."""

    kind = 44
    iteration: U64
    began: U32
    analysed: U32


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument(Event):
    """With --distinct: an argument of a launch is an address in a known piece of memory.

    `place` is its word among the launch's parameters: number of the parameter << 16 | word in it.
    """

    kind = 45
    launch: U64
    place: U32
    address: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost(Event):
    """What an analysed launch touched or counted was lost, with the GPU's context say."""

    kind = 42
    launch: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Event):
    """The driver refused this launch, so nothing ran. Comes after what was told of the launch.

    Told where launches are analysed, waited for or looked at; of a CUDA graph for each kernel.
    """

    kind = 46
    launch: U64

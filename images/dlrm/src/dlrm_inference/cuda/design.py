"""The design points as data, and their compilation. Needs neither PyTorch nor a GPU.

The paper's points (kernels/scheme.cu) all do the work of PyTorch 2.1's operator
(docs/papers/dlrm.md, 3.1): generic strides, bounds check in the loop, offset2bag written. They
differ in prefetching and in registers alone. `best` (kernels/best.cu) is ours and has choices of
its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType
from typing import Self

from dlrm_inference.cuda.compile import Compiled, Usage, compile_source

BASE_REGISTERS = 74  # of the operator in PyTorch 2.1 to 2.5 (docs/papers/dlrm.md, 3.1): 24 warps/SM
OPTMT_REGISTERS = 42  # the artifact's cap (D7): 40 warps per SM
PLAIN, REGISTER, SHARED, ASYNC, L1, LOCAL = range(6)  # SCHEME in kernels/scheme.cu
GRID = 1024
BLOCK = (32, 8, 1)
"""Launch shape of the paper's kernels: 8 warps a block, each on a 32-column slice of a bag."""


PLACE_BYTES = 2**20  # that long bags of a launch of `best` are shared in
LONG = 512  # rows of a bag that is worth sharing


class UnsupportedError(ValueError):
    """A variant cannot do what was asked: one sentence with a fix."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A design point of the paper: kernels/scheme.cu with these choices."""

    name: str
    summary: str
    scheme: int = PLAIN
    distance: int = 1  # rows ahead
    registers: int = OPTMT_REGISTERS  # exactly so many, by cap and ballast; 0 as compiled
    pins: bool = False  # the gather follows an L2 pin (cuda/pin.py)

    @property
    def block_warps(self) -> int:
        """Warps of a block."""
        return BLOCK[1]

    def build(self, arch: str, index: str = "long long") -> Compiled:
        """Compile for `arch` ("sm_90") and a C type of the row ids."""
        macros = {
            "INDEX": index,
            "SCHEME": self.scheme,
            "DISTANCE": self.distance,
            "BALLAST": ballast(arch, self.registers),
        }
        return compile_source("scheme", arch, macros, self.registers)

    def tuned(self, distance: int = 0, registers: int = 0, warps_per_sm: int = 0) -> Self:
        """Return this point at another prefetch distance or occupancy; 0 leaves it as it is.

        `warps_per_sm` (a multiple of 8) sets the registers that allow exactly so many warps.
        """
        changed = self
        if distance and self.scheme != PLAIN:
            changed = replace(changed, distance=distance)
        if warps_per_sm:
            registers = registers_for(warps_per_sm)
        return replace(changed, registers=registers) if registers else changed


@dataclass(frozen=True, kw_only=True)
class Case:
    """What tensors decide of `best` at compile time."""

    index: str = "long long"  # C type of the row ids
    element: int = 0  # 0 fp32, 1 fp16, 2 bf16
    dim: int = 128  # columns
    vector: int = 16  # bytes per load
    tables: int = 1  # that a launch can serve
    share: int = 1  # 0: no bag can be long enough to be shared
    joined: int = 0  # 1: all tables' ids are in one array, table after table

    @property
    def lanes(self) -> int:
        """Lanes that share a row: LANES of kernels/rows.cuh."""
        units = self.dim * (2 if self.element else 4) // self.vector
        return min(32, 1 << (units - 1).bit_length())


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The compile-time choices of kernels/best.cu that only speed depends on."""

    bags: int = 4  # per block
    depth: int = 8  # 16-byte loads in flight per lane
    ahead: int = 8  # as depth, where a long bag is shared
    keys: int = 5  # indices a lane holds at a time
    buckets: int = 32  # bands of the table
    head: int = 0  # 1: the first rows of a bag are read as they come, before the others are ordered
    min_blocks: int = 1  # per SM, for the register allocator
    ask: int = 1  # one in so many warps of a block helps with others' long bags
    piece: int = 128  # rows of a long bag that a warp takes at a time
    join: int = 4  # loads in flight per lane where sums of pieces are added
    spread: int = 0  # 1: warps begin at different ones of several long bags
    check: int = 1  # 0: ids are not looked at, to measure what looking costs

    @property
    def block_warps(self) -> int:
        """Warps of a block."""
        return self.bags

    def block_bags(self, case: Case) -> int:
        """Bags of a block."""
        del case  # a bag is a warp's, however wide its rows are
        return self.bags

    def build(self, arch: str, case: Case = Case()) -> Compiled:
        """Compile for `arch` ("sm_90")."""
        return compile_source("best", arch, _macros(self, case, arch))


@dataclass(frozen=True, kw_only=True)
class Short:
    """The compile-time choices of kernels/short.cu that only speed depends on."""

    flight: int  # rows of a bag in flight
    per: int = 1  # bags of a group of lanes at a time
    warps: int = 8  # of a block
    ahead: int = 4  # loads in flight per lane where a long bag is shared
    buckets: int = 1  # it reads rows as they come
    min_blocks: int = 1
    ask: int = 1
    piece: int = 128
    join: int = 4
    spread: int = 0
    check: int = 1

    @property
    def block_warps(self) -> int:
        """Warps of a block."""
        return self.warps

    def block_bags(self, case: Case) -> int:
        """Bags of a block."""
        return self.warps * (32 // case.lanes) * self.per

    def build(self, arch: str, case: Case = Case()) -> Compiled:
        """Compile for `arch` ("sm_90")."""
        return compile_source("short", arch, _macros(self, case, arch))


def _macros(shape: Shape | Short, case: Case, arch: str) -> dict[str, object]:
    fields = {**vars(case), **vars(shape)}
    # More blocks than an SM has warps for (CUDA C++ Programming Guide, 20.2) would mean nothing.
    warps = 48 if arch.removeprefix("sm_") in ("86", "89", "120") else 64
    fields["min_blocks"] = min(shape.min_blocks, warps // shape.block_warps)
    fields |= {"place": PLACE_BYTES}
    return {name.upper(): value for name, value in fields.items()}


_POINTS = (
    Point(
        name="base",
        summary="PyTorch 2.1's kernel re-made: check in the loop, 74 registers, 24 warps/SM",
        registers=BASE_REGISTERS,
    ),
    Point(name="optmt", summary="base with its registers capped at 42: 40 warps/SM"),
    Point(name="rpf", summary="optmt, rows prefetched into registers", scheme=REGISTER, distance=2),
    Point(
        name="smpf",
        summary="optmt, rows prefetched into shared memory",
        scheme=SHARED,
        distance=10,
    ),
    Point(
        name="smpf_async",
        summary="optmt, rows copied asynchronously into shared memory, a rolling pipeline",
        scheme=ASYNC,
        distance=10,
    ),
    Point(name="l1dpf", summary="optmt, rows prefetched into the L1 cache", scheme=L1, distance=2),
    Point(
        name="lmpf", summary="optmt, rows prefetched into local memory", scheme=LOCAL, distance=2
    ),
    Point(name="l2p", summary="optmt after pinning the hottest rows in the L2", pins=True),
    Point(
        name="rpf_l2p",
        summary="register prefetch, L2 pinning and the register cap: the paper's best",
        scheme=REGISTER,
        distance=2,
        pins=True,
    ),
)
POINTS: Mapping[str, Point] = MappingProxyType({point.name: point for point in _POINTS})
TUNED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"rpf_tuned": ("rpf",), "smpf_tuned": ("smpf", "smpf_async"), "rpf_l2p_tuned": ("rpf_l2p",)}
)
"""The variants whose parameters are searched for, and the points that are tried for each."""
MOST_SHARED_DISTANCE = 48  # rows ahead that the 48 KiB of shared memory of a block hold
# Tuned on an H200 (docs/baselines.md). With few bags (one table) latency counts: more loads in
# flight, and the first ones before a bag's rows are put in order. With many, occupancy counts.
BEST_FEW = Shape(depth=10, ahead=16, head=1, min_blocks=4, ask=2, piece=64, join=16, spread=1)
BEST_MANY = Shape(depth=8, min_blocks=8)
# Rows as they come, in blocks of many warps: for bags too short to be worth an order.
_PLAIN_FEW = Shape(bags=8, keys=1, buckets=1, ahead=4, min_blocks=4, ask=8)
# A few warps an SM wait for memory alone: as many rows at once as their registers hold.
_DEEP_FEW = Shape(depth=20, keys=2, buckets=1, ahead=4, min_blocks=4, ask=4)
_PLAIN_MANY = Shape(bags=4, keys=1, buckets=1, ahead=4, min_blocks=10, ask=4)
_SHORT_FEW = Short(flight=2, warps=4, min_blocks=10, ask=4)
_SHORT_MANY = Short(flight=1, warps=4, min_blocks=16, ask=4)
BEST_SHORT: tuple[tuple[int, Shape | Short, Shape | Short], ...] = (
    (2, _SHORT_FEW, _SHORT_MANY),
    (3, Short(flight=4, min_blocks=4, ask=8), _SHORT_MANY),
    (8, _PLAIN_FEW, _PLAIN_MANY),
    (24, _DEEP_FEW, _PLAIN_MANY),
    (64, _DEEP_FEW, _PLAIN_FEW),
)
"""Up to which average length of bags, with few bags, with many. Chosen on an H200, by ratios to
FBGEMM in the cells of the experiment `grid` (docs/baselines.md)."""


def search_space(
    tuned: str, distances: Iterable[int], warps_per_sm: Iterable[int]
) -> dict[str, Point]:
    """Return what is tried for a variant of TUNED, by a name of its own, all called `tuned`.

    Every point of it at every distance and occupancy, and as the artifact has it. Raises KeyError
    for another variant, UnsupportedError for an occupancy that blocks of 8 warps cannot make.
    """
    space: dict[str, Point] = {}
    for form in TUNED[tuned]:
        most = MOST_SHARED_DISTANCE if POINTS[form].scheme in (SHARED, ASYNC) else None
        tried = [POINTS[form]] + [
            POINTS[form].tuned(distance, warps_per_sm=warps)
            for distance, warps in product(distances, warps_per_sm)
            if most is None or distance <= most
        ]
        for point in tried:
            key = f"{form}, distance {point.distance}, {point.registers} registers"
            space[key] = replace(point, name=tuned)
    return space


@dataclass(frozen=True, kw_only=True)
class Built:
    """A design point for one architecture: its code and what it takes."""

    name: str
    arch: str
    cubin: bytes
    usage: Usage
    block_warps: int
    distance: int
    compiler: str


def build(
    name: str, arch: str, *, distance: int = 0, registers: int = 0, warps_per_sm: int = 0
) -> Built:
    """Compile `name` (one of POINTS, or "best") for `arch` ("sm_90").

    `distance`, `registers` and `warps_per_sm` as in `Point.tuned`. Raises KeyError for an unknown
    name, CompileError without NVRTC or for an architecture that it does not know.
    """
    chosen = BEST_FEW if name == "best" else POINTS[name].tuned(distance, registers, warps_per_sm)
    compiled = chosen.build(arch)
    (usage,) = compiled.usage.values()
    return Built(
        name=name,
        arch=arch,
        cubin=compiled.cubin,
        usage=usage,
        block_warps=chosen.block_warps,
        distance=chosen.distance if isinstance(chosen, Point) else 0,
        compiler=compiled.compiler,
    )


def ballast(arch: str, registers: int) -> int:
    """Return how many values must be held alive so that a kernel takes `registers` registers.

    The rest goes to addresses; code for sm_90 and later keeps two more for itself.
    """
    return max(0, registers - (5 if int(arch.removeprefix("sm_")) < 90 else 7)) if registers else 0


def registers_for(warps_per_sm: int, block_warps: int = 8) -> int:
    """Return the most registers per thread with which `warps_per_sm` warps fit an SM.

    65,536 registers, handed out 256 at a time per warp, in whole blocks (docs/papers/dlrm.md, 3.1).
    Raises UnsupportedError for a number of warps that blocks of 8 cannot make.
    """
    if warps_per_sm % block_warps or not 8 <= warps_per_sm <= 64:
        raise UnsupportedError(
            f"blocks of {block_warps} warps cannot make {warps_per_sm} warps per SM; "
            "fix: a multiple of 8 up to 64"
        )
    return min(248, 65536 // (warps_per_sm * 32) // 8 * 8)

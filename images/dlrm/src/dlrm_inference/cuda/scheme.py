"""The paper's design space: kernels/scheme.cu, one compilation per design point.

Every point does the work of PyTorch 2.1's operator (brief, section 3.1): generic strides, bounds
check in the loop, offset2bag written. They differ in prefetching and in registers alone.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from functools import cache

import torch

from dlrm_inference.cuda import launch
from dlrm_inference.cuda.compile import Compiled, compile_source
from dlrm_inference.cuda.tensors import (
    INDEX_TYPES,
    Prepared,
    UnsupportedError,
    check_tensors,
    make_out,
)

BASE_REGISTERS = 74  # of the operator in PyTorch 2.1 to 2.5 (brief, section 3.1): 24 warps per SM
OPTMT_REGISTERS = 42  # the artifact's cap (D7): 40 warps per SM
PLAIN, REGISTER, SHARED, ASYNC, L1, LOCAL = range(6)  # SCHEME in kernels/scheme.cu
GRID = 1024
BLOCK = (32, 8, 1)
"""Launch shape of the paper's kernels: 8 warps a block, each on a 32-column slice of a bag."""


class _SchemeArguments(ctypes.Structure):
    """`Arguments` of kernels/scheme.cu, field by field."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("offset_to_bag", ctypes.c_void_p),
        ("sample_weights", ctypes.c_void_p),
        ("bags", ctypes.c_longlong),
        ("columns", ctypes.c_longlong),
        ("rows", ctypes.c_longlong),
        ("row_stride", ctypes.c_longlong),
        ("column_stride", ctypes.c_longlong),
        ("out_stride", ctypes.c_longlong),
        ("padding_row", ctypes.c_longlong),
        ("mean", ctypes.c_int),
        ("error", ctypes.c_void_p),
        ("ballast", ctypes.c_void_p),
    )


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """A design point of the paper: kernels/scheme.cu with these choices. fp32 tables."""

    name: str
    summary: str
    scheme: int = PLAIN
    distance: int = 1  # rows ahead
    registers: int = (
        OPTMT_REGISTERS  # exactly so many per thread, by cap and ballast; 0 as compiled
    )
    pins: bool = False  # the gather follows an L2 pin (cuda/pin.py)
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)

    @property
    def block_warps(self) -> int:
        """Warps of a block."""
        return BLOCK[1]

    def forward(
        self,
        weight: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        *,
        mode: str = "sum",
        out: torch.Tensor | None = None,
        check: bool = False,
    ) -> torch.Tensor:
        """Return the bags' sums or means (bags, dim), on PyTorch's current stream.

        weight (rows, dim) fp32 with any strides; indices (accesses,) int32 or int64; offsets
        (bags + 1,) of the same type. `out` may have any row stride, but contiguous columns.
        An index outside the table raises IndexError: at once with `check` (which waits for the
        kernel), else at the next call or `launch.raise_if_out_of_range`. Raises UnsupportedError.
        """
        prepared = self.prepare(weight, indices, offsets, mode=mode, out=out)
        if not torch.cuda.is_current_stream_capturing():
            launch.raise_if_out_of_range(weight.device, wait=False)
        prepared()
        if check:
            launch.raise_if_out_of_range(weight.device)
        return prepared.out

    def prepare(
        self,
        weight: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        *,
        mode: str = "sum",
        out: torch.Tensor | None = None,
    ) -> Prepared:
        """Return the launch that `forward` makes, not yet made."""
        check_tensors(self.name, self.dtypes, weight, indices, offsets, mode)
        bags, device = offsets.numel() - 1, weight.device
        out = make_out(weight, bags, out)
        # The operator of PyTorch writes every index's bag while it gathers; so do these.
        offset_to_bag = torch.empty_like(indices)
        struct = _SchemeArguments(
            weight=weight.data_ptr(),
            indices=indices.data_ptr(),
            offsets=offsets.data_ptr(),
            out=out.data_ptr(),
            offset_to_bag=offset_to_bag.data_ptr(),
            bags=bags,
            columns=weight.shape[1],
            rows=weight.shape[0],
            row_stride=weight.stride(0),
            column_stride=weight.stride(1),
            out_stride=out.stride(0),
            padding_row=-1,
            mean=mode == "mean",
            error=launch.error_flag(device).data_ptr(),
        )
        owners = (weight, indices, offsets, out, offset_to_bag)
        return Prepared(
            kernel=self.kernel(device, indices.dtype),
            grid=(GRID, 1, 1),
            block=BLOCK,
            arguments=launch.Arguments(struct, owners),
            out=out,
        )

    def kernel(self, device: torch.device, index: torch.dtype = torch.int64) -> launch.Kernel:
        """Return the loaded kernel for `device`, compiled at first use."""
        return _load(self, device, index)

    def compile(self, arch: str, index: torch.dtype = torch.int64) -> Compiled:
        """Compile for `arch` ("sm_90"); needs no GPU."""
        macros = {
            "INDEX": INDEX_TYPES[index],
            "SCHEME": self.scheme,
            "DISTANCE": self.distance,
            "BALLAST": ballast(arch, self.registers),
        }
        return compile_source("scheme", arch, macros, self.registers)

    def attributes(self, device: torch.device) -> launch.Attributes:
        """Return registers, local, shared and spill bytes, blocks and warps per SM, occupancy."""
        return self.kernel(device).attributes(BLOCK[0] * BLOCK[1])

    def supports(
        self,
        weight: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        mode: str = "sum",
    ) -> str:
        """Return why these tensors cannot be served, "" when they can."""
        try:
            check_tensors(self.name, self.dtypes, weight, indices, offsets, mode)
        except UnsupportedError as error:
            return str(error)
        return ""

    def tuned(self, distance: int = 0, registers: int = 0, warps_per_sm: int = 0) -> Scheme:
        """Return this variant at another prefetch distance or occupancy; 0 leaves it as it is.

        `warps_per_sm` (a multiple of 8) sets the registers that allow exactly so many warps.
        """
        changed = self
        if distance and self.scheme != PLAIN:
            changed = replace(changed, distance=distance)
        if warps_per_sm:
            registers = registers_for(warps_per_sm)
        return replace(changed, registers=registers) if registers else changed


@cache
def _load(variant: Scheme, device: torch.device, index: torch.dtype) -> launch.Kernel:
    compiled = variant.compile(launch.arch_of(device), index)
    return launch.Kernel(compiled, "scheme", device)


def ballast(arch: str, registers: int) -> int:
    """Return how many values must be held alive so that a kernel takes `registers` registers.

    The rest goes to addresses; code for sm_90 and later keeps two more for itself.
    """
    return max(0, registers - (5 if int(arch.removeprefix("sm_")) < 90 else 7)) if registers else 0


def registers_for(warps_per_sm: int, block_warps: int = 8) -> int:
    """Return the most registers per thread with which `warps_per_sm` warps fit an SM.

    65,536 registers, handed out 256 at a time per warp, in whole blocks (brief, section 3.1).
    Raises UnsupportedError for a number of warps that blocks of 8 cannot make.
    """
    if warps_per_sm % block_warps or not 8 <= warps_per_sm <= 64:
        raise UnsupportedError(
            f"blocks of {block_warps} warps cannot make {warps_per_sm} warps per SM; "
            "fix: a multiple of 8 up to 64"
        )
    return min(248, 65536 // (warps_per_sm * 32) // 8 * 8)


def warps_for(registers: int, block_warps: int = 8, most: int = 64) -> int:
    """Return the warps per SM that `registers` per thread allow: the inverse of registers_for."""
    granules = -(-registers // 8)
    per_partition = 16384 // (granules * 256)
    return min(most, per_partition * 4 // block_warps * block_warps)

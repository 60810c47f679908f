"""A kernel of the oracle: its kind, the memory blocks it touches, and what a library may add."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch import Tensor

BLOCK = 512  # PyTorch's allocator hands out multiples of it, bytes
# Numbers that no storage has: a buffer that lives within one operator, and what a kernel writes.
SCRATCH, OUTPUT = -1, -2


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """A matrix product as cuBLAS sees it: rows and columns of the output, and the inner length.

    `light` where it goes through cublasLt, which has a workspace of its own.
    """

    rows: int
    columns: int
    inner: int
    batch: int = 1
    light: bool = False

    @property
    def depth(self) -> float:
        """Inner length per element of the output: large where splitting it pays."""
        return self.inner / (self.rows * self.columns * self.batch)

    @property
    def bytes(self) -> int:
        """Bytes of one product in fp32."""
        return 4 * self.rows * self.columns


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One launch. `blocks` maps each storage touched to its size in bytes, as allocated."""

    name: str
    operator: str
    blocks: dict[int, int]
    gemm: Gemm | None = None
    output: int = 0  # bytes of the blocks that a GEMM or attention writes
    extra: int = 0  # bytes of workspace that the library's choice adds
    bound: int = 0  # bytes of all that its operator's arguments and results hold

    @property
    def working_set(self) -> int:
        """Bytes: the sum of the full sizes of the blocks touched."""
        return sum(self.blocks.values()) + self.extra

    def with_extra(self, extra: int) -> Kernel:
        """The same kernel when it touches `extra` bytes of workspace too."""
        return replace(self, extra=extra)


def rounded(size: int) -> int:
    """Bytes of the block that PyTorch's allocator gives for `size` bytes."""
    return -(-size // BLOCK) * BLOCK


def blocks_of(things: Iterable[object]) -> dict[int, int]:
    """The distinct storages of the tensors in `things` (nested lists too), with their block sizes.

    Tensors on the CPU (scalars that Python wrapped) are none of the device's memory.
    """
    found: dict[int, int] = {}
    for thing in things:
        if isinstance(thing, Tensor):
            storage = thing.untyped_storage()
            if thing.device.type != "cpu" and storage.nbytes():
                found[storage._cdata] = rounded(storage.nbytes())
        elif isinstance(thing, list | tuple):
            found |= blocks_of(thing)
    return found

"""Stock PyTorch on managed memory, pooling kept: a MemPool over an allocator of managed memory.

Segments come from cudaMallocManaged (the paper's objects), blocks are PyTorch's tensors. The card
is never asked for more than it has free, unless ACCEL_TRACE_ALLOW_OVERSUBSCRIPTION=1: on a machine
that others use, an oversubscribed GPU can hang. Needs PyTorch 2.5 or newer, CUDA, and g++.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from accel_trace.builds import BuildError
from accel_trace.handlers.compiling import cached_build, cuda_headers

SOURCE = Path(__file__).parent / "managed.cc"
RESERVE = 1 << 30  # bytes of the card that managed memory leaves alone
ALLOW = "ACCEL_TRACE_ALLOW_OVERSUBSCRIPTION"


class ManagedError(RuntimeError):
    """Managed memory cannot be used, or there is not enough; one sentence with what helps."""


def oversubscription_allowed() -> bool:
    """Whether the user said that this GPU may be oversubscribed."""
    return os.environ.get(ALLOW) == "1"


def build(cuda: str) -> Path:
    """The compiled allocator for a CUDA version, such as 13.0. Raises BuildError."""
    headers = cuda_headers(cuda)

    def command(output: Path, compiler: str) -> list[str]:
        call = [compiler, "-std=c++17", "-O2", "-fPIC", "-shared", "-Wall", *headers]
        return [*call, str(SOURCE), "-o", str(output), "-ldl"]

    return cached_build("managed", (SOURCE,), cuda, command)


class Allocator:
    """The compiled allocator: its limit, and its pieces by number in the order of allocation."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        numbers = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p)
        self.library.accel_trace_managed_piece.argtypes = numbers
        self.library.accel_trace_managed_pieces.restype = ctypes.c_uint64
        self.library.accel_trace_managed_refused.restype = ctypes.c_uint64
        self.library.accel_trace_managed_refused.argtypes = [ctypes.c_void_p]
        self.library.accel_trace_managed_limit.argtypes = [ctypes.c_uint64, ctypes.c_int]
        self.library.accel_trace_managed_inside.argtypes = [ctypes.c_uint64]

    @property
    def inside_address(self) -> int:
        """Address of the C function that says whether an address is managed."""
        function = self.library.accel_trace_managed_inside
        return int(ctypes.cast(function, ctypes.c_void_p).value or 0)

    def limit(self, reserve: int, *, unlimited: bool = False) -> None:
        """Leave `reserve` bytes of a card free; `unlimited`: hand out more than it has."""
        self.library.accel_trace_managed_limit(reserve, int(unlimited))

    def inside(self, address: int) -> bool:
        """Whether a live piece holds the address."""
        return bool(self.library.accel_trace_managed_inside(address))

    def pieces(self) -> int:
        """Pieces allocated so far."""
        return int(self.library.accel_trace_managed_pieces())

    def piece(self, number: int) -> tuple[int, int] | None:
        """Address and bytes of a piece, None when it is gone."""
        found = self.any_piece(number)
        return found[:2] if found is not None and found[2] else None

    def any_piece(self, number: int) -> tuple[int, int, bool] | None:
        """Address, bytes, and whether it is alive; None for a number that was not given yet."""
        address, size = ctypes.c_uint64(), ctypes.c_uint64()
        alive = self.library.accel_trace_managed_piece(
            number, ctypes.byref(address), ctypes.byref(size)
        )
        return None if alive < 0 else (int(address.value), int(size.value), alive == 1)

    def refused(self) -> tuple[int, int]:
        """Bytes of the last request that was refused, and bytes there were; zeros for none."""
        left = ctypes.c_uint64()
        size = self.library.accel_trace_managed_refused(ctypes.byref(left))
        return int(size), int(left.value)


_allocators: dict[Path, Allocator] = {}


def allocator(torch: ModuleType) -> Allocator:
    """The allocator of this process. Raises ManagedError."""
    if not torch.version.cuda or not torch.cuda.is_available():
        raise ManagedError("managed memory needs a GPU and a PyTorch that is built with CUDA")
    if not hasattr(torch.cuda, "MemPool"):
        raise ManagedError(f"PyTorch {torch.__version__} has no torch.cuda.MemPool; 2.5 has")
    try:
        path = build(str(torch.version.cuda))
    except BuildError as error:
        raise ManagedError(str(error)) from error
    if path not in _allocators:
        _allocators[path] = Allocator(path)
    return _allocators[path]


_pools: list[Any] = []


@contextmanager
def managed_pool(*, device: int = 0, reserve: int = RESERVE) -> Iterator[Allocator]:
    """Route what PyTorch allocates on `device`, in this thread, to managed memory.

    Backward passes run in this thread meanwhile, else their memory would be ordinary. Tensors may
    outlive the block; their pool is kept to the end of the process. Raises ManagedError, also in
    place of PyTorch's out-of-memory error where the limit refused a request.
    """
    import torch

    memory = allocator(torch)
    memory.limit(reserve, unlimited=oversubscription_allowed())
    torch.cuda.init()
    plugged = torch.cuda.memory.CUDAPluggableAllocator(
        str(memory.path), "accel_trace_managed_alloc", "accel_trace_managed_free"
    )
    inner = plugged.allocator() if hasattr(plugged, "allocator") else plugged._allocator
    pool = torch.cuda.MemPool(inner)
    _pools.extend((plugged, pool))
    before = memory.refused()
    try:
        with (
            torch.cuda.use_mem_pool(pool, device=device),
            torch.autograd.set_multithreading_enabled(False),
        ):
            yield memory
    except torch.OutOfMemoryError as error:
        refused, left = memory.refused()
        if (refused, left) == before:
            raise
        raise ManagedError(
            f"{refused} bytes of managed memory were asked for where {left} are free on GPU "
            f"{device} (less a reserve of {reserve}); use a smaller batch, or set {ALLOW}=1 on "
            "a machine that nobody else uses"
        ) from error


def ballast(leave: int, *, device: int = 0) -> Any:
    """Fill the card with plain memory until about `leave` bytes are free; keep what is returned.

    For oversubscription as in Figure 12, so only with ACCEL_TRACE_ALLOW_OVERSUBSCRIPTION=1.
    Raises ManagedError. The memory is touched; the free bytes are read again just before.
    """
    if not oversubscription_allowed():
        raise ManagedError(
            f"ballast makes managed memory exceed the card, which can hang a GPU; "
            f"set {ALLOW}=1 on a machine that nobody else uses"
        )
    import torch

    if not torch.cuda.is_available():
        raise ManagedError("ballast needs a GPU")
    free, _ = torch.cuda.mem_get_info(device)
    size = free - leave
    if size <= 0:
        raise ManagedError(f"only {free} bytes are free on GPU {device}; leave fewer than {leave}")
    weight = torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")
    weight.fill_(1)
    torch.cuda.synchronize(device)
    return weight

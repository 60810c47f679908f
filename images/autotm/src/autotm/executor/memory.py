"""What PyTorch's allocator gives to an operator: how much of it, and where it lies.

An operator asks the allocator for its workspace and for results that it does not write in place.
Within a `Region` all of that lies in memory that its owner had before: in an arena, at an address
of a plan. How much it takes there is found out by a pool of its own (`pooled`).
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod

import torch

from autotm.executor.calls import BLOCK, Call
from autotm.graph import aligned

SEGMENT = 1 << 21  # the allocator takes large blocks from the driver by the whole of these
_GIVES = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
_TAKES = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
_KEPT = _TAKES(lambda *_: None)  # called when a pool ends, whenever that is


@dataclass
class _Ground:
    """Addresses from `begin` to `end`, given away one after the other, from `free` on.

    refused: how often there was no room.
    """

    begin: int
    end: int
    free: int
    refused: int = 0

    def give(self, size: int, device: int, stream: int | None) -> int | None:
        if self.free + size > self.end:
            self.refused += 1
            return None
        self.free += size
        return self.free - size


class Region:
    """Within it, what this thread allocates lies in `memory`, and what does not fit there fails.

    The allocator has it as two free blocks, one of a `SEGMENT` for what is smaller than a MiB. So
    what comes later has the room of what is gone, of whatever size that was.

    memory: uint8, 1-d, of a GPU, not from the first byte of its storage on, as the allocator knows
    blocks by where they begin. What was allocated must be gone before the next time. After that it
    is `over`, for `peak_of`.
    """

    def __init__(self, memory: torch.Tensor) -> None:
        self.device, self._held = memory.device, 0
        begin = memory.data_ptr()
        self._ground = _Ground(begin, begin + memory.numel(), begin)
        # A pool keeps what it was given for the next time, and gives all back when it ends.
        self._give = _GIVES(self._ground.give)
        where = [ctypes.cast(each, ctypes.c_void_p).value for each in (self._give, _KEPT)]
        self._allocator = torch._C._cuda_customAllocator(*where)
        self._pools: dict[torch.cuda.Stream, torch.cuda.MemPool] = {}  # one, of the last stream
        # Also when Python ends: afterwards nobody can be called.
        self._finalizer = weakref.finalize(self, self._pools.clear)

    @property
    def refused(self) -> bool:
        """Whether something did not fit."""
        return self._ground.refused > 0

    def _pool(self) -> torch.cuda.MemPool:
        """Blocks are a stream's, so another one has another pool."""
        stream, ground = torch.cuda.current_stream(self.device), self._ground
        if stream not in self._pools:
            self._pools.clear()
            ground.free = ground.begin
            with torch.cuda.device(self.device):
                pool = torch.cuda.MemPool(self._allocator)
            rest = (ground.end - ground.begin) // SEGMENT * SEGMENT - SEGMENT
            with torch.cuda.use_mem_pool(pool, self.device):
                for size in (1, rest):
                    torch.empty(size, dtype=torch.uint8, device=self.device)
            self._pools[stream] = pool
        return self._pools[stream]

    def __enter__(self) -> None:
        if _peaks:
            self._held = -torch.cuda.memory_allocated(self.device)
            _peaks[-1].look()
        self._within = torch.cuda.use_mem_pool(self._pool(), self.device)
        self._within.__enter__()

    def __exit__(self, *error: object) -> None:
        self._within.__exit__(*error)
        if _peaks:
            self._held += torch.cuda.memory_allocated(self.device)
            _peaks[-1].twice(self._held)

    def has(self, tensor: torch.Tensor) -> bool:
        return self._ground.begin <= tensor.data_ptr() < self._ground.end

    def over(self) -> None:
        """What was allocated within is gone."""
        if _peaks:
            _peaks[-1].look()
            _peaks[-1].twice(-self._held)


class _Peak:
    """The most bytes allocated so far, each counted once: what lies in a region is counted with the
    memory of the region, too."""

    def __init__(self, device: torch.device) -> None:
        self.most, self._device, self._twice = 0, device, 0
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)

    def look(self) -> None:
        self.most = max(self.most, torch.cuda.max_memory_allocated(self._device) - self._twice)

    def twice(self, more: int) -> None:
        self._twice += more
        torch.cuda.reset_peak_memory_stats(self._device)


_peaks: list[_Peak] = []  # that are being measured


def peak_of(run: Callable[[], object], device: torch.device) -> int:
    """The most bytes allocated on a GPU while `run()` runs, with what was there before."""
    _peaks.append(_Peak(device))
    try:
        run()
        torch.cuda.synchronize(device)
        _peaks[-1].look()
        return _peaks[-1].most
    finally:
        _peaks.pop()


@cache
def regions_on(device: torch.device) -> bool:
    """Whether there are regions: not on a CPU, and not with every setting of the allocator."""
    if device.type != "cuda" or torch.cuda.get_allocator_backend() != "native":
        return False
    if torch.cuda.get_per_process_memory_fraction(device) < 1:  # what lies in one counts twice
        return False
    region = Region(room(8 * SEGMENT, device))
    try:
        with region:
            found = torch.empty(BLOCK, dtype=torch.uint8, device=device)
    except RuntimeError:
        return False
    inside = region.has(found)
    del found  # before its region
    return inside


def room(size: int, device: torch.device) -> torch.Tensor:
    """Memory of a GPU that may have regions: `size` bytes, after a block of the same storage."""
    return torch.empty(BLOCK + size, dtype=torch.uint8, device=device)[BLOCK:]


def given_bytes(call: Call) -> int:
    """Bytes of a call's results, as an allocator takes them from the driver."""
    sizes = [prod(view.size) * view.dtype.itemsize for view in call.outputs if view is not None]
    return sum(aligned(each, SEGMENT) for each in sizes)


def pooled(run: Callable[[], object], device: torch.device) -> int:
    """Bytes of a region in which a call can run; 0 where something of it stays, and it has none.

    What stays is a library's: cuBLAS keeps a workspace for each stream, and this one is new to it.
    """
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()  # else what is kept for later may be given back meanwhile
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_stats(device)
    with torch.cuda.device(device):
        pool, stream = torch.cuda.MemPool(), torch.cuda.Stream()
        with torch.cuda.use_mem_pool(pool), torch.cuda.stream(stream):
            run()
    torch.cuda.synchronize(device)
    after = torch.cuda.memory_stats(device)

    def more(what: str) -> int:
        return int(after[f"{what}.peak"] - before[f"{what}.current"])

    if torch.cuda.memory_allocated(device) > before["allocated_bytes.all.current"]:
        forget_workspaces(device)
        return 0
    del pool
    torch.cuda.empty_cache()
    # As much as is there at once, or, where that leaves holes, as much as in blocks of their own.
    sizes = more("allocated_bytes.large_pool"), more("reserved_bytes.all")
    fitting = (SEGMENT + aligned(size, SEGMENT) for size in sizes)
    return next((size for size in fitting if _runs(run, size, stream)), 0)


def _runs(run: Callable[[], object], size: int, stream: torch.cuda.Stream) -> bool:
    """Whether a call has all that it asks for in a region of some bytes."""
    region = Region(room(size, stream.device))
    with contextlib.suppress(torch.OutOfMemoryError), torch.cuda.stream(stream), region:
        run()
    torch.cuda.synchronize(stream.device)
    return not region.refused


def forget_workspaces(device: torch.device) -> None:
    """Give back what cuBLAS keeps from its first call on, so that who needs it counts it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch._C._cuda_clearCublasWorkspaces()

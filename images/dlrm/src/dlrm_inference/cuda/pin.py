"""L2 pinning in four modes (docs/papers/dlrm.md, 3.7), every limit given back afterwards.

    hint            evict_last prefetches of the hot rows before the gather, as the artifact does
    setaside        the same, into the part of the L2 that is set aside for persisting lines
    window          hot rows moved to the table's front, an access-policy window over them
    setaside_reset  as setaside, and persisting lines are given up between tables

How many rows: what the set-aside holds at most, asked of the device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from dlrm_inference.cuda import launch
from dlrm_inference.cuda.compile import compile_source
from dlrm_inference.cuda.launch import Window
from dlrm_inference.cuda.tensors import Prepared

THREADS = 256
LINE_BYTES = 128


@dataclass(frozen=True, kw_only=True)
class L2:
    """What a device offers for persisting lines, in bytes."""

    size: int
    most_set_aside: int
    most_window: int

    def hot_rows(self, row_bytes: int) -> int:
        """Return how many whole rows the largest set-aside holds."""
        return self.most_set_aside // row_bytes


def read_l2(device: torch.device) -> L2:
    """Ask the driver. `most_set_aside` is 0 where a device has none (MIG, before sm_80)."""
    driver = launch.import_driver()
    names = driver.CUdevice_attribute
    number = device.index if device.index is not None else torch.cuda.current_device()

    def ask(attribute: Any) -> int:
        return int(_checked("cuDeviceGetAttribute", driver.cuDeviceGetAttribute(attribute, number)))

    return L2(
        size=ask(names.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
        most_set_aside=ask(names.CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE),
        most_window=ask(names.CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE),
    )


@contextmanager
def set_aside(size: int) -> Iterator[int]:
    """Set `size` bytes of the L2 aside inside the block; yield what was granted.

    Gives the former limit back and resets persisting lines, whatever happens. The current context
    must be PyTorch's.
    """
    driver = launch.import_driver()
    limit = driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE
    before = _checked("cuCtxGetLimit", driver.cuCtxGetLimit(limit))
    _checked("cuCtxSetLimit", driver.cuCtxSetLimit(limit, size))
    try:
        yield int(_checked("cuCtxGetLimit", driver.cuCtxGetLimit(limit)))
    finally:
        try:
            torch.cuda.synchronize()
        finally:
            reset()
            _checked("cuCtxSetLimit", driver.cuCtxSetLimit(limit, before))


def reset() -> None:
    """Give up all persisting lines. Acts at once, not in stream order: synchronise first."""
    driver = launch.import_driver()
    _checked("cuCtxResetPersistingL2Cache", driver.cuCtxResetPersistingL2Cache())


def make_pin(weight: torch.Tensor, hot_rows: torch.Tensor) -> Callable[[], None]:
    """Return a call that queues the prefetches of `hot_rows` (count,) int64 of `weight`."""
    row_bytes = weight.shape[1] * weight.element_size()
    count = hot_rows.numel()
    kernel = launch.Kernel(
        compile_source("pin", launch.arch_of(weight.device), {}), "pin", weight.device
    )
    arguments = launch.Values(
        (
            ctypes.c_void_p(weight.data_ptr()),
            ctypes.c_void_p(hot_rows.data_ptr()),
            ctypes.c_longlong(count),
            ctypes.c_longlong(weight.stride(0) * weight.element_size()),
            ctypes.c_int(row_bytes),
        ),
        (weight, hot_rows),
    )
    lines = (row_bytes + LINE_BYTES - 1) // LINE_BYTES + 1  # as the kernel counts them
    grid = (max(1, -(-count * lines // THREADS)), 1, 1)
    return lambda: kernel.launch(grid, (THREADS, 1, 1), arguments)


def hot_first(rows: int, hot_rows: torch.Tensor) -> torch.Tensor:
    """Return the order (rows,) int64 in which a table lists its hot rows first, then the rest."""
    cold = torch.ones(rows, dtype=torch.bool, device=hot_rows.device)
    cold[hot_rows] = False
    return torch.cat([hot_rows, cold.nonzero().flatten()])


def windowed(prepared: Prepared, table: torch.Tensor, hot: int, aside: int) -> Callable[[], None]:
    """Return a call that queues `prepared` with a window over the first `hot` rows of `table`."""
    size = hot * table.stride(0) * table.element_size()
    window = Window(
        base=table.data_ptr(), size=size, hit_ratio=min(1.0, aside / size) if size else 0.0
    )
    return lambda: prepared(window)


def _checked(call: str, answer: tuple[Any, ...]) -> Any:
    return launch.check(launch.import_driver(), call, answer)

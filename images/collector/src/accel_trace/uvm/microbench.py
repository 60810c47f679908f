"""Fault-bound microbenchmark: a strided touch of a managed buffer that lies on the host.

Shows what the driver's own prefetching does to the baseline of Figures 11 and 12: with it on, a
touch of one byte in 64 KiB moves far more bytes than one page each. `python -m
accel_trace.uvm.microbench --mib 256 --stride 65536` prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from accel_trace.events import Event, ManagedCounter
from accel_trace.handlers.cupti import Collector, CuptiError
from accel_trace.uvm.managed import ManagedError, managed_pool
from accel_trace.uvm.runtime import HOST, Runtime, RuntimeMissing, driver_prefetch


@dataclass(frozen=True)
class Touch:
    """One touch: bytes of the buffer, of the stride, and touched; seconds, synchronised.

    `moved_in`, `moved_out` and `faults` are CUPTI's counters, None where CUPTI is not to be had.
    """

    bytes: int
    stride: int
    touches: int
    prefetched: bool
    seconds: float
    moved_in: int | None
    moved_out: int | None
    faults: int | None
    driver_prefetch: int | None


def counters(events: Iterable[Event]) -> tuple[int, int, int]:
    """Bytes moved to the GPU, bytes moved to the host, and GPU page faults, of CUPTI's events."""
    totals = {"BYTES_TRANSFER_HTOD": 0, "BYTES_TRANSFER_DTOH": 0, "GPU_PAGE_FAULT": 0}
    for event in events:
        if isinstance(event, ManagedCounter) and event.what in totals:
            totals[event.what] += event.value
    return totals["BYTES_TRANSFER_HTOD"], totals["BYTES_TRANSFER_DTOH"], totals["GPU_PAGE_FAULT"]


def touch(size: int, stride: int, *, prefetch: bool = False, device: int = 0) -> Touch:
    """Touch one byte in `stride` of `size` managed bytes, after moving all of them to the host.

    Raises ManagedError (more than the card has free, no GPU), RuntimeMissing, ValueError.
    """
    if size <= 0 or stride <= 0 or stride > size:
        raise ValueError(f"stride {stride} of {size} bytes: give 0 < stride <= size")
    import torch

    runtime = Runtime()
    collector = _collector(device)  # before the context: CUPTI counts nothing in one that is there
    with managed_pool(device=device):
        buffer = torch.zeros(size, dtype=torch.uint8, device=f"cuda:{device}")
    some = buffer[::stride]
    some.add_(0)  # the kernel is loaded before it is timed
    stream = runtime.stream()
    runtime.prefetch(buffer.data_ptr(), size, HOST, stream)
    runtime.synchronize()
    begin_ns = time.monotonic_ns()
    if prefetch:
        runtime.prefetch(buffer.data_ptr(), size, device, stream)
        runtime.synchronize()
    start = time.perf_counter()
    some.add_(1)
    runtime.synchronize()
    seconds = time.perf_counter() - start
    moved_in, moved_out, faults = _counted(collector, begin_ns)
    runtime.destroy(stream)
    return Touch(
        bytes=size,
        stride=stride,
        touches=some.numel(),
        prefetched=prefetch,
        seconds=seconds,
        moved_in=moved_in,
        moved_out=moved_out,
        faults=faults,
        driver_prefetch=driver_prefetch(),
    )


def _counted(
    collector: Collector | None, begin_ns: int
) -> tuple[int, int, int] | tuple[None, None, None]:
    """The counters since `begin_ns`, of the monotonic clock; none where nothing was counted."""
    if collector is None:
        return None, None, None
    totals = counters(event for event in collector.finish() if event.ns >= begin_ns)
    if any(totals):
        return totals
    sys.stderr.write(
        "accel-trace: bytes moved are not counted: CUPTI told of none, and some had to be moved\n"
    )
    return None, None, None


def _collector(device: int) -> Collector | None:
    try:
        collector = Collector(managed=True, devices=device + 1)
        collector.start()
    except CuptiError as error:
        sys.stderr.write(f"accel-trace: bytes moved are not counted: {error}\n")
        return None
    return collector


def main(arguments: list[str] | None = None) -> int:
    """Run one touch, print it as JSON; 77 where there is no GPU for it."""
    parser = argparse.ArgumentParser(description="strided touch of a managed buffer")
    parser.add_argument("--mib", type=int, default=256, help="MiB of the buffer (default 256)")
    parser.add_argument("--stride", type=int, default=65536, help="bytes between touches")
    parser.add_argument("--prefetch", action="store_true", help="prefetch the buffer before")
    options = parser.parse_args(arguments)
    try:
        result = touch(options.mib << 20, options.stride, prefetch=options.prefetch)
    except (ManagedError, RuntimeMissing) as error:
        sys.stderr.write(f"accel-trace: {error}\n")
        return 77
    except ValueError as error:
        parser.error(str(error))
    sys.stdout.write(json.dumps(asdict(result)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

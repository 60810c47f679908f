"""One model on managed memory: the program of Figures 11 and 12, profiled or with prefetching.

All that PyTorch allocates is managed. Before the measured iterations everything is moved to the
host, so that each policy starts from the same place: what an iteration touches has to come to the
GPU, by faults or by prefetches. One iteration before that loads kernels and libraries, which no
policy has a part in. Times are from idle GPU to idle GPU. Prints one JSON line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from reprokit.skip import cannot_run

from pasta_workloads.pinned import pin_torch
from pasta_workloads.workload import build

PRINTED = "managed "  # begins the line with the result
ALLOW = "ACCEL_TRACE_ALLOW_OVERSUBSCRIPTION"
COUNTERS = {
    "BYTES_TRANSFER_HTOD": "moved_in", "BYTES_TRANSFER_DTOH": "moved_out",
    "GPU_PAGE_FAULT": "faults", "THRASHING": "thrashing",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Managed:
    """What to run. `advice` empty: a profiling run. `leave` bytes of the card are not ballast's."""

    model: str
    mode: str
    size: str
    policy: str
    advice: str = ""
    leave: int = 0
    iterations: int = 1
    seed: int = 100


def run_managed(job: Managed) -> dict[str, Any]:
    """Run it and return the result that it prints too. Leaves with 77 where it cannot run."""
    from accel_trace.uvm.advice import Advice
    from accel_trace.uvm.managed import ManagedError, ballast, managed_pool
    from accel_trace.uvm.replay import Replay
    from accel_trace.uvm.runtime import Runtime, RuntimeMissing

    pin_torch()
    try:
        runtime = Runtime()
        # Before the context: CUPTI counts nothing in one that is there.
        counters = _Counters() if job.advice else None
        advice = Advice.load(Path(job.advice)) if job.advice else None
        # Before the pool, in which it would be managed itself.
        weight = ballast(job.leave) if job.leave else None
        with managed_pool() as memory, Replay(memory, advice, job.policy) as replay:
            workload = build(job.model, job.mode, job.size, "cuda", job.seed)
            workload.iteration()
            torch.cuda.synchronize()
            _to_host(runtime, memory)
            begin_ns = time.monotonic_ns()
            start = time.perf_counter()
            with replay.active() as report:
                for _ in range(job.iterations):
                    workload.iteration()
            torch.cuda.synchronize()
            seconds = time.perf_counter() - start
            moved = counters.finish(begin_ns) if counters is not None else {}
            found = {"seconds": seconds, "footprint": _footprint(memory), **moved}
            found |= asdict(report)
        del weight
    except (ManagedError, RuntimeMissing) as error:
        cannot_run(str(error))
    print(PRINTED + json.dumps(found), flush=True)
    return found


def allow_oversubscription() -> None:
    """Say to the collector's managed memory that the person at the keyboard asked for it."""
    os.environ[ALLOW] = "1"


def _to_host(runtime: Any, memory: Any) -> None:
    """Move every live managed piece to the host, and wait."""
    from accel_trace.uvm.runtime import HOST

    stream = runtime.stream()
    for number in range(memory.pieces()):
        piece = memory.piece(number)
        if piece is not None:
            runtime.prefetch(*piece, HOST, stream)
    runtime.destroy(stream)
    runtime.synchronize()


def _footprint(memory: Any) -> int:
    """Bytes of the managed pieces that are alive; PyTorch's pool keeps what an iteration took."""
    pieces = [memory.piece(number) for number in range(memory.pieces())]
    return sum(piece[1] for piece in pieces if piece is not None)


class _Counters:
    """CUPTI's unified-memory counters; without CUPTI nothing is counted, and that is said."""

    def __init__(self) -> None:
        from accel_trace.handlers.cupti import Collector, CuptiError

        self._collector: Any = None
        try:
            collector = Collector(managed=True)
            collector.start()
            self._collector = collector
        except CuptiError as error:
            print(f"bytes moved are not counted: {error}", file=sys.stderr, flush=True)

    def finish(self, begin_ns: int) -> dict[str, int]:
        """Totals since `begin_ns` (monotonic) by our names; empty where nothing was counted."""
        from accel_trace.events import ManagedCounter

        if self._collector is None:
            return {}
        totals = dict.fromkeys(COUNTERS.values(), 0)
        for event in self._collector.finish():
            if isinstance(event, ManagedCounter) and event.ns >= begin_ns:
                name = COUNTERS.get(event.what)
                if name is not None:
                    totals[name] += event.value
        if any(totals.values()):
            return totals
        words = "CUPTI told of none, and all of the model had to be moved"
        print(f"bytes moved are not counted: {words}", file=sys.stderr, flush=True)
        return {}

"""Peak, time and what went wrong of a training step.

Peaks are measured, never predicted: of an iteration after a first one, with everything that is
allocated for it and what was there before.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from autotm.executor.errors import AutotmError
from autotm.executor.memory import forget_workspaces, peak_of
from autotm.rivals.base import Run

IN_A_ROW = 3  # iterations that are timed as one
LONG = 1.0  # s after which no other one begins


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """The most bytes allocated on a device while `run()` runs, with what was there before.

    A CPU has no such counter: there it is what PyTorch's profiler saw, from 0 on.
    """
    if device.type == "cuda":
        return peak_of(run, device)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        run()
    kineto = seen.profiler
    assert kineto is not None
    events = [each for each in kineto.kineto_results.events() if each.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


def held_bytes(module: nn.Module, sample: Sequence[torch.Tensor]) -> int:
    """What was there before an iteration and a CPU's peak does not know of: 0 on a GPU."""
    if sample[0].device.type == "cuda":
        return 0
    return sum(each.nbytes for each in (*module.parameters(), *module.buffers(), *sample))


def seconds_of(run: Run, device: torch.device) -> float:
    """Seconds of an iteration: of some in a row, from an idle device to an idle one.

    So a host that is ahead of its GPU prepares the next one meanwhile, as in training. One that
    waits for its GPU (copies of `save_on_cpu`) is not ahead, and long iterations are fewer.
    """
    begin, done = time.perf_counter(), 0
    while done < IN_A_ROW and time.perf_counter() - begin < LONG:
        run()
        done += 1
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - begin) / done


def tidy(device: torch.device) -> None:
    """Let go of what nobody uses, and of what libraries and allocators keep on the device."""
    gc.collect()
    forget_workspaces(device)
    if device.type == "cuda":
        torch.cuda.empty_cache()


def no_memory(error: BaseException) -> bool:
    """Whether memory is what was not there: the device's, or the host's that is pinned."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)


def why(error: BaseException) -> str:
    """One sentence on what went wrong."""
    if isinstance(error, AutotmError):
        return str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return "the device ran out of memory"
    cause = getattr(error, "inner_exception", None) or error
    first = next(iter(str(cause).strip().splitlines()), "")
    return f"{type(cause).__name__}: {first}"

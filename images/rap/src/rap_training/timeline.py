"""One iteration as spans of time: kernels on a GPU as the profiler sees them, stages on a CPU."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rap_training.measure import train
from rap_training.rank import Rank
from rap_training.sharing.preparation import Preparation
from rap_training.sharing.variants import Variant

_WARMUP = 10
_WATCHED = 4
_PREPROCESSING = ("elementwise", "gather", "chains")


@dataclass(frozen=True, kw_only=True)
class Span:
    """Something that ran from `start` to `end`, us from the iteration's first moment."""

    lane: str  # train | preprocess | copy | comm
    name: str
    start: float
    end: float


def spans(rank: Rank, variant: Variant, preparation: Preparation) -> list[Span]:
    """The spans of one iteration, in the order they began, this process's alone."""
    if rank.device.type == "cpu":
        return _on_cpu(rank, variant, preparation)
    return _on_gpu(rank, variant, preparation)


def _run(rank: Rank, variant: Variant, preparation: Preparation, watch: Any = None) -> None:
    train(
        rank.trainer, preparation, rank.lanes(variant.priority)[0], rank.collectives,
        warmup=_WARMUP, iterations=_WATCHED, watch=watch or (lambda _: None),
    )  # fmt: skip


def _on_gpu(rank: Rank, variant: Variant, preparation: Preparation) -> list[Span]:
    _run(rank, variant, preparation)
    return _one_iteration(kernels(lambda: _run(rank, variant, preparation)))


def kernels(work: Callable[[], object]) -> list[Span]:
    """All that the GPU ran while `work` did, as CUPTI tells it: us on the profiler's clock."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        work()
        torch.cuda.synchronize()
    found = []
    for event in profiled.profiler.kineto_results.events():
        if event.device_type() != torch.autograd.DeviceType.CUDA or event.duration_ns() <= 0:
            continue
        name = event.name()
        start = event.start_ns() / 1000.0
        end = start + event.duration_ns() / 1000.0
        found.append(Span(lane=_lane(name), name=_short(name), start=start, end=end))
    return sorted(found, key=lambda span: span.start)


def _one_iteration(found: list[Span]) -> list[Span]:
    """The last iteration but one: from one look-up of the tables to the next."""
    starts = [span.start for span in found if span.name.startswith("forward")]
    if len(starts) < 3:
        return []
    begin, end = starts[-3], starts[-2]
    inside = [span for span in found if begin <= span.start < end]
    return [
        Span(lane=s.lane, name=s.name, start=s.start - begin, end=s.end - begin) for s in inside
    ]


def _lane(name: str) -> str:
    if name.startswith(_PREPROCESSING):
        return "preprocess"
    if "nccl" in name.lower():
        return "comm"
    return "copy" if name.startswith("Memcpy") else "train"


def _short(name: str) -> str:
    """A kernel's name without its return type, namespaces, templates and arguments."""
    plain = re.split(r"[(<]", name, maxsplit=1)[0].removeprefix("void ")
    return plain.rsplit("::", maxsplit=1)[-1][:40] or "kernel"


def _on_cpu(rank: Rank, variant: Variant, preparation: Preparation) -> list[Span]:
    """Stages in the training thread, launches in the other, by the clock of the host."""
    found: list[Span] = []
    origin = [0.0]
    lock = threading.Lock()

    def timed(lane: str, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            result = work(*arguments, **named)
            end = time.perf_counter()
            with lock:
                found.append(Span(lane=lane, name=name, start=1e6 * start, end=1e6 * end))
            return result

        return call

    trainer, steps = rank.trainer, getattr(preparation, "_steps", None)
    run = trainer.run
    trainer.run = lambda stage, slot: timed("train", stage, run)(stage, slot)  # type: ignore[method-assign]
    if steps is not None:
        calls = steps.calls
        steps.calls = [
            [timed("preprocess", f"launch {at}", call) for at, call in enumerate(part)]
            for part in calls
        ]

    def watch(number: int) -> None:
        if number == _WARMUP + 1:
            with lock:
                found.clear()
            origin[0] = 1e6 * time.perf_counter()
        if number == _WARMUP + 2:
            origin.append(1e6 * time.perf_counter())

    try:
        _run(rank, variant, preparation, watch)
    finally:
        trainer.run = run  # type: ignore[method-assign]
        if steps is not None:
            steps.calls = calls
    end = origin[1] if len(origin) > 1 else float("inf")
    return [
        Span(lane=s.lane, name=s.name, start=s.start - origin[0], end=s.end - origin[0])
        for s in sorted(found, key=lambda span: span.start)
        if origin[0] <= s.start < end
    ]

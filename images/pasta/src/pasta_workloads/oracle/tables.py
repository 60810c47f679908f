"""The oracle of one row of Table V: a model's iteration on the meta device, as kernels."""

from __future__ import annotations

from functools import lru_cache

from pasta_workloads.models.sizes import PUBLISHED
from pasta_workloads.oracle.choices import launches, without_asynchronous_reads
from pasta_workloads.oracle.kernels import Kernel
from pasta_workloads.oracle.lowering import Recorder
from pasta_workloads.workload import build


@lru_cache(maxsize=32)
def recorded(model: str, mode: str, size: str = "full") -> tuple[Kernel, ...]:
    """One iteration's kernels, before any library's choice. Takes about a second, no memory.

    Those of loading come first where they are counted.
    """
    workload = build(model, mode, size, "meta")
    with Recorder() as recorder:
        if workload.load is not None:
            workload.load()
        workload.iteration()
    return tuple(recorder.kernels)


def row(model: str, mode: str, assumption: str = "paper", size: str = "full") -> list[Kernel]:
    """The launches of a model in a mode under one of `choices.ASSUMPTIONS`.

    Of PUBLISHED, which is Whisper as the paper counts it, what the paper's tool does not see is
    left out.
    """
    found = launches(recorded(model, mode, size), assumption)
    return without_asynchronous_reads(found) if model == PUBLISHED else found

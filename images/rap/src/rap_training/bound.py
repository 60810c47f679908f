"""Launches bound to the memory of every slot: as calls, and which of the others each needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rap_training.config import Config
from rap_training.launches import Backend, Call, Launch, fused, needs_of, unfused
from rap_training.memory import Buffers, final_keys
from rap_training.planner.fusion import Fusion


@dataclass(frozen=True, kw_only=True)
class Bound:
    """`calls[slot][i]` is launch i; `needs[i]` are the launches before it that it needs."""

    calls: Sequence[Sequence[Call]]
    needs: Sequence[Collection[int]]


def bind(backend: Backend, launches: Sequence[Launch], buffers: Buffers) -> list[list[Call]]:
    """Launches as calls, slot by slot."""
    return [
        [backend.bind(launch, buffers, slot) for launch in launches]
        for slot in range(buffers.slots)
    ]


def bound(
    backend: Backend, fusion: str, buffers: Buffers, config: Config, note: Callable[[Fusion], None]
) -> Bound:
    """All of a rank's preprocessing, fused as a variant's `fusion` says. `note` gets the solver's
    report."""
    if fusion == "vertical":
        keys = final_keys(buffers.work)
        calls = [list(backend.bind_chains(keys, buffers, slot)) for slot in range(buffers.slots)]
        return Bound(calls=calls, needs=[()] * len(calls[0]))
    launches = unfused(buffers.work)
    if fusion == "horizontal":
        launches, report = fused(
            buffers.work, solver=config.solver, time_limit_s=config.solver_seconds
        )
        note(report)
    return Bound(calls=bind(backend, launches, buffers), needs=needs_of(launches))

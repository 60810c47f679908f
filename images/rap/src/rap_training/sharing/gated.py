"""RAP's schedule on a rank, made ready: launches by slot, and a program of what starts when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rap_training.bound import bind
from rap_training.codegen import Program, program
from rap_training.config import Config
from rap_training.launches import Backend, Call
from rap_training.memory import Buffers
from rap_training.planner.fusion import Fusion
from rap_training.sharing import rap
from rap_training.sharing.captured import captured_parts
from rap_training.sharing.lanes import Lane
from rap_training.sharing.variants import Variant


class Planner(Protocol):
    """What a schedule needs of a rank."""

    config: Config
    rank: int
    backend: Backend
    generated: Path
    plans: dict[str, rap.RapPlan]  # where the plan is kept, by variant

    @property
    def costs(self) -> rap.Costs:
        """All that the plan rests on."""
        ...

    def tell_note(self, fusion: Fusion) -> None:
        """What the solver has to say."""


def gated(
    there: Planner, variant: Variant, buffers: Buffers, side: Lane
) -> tuple[Sequence[Sequence[Call]], Program]:
    """The launches of a variant's schedule by slot, and its program by stage."""
    plan = rap.plan_rank(
        buffers.work, there.costs, solver=there.config.solver,
        time_limit_s=there.config.solver_seconds, fuse_operators=variant.fusion != "none",
    )  # fmt: skip
    there.tell_note(plan.fusion)
    there.plans[variant.name] = plan
    calls = bind(there.backend, plan.launches, buffers)
    parts = program(plan, there.costs, f"{variant.name}_rank{there.rank}", there.generated)
    if not variant.graph:
        return calls, parts
    return captured_parts(plan, calls, side, buffers.device, branches=variant.branches)

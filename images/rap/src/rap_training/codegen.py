"""RAP's plan as a Python program: a function a training stage, which launches what runs beside it.

The program is what runs (docs/papers/rap.md, 3.7): `rap_training.sharing.rap` decides, this module
writes it down, and the loop calls the functions of the file. A person can open it in the run's
folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rap_training.generated import load
from rap_training.launches import Call
from rap_training.planner.capacity import STAGES
from rap_training.sharing.rap import Costs, RapPlan

Program = Mapping[str, Callable[[Sequence[Call]], None]]
_SHOWN = 3  # members named in a comment


def program(plan: RapPlan, costs: Costs, name: str, folder: Path | None) -> Program:
    """The functions of the generated program, by the stage they run beside."""
    module = load(source(plan, costs), name, folder)
    return {stage: getattr(module, stage) for stage in plan.stages}


def source(plan: RapPlan, costs: Costs) -> str:
    """The program's text. `run[i]` queues launch i."""
    work = plan.work
    placed = plan.schedule.placed
    total = sum(part.us for part in placed)
    capacity = {stage.name: stage for stage in costs.stages[work.rank]}
    lines = [
        # The plan's name is anybody's words: quoted in a comment it cannot become code.
        f"# Generated: preprocessing of {work.plan.name!r} on rank {work.rank} of {work.world}.",
        "#",
        f"# {len(work.instances)} operators in {len(placed)} launches, {total:.1f} us predicted by "
        "themselves,",
        f"# {plan.schedule.overflow_us:.1f} us of them beyond what the stages hide.",
        f"# Fusion: {plan.fusion.solver}, gap {100 * plan.fusion.gap:.2f} %"
        f"{'; ' + plan.fusion.note if plan.fusion.note else ''}.",
        "",
    ]
    for stage in STAGES:
        which = plan.stages.get(stage, ())
        if not which:
            continue
        us = sum(placed[at].us for at in which)
        there = capacity[stage]
        lines += [
            "",
            f"def {stage}(run):",
            f'    """{us:.1f} us predicted, beside {there.us:.1f} us of training that hide '
            f'{there.capacity_us:.1f}."""',
        ]
        for at in which:
            part = placed[at]
            lines.append(
                f"    run[{at}]()  # {part.kind}, {part.us:.1f} us"
                f"{', split' if part.split else ''}: {_members(part.members)}"
            )
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _members(keys: Sequence[str]) -> str:
    names = [key.rsplit("@", 1)[0] for key in keys]
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")

"""Launches: which operators run together, in which order. What a backend turns into calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rap_training.planner.fusion import Fusion, FusionNode, fuse
from rap_training.planner.solvers import mounted_licence
from rap_training.work import Instance, Work

if TYPE_CHECKING:
    from rap_training.memory import Buffers

Call = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Operators of one kind that run in one launch; one member: unfused."""

    members: tuple[Instance, ...]

    @property
    def kind(self) -> str:
        """Operator, input type and batch class of all members."""
        return self.members[0].kind

    @property
    def name(self) -> str:
        """A readable name: the kind and how many."""
        return f"{self.kind} x{len(self.members)}"

    @property
    def elements(self) -> int:
        """Output elements of all members."""
        return sum(member.rows * member.gives.width for member in self.members)


class Backend(Protocol):
    """Turns launches into calls. A call queues its work on the current stream, or does it."""

    def bind(self, launch: Launch, buffers: Buffers, slot: int) -> Call:
        """One launch on the memory of one slot."""

    def bind_chains(self, outputs: Sequence[str], buffers: Buffers, slot: int) -> Sequence[Call]:
        """Everything that the instances `outputs` need, fused along chains as well."""


def needs_of(launches: Sequence[Launch]) -> list[set[int]]:
    """For each launch, those of the others whose results it takes, as indices."""
    made = {member.key: at for at, launch in enumerate(launches) for member in launch.members}
    return [
        {made[member.input] for member in launch.members if member.input in made}
        for launch in launches
    ]


def unfused(work: Work) -> tuple[Launch, ...]:
    """One launch an operator, in dependency order, dense ones first."""
    return tuple(Launch(members=(instance,)) for instance in work.instances)


def nodes(work: Work) -> list[FusionNode]:
    """The work as the fusion problem sees it: docs/papers/rap.md, 3.4."""
    keys = work.instance
    return [
        FusionNode(
            name=instance.key,
            kind=instance.kind,
            input=instance.input if instance.input in keys else None,
        )
        for instance in work.instances
    ]


def fused(
    work: Work, *, solver: str = "highs", time_limit_s: float = 30.0
) -> tuple[tuple[Launch, ...], Fusion]:
    """Launches of the best horizontal fusion found, inputs first, and the solver's report.

    The same work is solved once a process.
    """
    licence = mounted_licence() if solver == "gurobi" else None
    fusion = _solved(tuple(nodes(work)), solver, time_limit_s, licence)
    return launches_of(work, [group.members for group in fusion.groups]), fusion


@lru_cache(maxsize=64)
def _solved(
    graph: tuple[FusionNode, ...], solver: str, time_limit_s: float, licence: Path | None
) -> Fusion:
    return fuse(graph, solver=solver, time_limit_s=time_limit_s, licence=licence)


def launches_of(work: Work, groups: Sequence[Sequence[str]]) -> tuple[Launch, ...]:
    """Launches of groups of instance keys."""
    return tuple(Launch(members=tuple(work.instance[key] for key in members)) for members in groups)

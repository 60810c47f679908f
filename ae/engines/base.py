"""The engine contract. Every engine passes tests/engines/test_contract.py."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from ae.errors import EnvironmentFault
from ae.host import owner, processes
from ae.host.machine import detect
from ae.images.content import BuildOptions
from ae.model import Availability, ImageRef, Machine, Outcome, Point, Sink

__all__ = ["Availability", "Engine", "Job", "Leftover", "Outcome", "Sink"]
OUT_DIR = "/ae/out"  # where a container sees the point's folder; $AE_OUT says it to the workload
SKIP_EXIT_CODE = 77
Kind = Literal["container", "process", "job"]
Verdict = Literal["ok", "warn", "fail"]
Shell = tuple[tuple[str, ...], dict[str, str]]  # its command and its environment


class Check(NamedTuple):
    """One finding: `ok`, `warn` (works, but mind this) or `fail` (the recipe cannot run so)."""

    name: str
    verdict: Verdict
    sentence: str
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A point, the folder its outputs go to, and the labels that say whose it is."""

    point: Point
    out: Path  # exists, empty, owned by the caller
    labels: Mapping[str, str]  # ae.run, ae.recipe, ae.host, ae.pid
    secrets: Mapping[str, Path] = field(default_factory=dict)  # name -> the person's own file


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """Something an earlier launcher left behind."""

    engine: str
    kind: Kind
    id: str
    run: str
    owner_alive: bool  # the launcher that made it still runs: not an orphan

    @staticmethod
    def of(engine: str, kind: Kind, ident: str, labels: Mapping[str, str]) -> Leftover:
        """Whose it is, by its labels."""
        run, alive = labels.get(owner.RUN, ""), owner.alive(labels)
        return Leftover(engine=engine, kind=kind, id=ident, run=run, owner_alive=alive)


class Engine(ABC):
    """Where points execute. `run` returns for every way a job can end; it raises only
    EnvironmentFault (nothing was measured, the machine is at fault) or KeyboardInterrupt
    (after the job was stopped and removed)."""

    name: str
    no_gpus: tuple[str, str]  # why no GPU can be handed over, and what to do
    outlives = False  # whether points go on when the launcher is killed, for the next to take up
    grace_s = processes.GRACE_S  # between TERM and KILL

    def __init__(self, *, build: BuildOptions | None = None) -> None:
        """`build` None: what points run in is used as it is, and a missing one is a fault."""
        self._build = build
        self.caller = f"{os.getuid()}:{os.getgid()}"  # whose a container's outputs will be

    def available(self) -> Availability:
        """Whether it answers."""
        try:
            return self._answer()
        except EnvironmentFault as fault:
            return Availability(ok=False, detail=fault.message, fix=fault.fix)

    @abstractmethod
    def _answer(self) -> Availability:
        """What it says of itself. Raises EnvironmentFault when it cannot be used."""

    @cached_property
    def machine(self) -> Machine:
        """The machine that points run on."""
        return detect()

    @abstractmethod
    def has_image(self, image: ImageRef) -> bool: ...

    def named(self, image: ImageRef) -> str:
        """What points run in, in words. Raises EnvironmentFault where `prepare` would."""
        return image.reference

    @abstractmethod
    def prepare(self, image: ImageRef, sink: Sink) -> None:
        """Make the image (or environment) ready: build when missing or out of date."""

    def made_from(self, image: ImageRef) -> str | None:
        """The id of an image of these sources, whatever its tag; None: there is none."""
        return None

    @abstractmethod
    def run(self, job: Job, sink: Sink, timeout_s: float) -> Outcome: ...

    @abstractmethod
    def leftovers(self) -> list[Leftover]: ...

    @abstractmethod
    def remove(self, leftover: Leftover) -> None:
        """Remove it; what has gone already is fine."""

    @abstractmethod
    def equivalent(self, job: Job) -> tuple[str, ...]:
        """The command a person could type to do the same by hand, as argv. Asks nobody."""

    @abstractmethod
    def shell(self, point: Point, out: Path, files: Mapping[str, Path] | None = None) -> Shell:
        """Command and environment of a shell with a point's GPUs, folders and secrets (`files`);
        without a terminal it reads commands from its input."""

    def ahead(self, jobs: Sequence[Job]) -> None:  # noqa: B027 most run one after another
        """Told before the first point which will come, in order: it may start them early."""

    def kept(self, job: Job) -> None:  # noqa: B027
        """The outcome of a job is on the disk: what the engine held of it may go."""

    def findings(self) -> list[Check]:
        """What `ae doctor` says of the engine besides whether it answers."""
        return []

    def close(self) -> None:  # noqa: B027 nothing is held, unless an engine says so
        """Let go of connections; it connects again when it is used again."""

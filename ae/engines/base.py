"""The engine contract. Every engine passes tests/engines/test_contract.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from ae.model import Flavour, ImageRef, Outcome, Point

__all__ = ["Availability", "Engine", "Job", "Leftover", "Outcome", "Sink"]

OUT_DIR = "/ae/out"  # where a container sees the point's folder; $AE_OUT says it to the workload
SKIP_EXIT_CODE = 77


@dataclass(frozen=True, kw_only=True)
class Availability:
    """Whether an engine can be used, and if not, why and what to do."""

    ok: bool
    detail: str  # "Docker Engine 26.1.5 at unix:///var/run/docker.sock, CDI"
    fix: str = ""
    facts: Mapping[str, str] = field(
        default_factory=dict
    )  # endpoint, version, gpu route ("cdi" ...)


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
    kind: Literal["container", "volume", "process", "secret"]
    id: str
    run: str
    owner_alive: bool  # the launcher that made it still runs: not an orphan


class Sink(Protocol):
    """Where a job's output goes while it runs: whole lines without newline, from any thread."""

    def line(self, stream: Literal["stdout", "stderr"], text: str) -> None: ...


class Engine(Protocol):
    """Where points execute. `run` returns for every way a job can end; it raises only
    EnvironmentFault (nothing was measured, the machine is at fault) or KeyboardInterrupt
    (after the job was stopped and removed)."""

    name: str

    def available(self) -> Availability: ...

    def supports(self, flavour: Flavour) -> Availability: ...

    def has_image(self, image: ImageRef) -> bool: ...

    def prepare(self, image: ImageRef, sink: Sink) -> None:
        """Make the image (or environment) ready: build when missing or out of date."""
        ...

    def run(self, job: Job, sink: Sink, timeout_s: float) -> Outcome: ...

    def leftovers(self) -> list[Leftover]: ...

    def remove(self, leftover: Leftover) -> None: ...

    def equivalent(self, job: Job) -> tuple[str, ...]:
        """The command a person could type to do the same by hand, as argv."""
        ...

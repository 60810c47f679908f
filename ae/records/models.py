"""What run.json (RunRecord) and points/<id>/status.json hold, and how it is gathered."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_jsonable_python

from ae import __version__
from ae.host.files import sha256_of
from ae.host.git import git, revision
from ae.model import Machine, Plan, Status
from ae.plan.selection import Selection

_MADE_FROM = ("ae", "images", "recipes")
_LONGEST = 200_000  # characters of a diff


class Kept(BaseModel):
    """A part of a record. Keys that this revision does not know are ignored."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, defer_build=True)

    def text(self) -> str:
        """As JSON."""
        return self.model_dump_json(by_alias=True, indent=1) + "\n"


class Source(Kept):
    """The source that a run was started from. No revision: not a checkout."""

    revision: str | None = None
    dirty: bool | None = None
    stated_revision: str | None = None  # what AE_REVISION says, where there is only a copy
    diff_sha256: str | None = None
    diff: str | None = None
    new_files: dict[str, str] | None = None  # name -> sha256, of files that git does not know


class Host(Kept):
    """The machine that `ae` ran on. Memory in GiB."""

    name: str = ""
    system: str = ""
    python: str = ""
    cpus: int = 0
    memory_gib: float = 0.0


class GpuFacts(Kept):
    """One GPU. Memory in GiB; `other_processes` on it disturb timings."""

    index: int
    name: str
    memory_gib: float | None = None
    compute_capability: str | None = None
    driver: str | None = None
    other_processes: int | None = None


class Provenance(Kept):
    """Where a run came from: source, engine, host, GPUs."""

    about: tuple[str, ...] = ()  # the lines of AE_ABOUT: what else a reader must know
    ae: str = ""
    started: str = "unknown"
    command: tuple[str, ...] = ()
    source: Source = Source()
    engine: dict[str, str] = Field(default_factory=dict)  # name, detail, endpoint, version ...
    host: Host = Host()
    gpus: tuple[GpuFacts, ...] = ()


class _Open(Kept, extra="allow"):
    """A part of `describe`: its other fields, those of model.Plan, are kept as they are."""


class PlannedImage(_Open):
    """The image of a point. `content` is the hash of all that it is built from."""

    reference: str
    content: str


class PlannedGpus(_Open):
    """The GPUs of a point."""

    count: int = 0


class PlannedNeeds(_Open):
    """What a point was given."""

    gpus: PlannedGpus | None = None


class PlannedPoint(_Open):
    """A point as it was planned."""

    id: str
    key: str
    experiment: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    variants: tuple[str, ...] = ()
    image: PlannedImage
    needs: PlannedNeeds = PlannedNeeds()


class PlanRecord(_Open):
    """What was to run."""

    quick: bool
    selection: Selection
    reduced: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    points: tuple[PlannedPoint, ...]


def describe(plan: Plan) -> dict[str, Any]:
    """The plan as JSON-able data: the same plan always gives the same text.

    The folders of images start at the repository's root: a run's record goes to other machines.
    """
    described: dict[str, Any] = to_jsonable_python(plan)
    for point, about in zip(plan.points, described["points"], strict=True):
        about["image"] |= {
            "source": f"images/{point.image.name}",
            "reference": point.image.reference,
        }
    return described | {
        "expected_s": sum(point.expected_s for point in plan.points),
        "disk_bytes": sum(point.disk_bytes for point in plan.points),
    }


class Resumed(Kept):
    """When a run was taken up again, and where."""

    at: str
    provenance: Provenance = Provenance()


class RunRecord(Kept):
    """run.json. `provenance` is that of the first start."""

    schema_version: Literal[1] = Field(1, alias="schema")
    recipe: str
    name: str
    created: str  # UTC, ISO 8601
    plan: PlanRecord
    provenance: Provenance = Provenance()
    resumed: tuple[Resumed, ...] = ()


class StatusRecord(Kept):
    """points/<id>/status.json: how a point ended, and what it was."""

    schema_version: Literal[1] = Field(1, alias="schema")
    id: str
    key: str
    status: Status
    exit_code: int | None = None
    seconds: float  # the workload itself
    reason: str = ""
    started: str | None = None
    ended: str
    attempt: int = 1
    experiment: str
    labels: dict[str, str]
    variants: tuple[str, ...] = ()
    repeat: int = 0
    argv: tuple[str, ...] = ()
    image: str = ""
    image_id: str = ""  # digest or id of what really ran
    honoured: dict[str, Any] = Field(default_factory=dict)  # what the engine granted


def gather(root: Path, engine: Mapping[str, str], machine: Machine) -> Provenance:
    """Return what is known of the source, the engine and the machine of a run."""
    host = Host(
        name=socket.gethostname(),
        system=platform.platform(),
        python=platform.python_version(),
        cpus=machine.cpus,
        memory_gib=round(machine.memory_gib, 1),
    )
    gpus = [
        {
            **vars(gpu),
            "other_processes": len(gpu.processes),
            "memory_gib": round(gpu.memory_gib, 1),
            "compute_capability": ".".join(map(str, gpu.compute_capability)),
        }
        for gpu in machine.gpus
    ]
    return Provenance(
        about=tuple(os.environ.get("AE_ABOUT", "").splitlines()),
        ae=__version__,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        command=tuple(sys.argv[1:]),
        source=source_facts(root),
        engine=dict(engine),
        host=host,
        gpus=tuple(map(GpuFacts.model_validate, gpus)),
    )


def source_facts(root: Path) -> Source:
    """Return the git revision and what differs from it, or say that there is no git.

    Files that git does not know yet count where a run is made from them. `stated_revision` is what
    AE_REVISION says, on a host that has only a copy of a tree.
    """
    stated = os.environ.get("AE_REVISION") or None
    if (commit := revision(root)) is None:
        return Source(revision=stated)
    diff = git(root, "diff", "HEAD") or ""
    changed = bool(diff.strip())
    new = (git(root, "ls-files", "--others", "--exclude-standard", *_MADE_FROM) or "").splitlines()
    found = {name: root / name for name in sorted(new) if (root / name).is_file()}
    return Source(
        revision=commit,
        dirty=bool(changed or new),
        stated_revision=stated,
        diff_sha256=hashlib.sha256(diff.encode()).hexdigest() if changed else None,
        diff=(diff if len(diff) < _LONGEST else diff[:_LONGEST] + "\n[cut]\n") if changed else None,
        new_files={name: sha256_of(path) for name, path in found.items()} or None,
    )

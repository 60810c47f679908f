"""The words of the program as data: what is planned, asked of a machine, read of files. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(min_length=1)]
Model = TypeVar("Model", bound=BaseModel)
ALL_SKIPPED = "all of it was skipped"  # the reason of a point that is done and measured nothing


class Part(BaseModel):
    """A closed, frozen mapping of a file."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True
    )


class Flavour(StrEnum):
    """Which build of an image: `cpu` needs no GPU, `cuda` needs one."""

    CPU = "cpu"
    CUDA = "cuda"


class Status(StrEnum):
    """How a point ended. Only `done` points count as finished."""

    DONE = "done"
    SKIPPED = "skipped"  # this hardware cannot run it (exit code 77), reason kept
    FAILED = "failed"
    TIMEOUT = "timeout"
    OOM = "oom"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True)
class GpuId:
    """One GPU of the machine, as its driver numbers and names it."""

    index: int  # -1: known by UUID alone
    uuid: str = ""  # empty: not known

    @property
    def name(self) -> str:
        """The UUID, which nothing renumbers; else the number."""
        return self.uuid or str(self.index)


@dataclass(frozen=True, kw_only=True)
class GpuRequest:
    """What a point needs of the GPUs. Memory in GiB, compute capability as (major, minor)."""

    count: int = 1
    devices: tuple[GpuId, ...] = ()  # the `count` GPUs that the planner chose
    min_memory_gib: float = 0.0
    min_compute_capability: tuple[int, ...] = (0, 0)
    min_driver: str = ""


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A host folder seen inside the container."""

    source: Path
    target: str
    read_only: bool = True


@dataclass(frozen=True, kw_only=True)
class Secret:
    """A file of the person's that only the container may read, as `target`."""

    name: str
    target: str
    optional: bool = False

    @property
    def variable(self) -> str:
        """The variable that can name its file, AE_SECRET_LICENCE for `licence`."""
        return "AE_SECRET_" + "".join(c if c.isalnum() else "_" for c in self.name).upper()


@dataclass(frozen=True, kw_only=True)
class Ulimit:
    """A resource limit, -1 is unlimited."""

    name: str
    soft: int
    hard: int


@dataclass(frozen=True, kw_only=True)
class RuntimeNeeds:
    """What a container must be given beyond a process and a folder (reasons: the recipe)."""

    gpus: GpuRequest | None = None
    cap_add: tuple[str, ...] = ()
    ipc: str | None = None
    shm_bytes: int | None = None
    ulimits: tuple[Ulimit, ...] = ()
    network: str = "none"
    mounts: tuple[Mount, ...] = ()
    memory_bytes: int | None = None
    secrets: tuple[Secret, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ImageRef:
    """An image by the folder it comes from. `content` is the hash of all it is built from."""

    name: str
    flavour: Flavour
    content: str
    source: Path  # images/<name>
    override: str | None = None  # an explicit reference given by the person (--image)

    @property
    def reference(self) -> str:
        """The tag that the engine is asked for."""
        return self.override or f"ae/{self.name}:{self.flavour}"

    @property
    def root(self) -> Path:
        """The checkout that it is built from."""
        return self.source.parent.parent


@dataclass(frozen=True, kw_only=True)
class Point:
    """One command in one container. `key` is the hash of everything that defines the result."""

    id: str
    recipe: str
    experiment: str
    labels: Mapping[str, str]  # axis name -> value, e.g. {"size": "small"}
    variants: tuple[str, ...]
    argv: tuple[str, ...]
    env: Mapping[str, str]
    image: ImageRef
    needs: RuntimeNeeds
    timeout_s: float
    expected_s: float
    disk_bytes: int
    repeat: int = 0
    key: str = ""
    parser: str | None = None  # function of the recipe's parse.py that reads the point's log


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The points of one run, in order, and the selection they came from."""

    recipe: str
    lane: str
    flavour: Flavour
    quick: bool
    points: tuple[Point, ...]
    selection: Mapping[str, object] = field(default_factory=dict)  # of plan/selection, as JSON
    reduced: tuple[str, ...] = ()  # in what it differs from the paper's size, as a person types it
    notes: tuple[str, ...] = ()  # what the planner left out, and why


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU as the driver reports it. Memory in GiB."""

    index: int
    uuid: str = ""
    name: str
    memory_gib: float = 0.0
    memory_free_gib: float = 0.0
    compute_capability: tuple[int, ...] = (0, 0)
    driver: str = ""
    processes: tuple[int, ...] = ()  # pids of compute processes on it


@dataclass(frozen=True, kw_only=True)
class Availability:
    """Whether an engine can be used, and if not, why and what to do."""

    ok: bool
    detail: str  # "Docker Engine 26.1.5 at unix:///var/run/docker.sock, CDI"
    fix: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)  # endpoint, version, gpu_route ("cdi")


class Sink(Protocol):
    """Where a job's output goes while it runs: whole lines without newline, from any thread."""

    def line(self, stream: Literal["stdout", "stderr"], text: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the planner may know of the machine."""

    gpus: tuple[Gpu, ...] = ()
    cpus: int = 1
    memory_gib: float = 0.0
    each: str = ""  # " on a node" where there are several like it, of which a point gets one


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a job ended."""

    status: Status
    exit_code: int | None
    seconds: float  # the workload itself, start to exit
    reason: str = ""  # one sentence when it is not `done`, or measured nothing
    image_id: str = ""  # digest or id of what really ran
    honoured: Mapping[str, object] = field(default_factory=dict)  # what the engine granted

"""What `ae doctor` looks at: the machine as it is, and what a plain run would do here."""

from __future__ import annotations

import math
import os
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ae.engines.base import Availability, Engine, Finding
from ae.engines.choose import choose
from ae.engines.docker import DockerEngine
from ae.errors import AeError, EnvironmentFault
from ae.host.machine import detect, free_disk
from ae.images.build import build_disk
from ae.images.content import find_client
from ae.model import Gpu, ImageRef, Machine, Plan
from ae.records.folder import results_dir

_DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")


@dataclass(frozen=True, kw_only=True)
class Image:
    """The image (or environment) that a plain run would use."""

    reference: str
    ready: bool  # there, and built from what the tree holds
    disk_free: int = 0  # where a build would put it; 0: cannot be known from here
    disk_needed: int = 0


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was found on the machine. Sizes in bytes; limits infinite where there is none."""

    engine: Availability  # of the one that would be used
    wanted_engine: str | None = None
    local: bool = False  # points are processes of this machine, under its limits
    docker: Availability
    client: Availability  # the docker client that builds
    gpus: tuple[Gpu, ...] = ()
    counters_restricted: bool | None = None  # GPU counters for root only; None: no driver
    mps_pipe: str = ""  # the folder that an MPS daemon has made; empty: none
    shm: int = 0
    memlock: float = math.inf  # soft limit
    disk_free: int = 0
    disk_path: str = ""
    disk_writable: bool = True
    command: str = ""  # that would run a recipe; empty: none was named
    plan: Plan | None = None  # what it would do here
    refused: AeError | None = None  # why there is no plan
    image: Image | None = None  # of the plan, at the engine that would be used
    findings: tuple[Finding, ...] = ()  # what the engine itself has to say


def gather(
    root: Path,
    engine: str | None = None,
    command: str = "",
    plan_for: Callable[[Machine], Plan] | None = None,
) -> Facts:
    """Look at the machine. Never raises for what is missing: that is what the checks are about.

    `plan_for` gives the plan of `command`; None: no recipe was named.
    """
    machine, findings = detect(), tuple[Finding, ...]()
    plan, refused, image, local = None, None, None, False
    usable: Engine | None = None
    try:
        usable = choose(engine, gpus=bool(machine.gpus) and engine != "slurm")
        found = usable.available()
        local = usable.name == "local"
        if findings := tuple(usable.findings()):  # points run on other machines
            machine = usable.machine()
    except EnvironmentFault as error:
        found, usable = Availability(ok=False, detail=error.message, fix=error.fix), None
    try:
        plan = plan_for(machine) if plan_for else None
        image = _image(plan.points[0].image, usable) if usable and plan else None
    except AeError as error:
        refused = error
    where = results_dir(root)
    there = next(folder for folder in (where, *where.parents) if folder.exists())
    driver = _DRIVER_PARAMETERS.read_text() + "\n" if _DRIVER_PARAMETERS.exists() else None
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    return Facts(
        engine=found,
        wanted_engine=engine,
        local=local,
        docker=DockerEngine().available(),
        client=_client(),
        gpus=machine.gpus,
        counters_restricted=None if driver is None else "RmProfilingAdminOnly: 1\n" in driver,
        mps_pipe=pipe if Path(pipe).exists() else "",
        shm=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").exists() else 0,
        memlock=math.inf if memlock == resource.RLIM_INFINITY else memlock,
        disk_free=free_disk(where),
        disk_path=str(where),
        disk_writable=there.is_dir() and os.access(there, os.W_OK | os.X_OK),
        command=command,
        plan=plan,
        refused=refused,
        image=image,
        findings=findings,
    )


def _client() -> Availability:
    try:
        return Availability(ok=True, detail=find_client(DockerEngine().endpoint))
    except EnvironmentFault as error:
        return Availability(ok=False, detail=error.message, fix=error.fix)


def _image(image: ImageRef, engine: Engine) -> Image:
    folder = Path(engine.available().facts.get("root") or "/nowhere")
    return Image(
        reference=image.reference,
        ready=engine.has_image(image),
        disk_free=free_disk(folder) if folder.exists() else 0,
        disk_needed=build_disk(image.root, image),
    )

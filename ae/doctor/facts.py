"""What `ae doctor` looks at: the machine as it is, and what a recipe asks of it."""

from __future__ import annotations

import math
import os
import resource
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ae.engines.base import Availability, Engine
from ae.engines.choose import choose
from ae.engines.docker import DockerEngine
from ae.errors import EnvironmentFault, UsageError
from ae.host.machine import free_disk, query_gpus
from ae.images.bake import flavours
from ae.images.build import build_disk
from ae.images.content import find_client, image_ref
from ae.model import Flavour, Gpu, GpuRequest
from ae.plan.gpus import gpu_request
from ae.recipe.models import Recipe

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
    nofile: float = math.inf
    disk_free: int = 0
    disk_path: str = ""
    disk_writable: bool = True
    image: Image | None = None  # the recipe's, at the engine that would be used


@dataclass(frozen=True, kw_only=True)
class Demands:
    """What a recipe asks of the machine; the defaults are a machine check without a recipe."""

    name: str = ""
    command: str = ""  # what a person types for a plain run
    gpu: Literal["required", "optional", "none"] = "optional"  # optional: as far as any run without
    on_gpus_alone: tuple[str, ...] = ()  # experiments that are left out without one
    request: GpuRequest = field(default_factory=GpuRequest)
    disk: int = 10**9
    disk_on_gpus_alone: int = 0  # of it, what those experiments take
    shm: int = 0
    memlock: float = 0


def demands_of(recipe: Recipe) -> Demands:
    """What the default experiments of a recipe's first lane need at most: those of `ae run`."""
    lane, names = recipe.plain_run()
    chosen = {name: recipe.experiments[name] for name in names}
    wishes = {experiment.gpu for experiment in chosen.values()}
    needs, need = [recipe.needs_of(name) for name in chosen], recipe.needs.gpus
    disks = {name: one.disk * recipe.points_of(name) for name, one in chosen.items()}
    on_gpus_alone = tuple(name for name, one in chosen.items() if one.gpu == "required")
    locked = [u.soft for need in needs for u in need.ulimits if u.name == "memlock"]
    return Demands(
        name=recipe.name,
        command=f"ae run {recipe.name}" + ("" if lane == "native" else f" --lane {lane}"),
        gpu=wishes.pop() if len(wishes) == 1 else "optional",  # what needs one is left out
        on_gpus_alone=on_gpus_alone,
        request=gpu_request(need and need.of(recipe.gpu_counts(need)[0]), None),
        disk=sum(disks.values()),
        disk_on_gpus_alone=sum(disks[name] for name in on_gpus_alone),
        shm=max(need.shm_size.value if need.shm_size else 0 for need in needs),
        memlock=max((math.inf if soft == -1 else soft for soft in locked), default=0),
    )


def gather(root: Path, engine: str | None = None, recipe: Recipe | None = None) -> Facts:
    """Look at the machine. Never raises for what is missing: that is what the checks are about."""
    gpus = query_gpus()
    image, local = None, False
    try:
        flavour = Flavour.CUDA if gpus else Flavour.CPU
        usable = choose(engine, gpus=bool(gpus))
        found = usable.available()
        local = usable.name == "local"
        if found.ok and recipe:
            image = _image(root, recipe, usable, flavour)
        elif not found.ok:
            found = replace(found, detail=f"engine {usable.name}: {found.detail}")
    except EnvironmentFault as error:
        found = Availability(ok=False, detail=error.message, fix=error.fix)
    where = Path(os.environ.get("AE_RESULTS") or root / "results")
    there = next(folder for folder in (where, *where.absolute().parents) if folder.exists())
    driver = _DRIVER_PARAMETERS.read_text() + "\n" if _DRIVER_PARAMETERS.exists() else None
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    return Facts(
        engine=found,
        wanted_engine=engine,
        local=local,
        docker=DockerEngine().available(),
        client=_client(),
        gpus=gpus,
        counters_restricted=None if driver is None else "RmProfilingAdminOnly: 1\n" in driver,
        mps_pipe=pipe if Path(pipe).exists() else "",
        shm=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").exists() else 0,
        memlock=_soft_limit(resource.RLIMIT_MEMLOCK),
        nofile=_soft_limit(resource.RLIMIT_NOFILE),
        disk_free=free_disk(where),
        disk_path=str(where),
        disk_writable=there.is_dir() and os.access(there, os.W_OK | os.X_OK),
        image=image,
    )


def _client() -> Availability:
    try:
        return Availability(ok=True, detail=find_client(DockerEngine().endpoint))
    except EnvironmentFault as error:
        return Availability(ok=False, detail=error.message, fix=error.fix)


def _image(root: Path, recipe: Recipe, engine: Engine, flavour: Flavour) -> Image | None:
    """The image of the lane that a plain run takes; None where the recipe's is not written."""
    try:
        known = flavours(root, recipe.image)
        image = image_ref(root, recipe.image, flavour if flavour in known else known[0])
    except UsageError:
        return None
    folder = Path(engine.available().facts.get("root") or "/nowhere")
    return Image(
        reference=image.reference,
        ready=engine.has_image(image),
        disk_free=free_disk(folder) if folder.exists() else 0,
        disk_needed=build_disk(root, image),
    )


def _soft_limit(which: int) -> float:
    soft = resource.getrlimit(which)[0]
    return math.inf if soft == resource.RLIM_INFINITY else soft

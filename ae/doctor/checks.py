"""`ae doctor`: facts about this machine, and pure checks that judge them, each with a fix."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

from ae.errors import EnvironmentFault, ExitCode, UsageError
from ae.model import Flavour, Gpu, GpuRequest
from ae.plan.gpus import gpu_request, shortcoming
from ae.units import format_size

if TYPE_CHECKING:
    from ae.engines.base import Engine
    from ae.recipe.models import Recipe

Verdict = Literal["ok", "warn", "fail"]
UNLIMITED = -1
_MPS_PIPE = Path("/tmp/nvidia-mps")
_DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")


@dataclass(frozen=True)
class Check:
    """One finding: `ok`, `warn` (works, but mind this) or `fail` (the recipe cannot run so)."""

    name: str
    verdict: Verdict
    sentence: str
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class Image:
    """The image (or environment) that a plain run would use."""

    reference: str
    ready: bool  # there, and built from what the tree holds
    disk_free: int = 0  # where a build would put it; 0: cannot be known from here
    disk_needed: int = 0


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was found on the machine. Sizes in bytes, limits -1 for unlimited."""

    engine: str  # detail of the engine that would be used; empty: none
    engine_fault: str = ""
    engine_fix: str = ""
    wanted_engine: str | None = None
    gpu_route: str = ""  # how Docker hands GPUs over: cdi, nvidia, ""
    docker: bool = False
    buildx: str = ""  # the docker client that can build
    buildx_fault: str = ""
    gpus: tuple[Gpu, ...] = ()
    counters_restricted: bool | None = None  # GPU counters for root only; None: no driver
    mps_pipe: bool = False
    shm: int = 0
    memlock: int = UNLIMITED  # soft limit
    nofile: int = UNLIMITED
    disk_free: int = 0
    disk_path: str = ""
    disk_writable: bool = True
    image: Image | None = None  # the recipe's, at the engine that would be used
    python: tuple[int, int] = (3, 11)


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
    memlock: int = 0  # -1: unlimited
    host_shm: bool = False  # ipc: host, so the host's shm counts


def diagnose(root: Path, recipe: Recipe | None, engine: str | None = None) -> list[Check]:
    """Gather and judge; with a recipe, against what it needs."""
    return judge(gather(root, engine, recipe), demands_of(recipe) if recipe else Demands())


def judge(facts: Facts, demands: Demands) -> list[Check]:
    """Return every check. Pure."""
    checks = [_check_python(facts), _check_engine(facts), _check_build(facts)]
    checks += _check_gpus(facts, demands)
    checks += [_check_route(facts, demands)] if facts.gpus and facts.docker else []
    checks += [_check_counters(facts)] if facts.counters_restricted is not None else []
    checks += [_check_mps(facts)]
    checks += [_check_shm(facts, demands), _check_memlock(facts, demands), _check_nofile(facts)]
    checks += [_check_disk(facts, demands)]
    checks += [_check_image(facts.image)] if facts.image else []
    return [*checks, _conclude(checks, facts, demands)] if demands.name else checks


def demands_of(recipe: Recipe) -> Demands:
    """What the default experiments of a recipe's first lane need at most: those of `ae run`."""
    lane = "native" if "native" in recipe.lanes else next(iter(recipe.lanes))
    own = [e for e in recipe.experiments.values() if e.lane == lane]
    experiments = [e for e in own if e.default] or own
    wishes = {experiment.gpu for experiment in experiments}
    names = [name for name, one in recipe.experiments.items() if one in experiments]
    needs = [recipe.needs_of(name) for name in names]
    need = recipe.needs.gpus
    disks = {name: recipe.experiments[name].disk * recipe.points_of(name) for name in names}
    on_gpus_alone = tuple(name for name in names if recipe.experiments[name].gpu == "required")
    return Demands(
        name=recipe.name,
        command=f"ae run {recipe.name}" + ("" if lane == "native" else f" --lane {lane}"),
        gpu=wishes.pop() if len(wishes) == 1 else "optional",  # what needs one is left out
        on_gpus_alone=on_gpus_alone,
        request=gpu_request(need and need.of(recipe.gpu_counts(need)[0]), None),
        disk=sum(disks.values()),
        disk_on_gpus_alone=sum(disks[name] for name in on_gpus_alone),
        shm=max(need.shm_size.value if need.shm_size else 0 for need in needs),
        memlock=_most([u.soft for need in needs for u in need.ulimits if u.name == "memlock"]),
        host_shm=any(need.ipc is not None and need.ipc.value == "host" for need in needs),
    )


def _most(limits: list[int]) -> int:
    return UNLIMITED if UNLIMITED in limits else max(limits, default=0)


def gather(root: Path, engine: str | None = None, recipe: Recipe | None = None) -> Facts:
    """Look at the machine. Never raises for what is missing: that is what the checks are about."""
    from ae.engines.choose import choose
    from ae.engines.docker import DockerEngine
    from ae.host.machine import free_disk, query_gpus
    from ae.images.content import find_client

    gpus = query_gpus()
    docker = DockerEngine().available()
    chosen = fault = fix = ""
    image = None
    try:
        flavour = Flavour.CUDA if gpus else Flavour.CPU
        usable = choose(engine, flavour, root=root)
        found = usable.starts()
        if not found.ok:
            raise EnvironmentFault(f"engine {usable.name}: {found.detail}", fix=found.fix)
        chosen = found.detail
        image = _image(root, recipe, usable, flavour) if recipe else None
    except EnvironmentFault as error:
        fault, fix = error.message, error.fix
    client = client_fault = ""
    try:
        client = find_client(DockerEngine().endpoint)
    except EnvironmentFault as error:
        client_fault = error.message
    where = Path(os.environ.get("AE_RESULTS") or root / "results")
    return Facts(
        engine=chosen,
        engine_fault=fault,
        engine_fix=fix,
        wanted_engine=engine,
        gpu_route=docker.facts.get("gpu_route", ""),
        docker=docker.ok,
        buildx=client,
        buildx_fault=client_fault,
        gpus=gpus,
        counters_restricted=_counters_restricted(),
        mps_pipe=_mps_pipe().exists(),
        shm=_size_of("/dev/shm"),
        memlock=_soft_limit(resource.RLIMIT_MEMLOCK),
        nofile=_soft_limit(resource.RLIMIT_NOFILE),
        disk_free=free_disk(where),
        disk_path=str(where),
        disk_writable=_writable(where),
        image=image,
        python=(sys.version_info.major, sys.version_info.minor),
    )


def _image(root: Path, recipe: Recipe, engine: Engine, flavour: Flavour) -> Image | None:
    """The image of the lane that a plain run takes; None where the recipe's is not written."""
    from ae.host.machine import free_disk
    from ae.images.bake import flavours
    from ae.images.build import build_disk
    from ae.images.content import image_ref

    try:
        known = flavours(root, recipe.image)
        image = image_ref(root, recipe.image, flavour if flavour in known else known[0])
    except UsageError:
        return None
    ready = engine.has_image(image)
    folder = engine.available().facts.get("root", "")
    free = free_disk(Path(folder)) if folder and Path(folder).exists() else 0
    return Image(
        reference=image.reference,
        ready=ready,
        disk_free=free,
        disk_needed=build_disk(root, image),
    )


def _writable(folder: Path) -> bool:
    while not folder.exists():
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def exit_code(checks: Iterable[Check]) -> int:
    """3 when a check failed, else 0."""
    failed = any(check.verdict == "fail" for check in checks)
    return int(ExitCode.ENVIRONMENT if failed else ExitCode.OK)


def checks_to_json(checks: Iterable[Check]) -> list[dict[str, Any]]:
    """The checks as JSON-able data."""
    return [asdict(check) for check in checks]


def checks_to_text(checks: Iterable[Check], width: int = 100) -> str:
    """A line for each check, and the fix below what is not ok; wrapped at `width` characters."""
    lines = []
    for check in checks:
        lines += _wrapped(f"{check.verdict:4}  {check.name:9}  ", check.sentence, width)
        if check.fix and check.verdict != "ok":
            lines += _wrapped(f"{'':17}fix: ", check.fix, width)
    return "\n".join(lines)


def _wrapped(head: str, text: str, width: int) -> list[str]:
    indent = " " * len(head)
    return wrap(
        text,
        width,
        initial_indent=head,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _check_python(facts: Facts) -> Check:
    said = f"Python {facts.python[0]}.{facts.python[1]} on {platform.machine()}"
    if facts.python >= (3, 11):
        return Check("python", "ok", said)
    return Check("python", "fail", f"{said}; 3.11 or newer is needed", "install Python 3.11")


def _check_engine(facts: Facts) -> Check:
    if not facts.engine:
        return Check("engine", "fail", facts.engine_fault, facts.engine_fix)
    if not facts.docker and facts.wanted_engine is None:
        return Check(
            "engine",
            "warn",
            f"no Docker Engine answers, so points run as {facts.engine}",
            "install Docker, or set DOCKER_HOST, to run in the paper's containers",
        )
    return Check("engine", "ok", facts.engine)


def _check_build(facts: Facts) -> Check:
    if facts.buildx:
        return Check("build", "ok", f"images are built with {facts.buildx}")
    verdict: Verdict = "warn"  # images that are there already still run
    return Check("build", verdict, facts.buildx_fault, "install the package docker-buildx")


def _check_gpus(facts: Facts, demands: Demands) -> list[Check]:
    if demands.gpu == "none":
        return [Check("gpu", "ok", f"{demands.name} needs no GPU")]
    if not facts.gpus:
        if demands.gpu == "required":
            fix = "install the NVIDIA driver, or choose experiments that need no GPU"
            return [Check("gpu", "fail", "nvidia-smi lists no GPU and a GPU is required", fix)]
        fix = "install the NVIDIA driver, if there is a GPU"
        said = "nvidia-smi lists no GPU, so points run on the CPU"
        if demands.on_gpus_alone:
            said += f"; left out: {', '.join(demands.on_gpus_alone)}"
        return [Check("gpu", "warn", said, fix)]
    checks = [_check_one_gpu(gpu, demands) for gpu in facts.gpus]
    if demands.name and demands.gpu == "optional":
        # As `ae run` does: what finds no suitable GPU runs on the CPU.
        return [
            replace(c, verdict="warn", sentence=f"{c.sentence}; points run on the CPU")
            if c.verdict == "fail"
            else c
            for c in checks
        ]
    fit = sum(check.verdict != "fail" for check in checks)
    if demands.request.count <= fit:
        # Some GPUs suffice: the others are only worth a note.
        checks = [c if c.verdict != "fail" else Check(c.name, "warn", c.sentence) for c in checks]
    elif fit == len(checks):
        said = f"{demands.request.count} GPUs are needed and there are {fit}"
        checks.append(Check("gpu", "fail", said, "use a machine with more GPUs"))
    return checks


def _check_one_gpu(gpu: Gpu, demands: Demands) -> Check:
    name = f"gpu {gpu.index}"
    capability = f"{gpu.compute_capability[0]}.{gpu.compute_capability[1]}"
    said = (
        f"{gpu.name}, {gpu.memory_gib:.0f} GiB ({gpu.memory_free_gib:.0f} free), "
        f"compute capability {capability}, driver {gpu.driver}"
    )
    if lacks := shortcoming(gpu, demands.request):
        fix = "update the NVIDIA driver" if "driver" in lacks else "use another GPU"
        return Check(name, "fail", f"{said}: it {lacks}", fix)
    if gpu.processes:
        pids = ", ".join(map(str, gpu.processes[:5]))
        return Check(
            name,
            "warn",
            f"{said}; busy with {len(gpu.processes)} other process(es): {pids}",
            "timings will suffer: stop them, or pick another GPU with --gpus device=N",
        )
    return Check(name, "ok", said)


def _check_route(facts: Facts, demands: Demands) -> Check:
    if facts.gpu_route:
        word = {"cdi": "CDI", "nvidia": "the NVIDIA runtime"}[facts.gpu_route]
        return Check("gpu route", "ok", f"Docker hands GPUs to containers through {word}")
    # Unless Docker was asked for, points then run without it, or on the CPU.
    return Check(
        "gpu route",
        "fail" if facts.wanted_engine == "docker" and demands.gpu == "required" else "warn",
        "Docker has neither a CDI spec for NVIDIA GPUs nor the NVIDIA runtime",
        "install the NVIDIA Container Toolkit, then: sudo nvidia-ctk cdi generate "
        "--output=/etc/cdi/nvidia.yaml",
    )


def _check_counters(facts: Facts) -> Check:
    if not facts.counters_restricted:
        return Check("counters", "ok", "GPU performance counters are open to all users")
    return Check(
        "counters",
        "warn",
        "GPU performance counters are for root only, so profiled experiments may be skipped",
        "load the driver with NVreg_RestrictProfilingToAdminUsers=0",
    )


def _mps_pipe() -> Path:
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or _MPS_PIPE)


def _check_mps(facts: Facts) -> Check:
    if not facts.mps_pipe:
        return Check("mps", "ok", "no MPS daemon has left its pipe folder")
    return Check(
        "mps",
        "warn",
        f"{_mps_pipe()} exists: an MPS daemon runs, or one has left it, and containers will see it",
        f"echo quit | nvidia-cuda-mps-control; then remove {_mps_pipe()}",
    )


def _check_shm(facts: Facts, demands: Demands) -> Check:
    said = f"/dev/shm has {format_size(facts.shm)}"
    if demands.host_shm and demands.shm > facts.shm:
        return Check(
            "shm",
            "fail",
            f"{said} and {demands.name} shares the host's, of which it needs "
            f"{format_size(demands.shm)}",
            f"mount -o remount,size={demands.shm} /dev/shm",
        )
    return Check("shm", "ok", said)


def _check_memlock(facts: Facts, demands: Demands) -> Check:
    words = "unlimited" if facts.memlock == UNLIMITED else format_size(facts.memlock)
    need = float("inf") if demands.memlock == UNLIMITED else float(demands.memlock)
    have = float("inf") if facts.memlock == UNLIMITED else float(facts.memlock)
    if have < need:
        local = facts.wanted_engine == "local" or not facts.docker
        return Check(
            "memlock",
            "fail" if local else "warn",
            f"processes may lock {words} and {demands.name} locks more; Docker can raise it, "
            "engine local cannot",
            "ulimit -l unlimited, or LimitMEMLOCK=infinity for the Docker daemon",
        )
    return Check("memlock", "ok", f"processes may lock {words}")


def _check_nofile(facts: Facts) -> Check:
    words = "any number of" if facts.nofile == UNLIMITED else str(facts.nofile)
    if facts.nofile != UNLIMITED and facts.nofile < 1024:
        return Check("nofile", "warn", f"processes may open {words} files", "ulimit -n 4096")
    return Check("nofile", "ok", f"processes may open {words} files")


def _check_disk(facts: Facts, demands: Demands) -> Check:
    said = f"{format_size(facts.disk_free)} free at {facts.disk_path}"
    if not facts.disk_writable:
        return Check(
            "disk",
            "fail",
            f"{facts.disk_path} cannot be written to by this user",
            "mend its permissions, or set AE_RESULTS to a folder of your own",
        )
    left_out = demands.gpu != "required" and not facts.gpus
    needed = demands.disk - (demands.disk_on_gpus_alone if left_out else 0)
    if facts.disk_free < needed:
        who = demands.name or "a run"
        return Check(
            "disk",
            "fail",
            f"{said}, and {who} needs {format_size(needed)}",
            "free some disk, or move results with AE_RESULTS",
        )
    return Check("disk", "ok", said)


def _check_image(image: Image) -> Check:
    if image.ready:
        return Check("image", "ok", f"{image.reference} is there and up to date")
    said = f"{image.reference} is missing or out of date, so `ae run` will make it first"
    if image.disk_free and image.disk_free < image.disk_needed:
        have, need = format_size(image.disk_free), format_size(image.disk_needed)
        return Check(
            "image",
            "fail",
            f"{said}, which takes {need}, and {have} are free",
            "free some disk: docker system df, docker builder prune",
        )
    return Check("image", "warn", said, "ae build, or ae pull, or just ae run")


def _conclude(checks: list[Check], facts: Facts, demands: Demands) -> Check:
    """The last line: whether `ae run` will work."""
    bad = [check.name for check in checks if check.verdict == "fail"]
    if bad:
        said = f"`{demands.command}` will not work before this is mended: {', '.join(bad)}"
        return Check("result", "fail", said, "follow the fixes above, then ask again")
    doubts = sum(check.verdict == "warn" for check in checks)
    mind = f"; mind the {doubts} warning{'s' if doubts > 1 else ''} above" if doubts else ""
    return Check("result", "ok", f"`{demands.command}` works here: {facts.engine}{mind}")


def _counters_restricted() -> bool | None:
    try:
        lines = _DRIVER_PARAMETERS.read_text().splitlines()
    except OSError:
        return None
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    return values.get("RmProfilingAdminOnly", "0").strip() == "1"


def _size_of(path: str) -> int:
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return found.f_frsize * found.f_blocks


def _soft_limit(which: int) -> int:
    soft = resource.getrlimit(which)[0]
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft

"""`ae doctor`: facts about this machine, and pure checks that judge them, each with a fix."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ae.errors import EnvironmentFault, ExitCode
from ae.model import Flavour, Gpu
from ae.units import format_size

if TYPE_CHECKING:
    from ae.recipe import GpuNeed, Recipe

Verdict = Literal["ok", "warn", "fail"]
UNLIMITED = -1
_GIB = 2**30
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
    python: tuple[int, int] = (3, 11)


@dataclass(frozen=True, kw_only=True)
class Demands:
    """What a recipe asks of the machine; the defaults are a machine check without a recipe."""

    name: str = ""
    gpu: Literal["required", "optional", "none"] = "optional"
    count: int = 1
    min_memory: int = 0  # bytes
    min_compute_capability: tuple[int, int] = (0, 0)
    min_driver: str = ""
    disk: int = 10**9
    shm: int = 0
    memlock: int = 0  # -1: unlimited
    host_shm: bool = False  # ipc: host, so the host's shm counts


def diagnose(root: Path, recipe: Recipe | None, engine: str | None = None) -> list[Check]:
    """Gather and judge; with a recipe, against what it needs."""
    return judge(gather(root, engine), demands_of(recipe) if recipe else Demands())


def judge(facts: Facts, demands: Demands) -> list[Check]:
    """Return every check. Pure."""
    checks = [_check_python(facts), _check_engine(facts), _check_build(facts)]
    checks += _check_gpus(facts, demands)
    checks += [_check_route(facts)] if facts.gpus and facts.docker else []
    checks += [_check_counters(facts)] if facts.counters_restricted is not None else []
    checks += [_check_mps(facts)]
    checks += [_check_shm(facts, demands), _check_memlock(facts, demands), _check_nofile(facts)]
    return [*checks, _check_disk(facts, demands)]


def demands_of(recipe: Recipe) -> Demands:
    """What the default experiments of a recipe need at most."""
    experiments = [e for e in recipe.experiments.values() if e.default] or list(
        recipe.experiments.values()
    )
    wishes = {experiment.gpu for experiment in experiments}
    needs = recipe.needs
    gpus: GpuNeed | None = needs.gpus
    return Demands(
        name=recipe.name,
        gpu="required" if "required" in wishes else "optional" if "optional" in wishes else "none",
        count=gpus.count if gpus else 1,
        min_memory=gpus.min_memory if gpus else 0,
        min_compute_capability=gpus.min_compute_capability if gpus else (0, 0),
        min_driver=(gpus.min_driver or "") if gpus else "",
        disk=sum(
            experiment.disk * prod(len(recipe.axes[axis].values) for axis in experiment.axes)
            for experiment in experiments
        ),
        shm=needs.shm_size.value if needs.shm_size else 0,
        memlock=next((u.soft for u in needs.ulimits if u.name == "memlock"), 0),
        host_shm=needs.ipc is not None and needs.ipc.value == "host",
    )


def gather(root: Path, engine: str | None = None) -> Facts:
    """Look at the machine. Never raises for what is missing: that is what the checks are about."""
    from ae.engines.docker import DockerEngine
    from ae.engines.podman import PodmanEngine
    from ae.engines.select import choose
    from ae.images import find_client
    from ae.machine import free_disk, query_gpus

    gpus = query_gpus()
    docker = DockerEngine().available()
    chosen = fault = fix = ""
    try:
        flavour = Flavour.CUDA if gpus else Flavour.CPU
        usable = choose(engine, flavour, root=root)
        found = usable.starts() if isinstance(usable, PodmanEngine) else usable.available()
        if not found.ok:
            raise EnvironmentFault(f"engine {usable.name}: {found.detail}", fix=found.fix)
        chosen = found.detail
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
        python=(sys.version_info.major, sys.version_info.minor),
    )


def exit_code(checks: Iterable[Check]) -> int:
    """3 when a check failed, else 0."""
    failed = any(check.verdict == "fail" for check in checks)
    return int(ExitCode.ENVIRONMENT if failed else ExitCode.OK)


def checks_to_json(checks: Iterable[Check]) -> list[dict[str, Any]]:
    """The checks as JSON-able data."""
    return [asdict(check) for check in checks]


def checks_to_text(checks: Iterable[Check]) -> str:
    """A line for each check, and the fix below what is not ok."""
    lines = []
    for check in checks:
        lines.append(f"{check.verdict:4}  {check.name:9}  {check.sentence}")
        if check.fix and check.verdict != "ok":
            lines.append(f"{'':17}fix: {check.fix}")
    return "\n".join(lines)


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
        return [Check("gpu", "warn", "nvidia-smi lists no GPU, so points run on the CPU", fix)]
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
    if demands.count <= fit:
        # Some GPUs suffice: the others are only worth a note.
        checks = [c if c.verdict != "fail" else Check(c.name, "warn", c.sentence) for c in checks]
    elif fit == len(checks):
        said = f"{demands.count} GPUs are needed and there are {fit}"
        checks.append(Check("gpu", "fail", said, "use a machine with more GPUs"))
    return checks


def _check_one_gpu(gpu: Gpu, demands: Demands) -> Check:
    name = f"gpu {gpu.index}"
    capability = f"{gpu.compute_capability[0]}.{gpu.compute_capability[1]}"
    said = (
        f"{gpu.name}, {gpu.memory_gib:.0f} GiB ({gpu.memory_free_gib:.0f} free), "
        f"compute capability {capability}, driver {gpu.driver}"
    )
    if gpu.memory_gib * _GIB < demands.min_memory:
        need = format_size(demands.min_memory)
        return Check(name, "fail", f"{said}: too small, {need} are needed", "use a larger GPU")
    if gpu.compute_capability < demands.min_compute_capability:
        need = ".".join(map(str, demands.min_compute_capability))
        return Check(name, "fail", f"{said}: too old, {need} is needed", "use a newer GPU")
    if demands.min_driver and _version(gpu.driver) < _version(demands.min_driver):
        return Check(
            name,
            "fail",
            f"{said}: the image's CUDA needs driver {demands.min_driver} or newer",
            "update the NVIDIA driver",
        )
    if gpu.processes:
        pids = ", ".join(map(str, gpu.processes[:5]))
        return Check(
            name,
            "warn",
            f"{said}; busy with {len(gpu.processes)} other process(es): {pids}",
            "timings will suffer: stop them, or pick another GPU with --gpus device=N",
        )
    return Check(name, "ok", said)


def _check_route(facts: Facts) -> Check:
    if facts.gpu_route:
        word = {"cdi": "CDI", "nvidia": "the NVIDIA runtime"}[facts.gpu_route]
        return Check("gpu route", "ok", f"Docker hands GPUs to containers through {word}")
    return Check(
        "gpu route",
        "fail",
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
        return Check(
            "memlock",
            "warn",
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
    if facts.disk_free < demands.disk:
        who = demands.name or "a run"
        return Check(
            "disk",
            "fail",
            f"{said}, and {who} needs {format_size(demands.disk)}",
            "free some disk, or move results with AE_RESULTS",
        )
    return Check("disk", "ok", said)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


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

"""`ae doctor`: what of this machine is fit; checks judge what was found, each with its fix."""

from __future__ import annotations

import math
import os
import platform
import resource
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ae.daemon.connection import endpoint_of
from ae.engines.base import Availability, Check, Engine, Verdict
from ae.engines.choose import choose
from ae.engines.docker import DockerEngine
from ae.errors import AeError, EnvironmentFault, ExitCode
from ae.host.machine import detect, free_disk
from ae.images.build import build_disk
from ae.images.content import find_client
from ae.model import Gpu, Machine, Plan
from ae.records.folder import results_dir
from ae.units import counted, folded, format_size

_DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")


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
    refused: AeError | None = None  # why there is no plan, or no image for it
    image: Check | None = None  # of the plan, at the engine that would be used
    findings: tuple[Check, ...] = ()  # what the engine itself has to say


def gather(
    root: Path,
    engine: str | None = None,
    command: str = "",
    plan_for: Callable[[Machine], Plan] | None = None,
) -> Facts:
    """Look at the machine. Never raises for what is missing: that is what the checks are about.

    `plan_for` gives the plan of `command`; None: no recipe was named.
    """
    machine, findings = detect(), tuple[Check, ...]()
    plan, refused, image, local = None, None, None, False
    usable: Engine | None = None
    try:
        usable = choose(engine, gpus=bool(machine.gpus) and engine != "slurm")
        found, local = usable.available(), usable.name == "local"
        if findings := tuple(usable.findings()):  # points run on other machines
            machine = usable.machine
    except EnvironmentFault as error:
        found, usable = Availability(ok=False, detail=error.message, fix=error.fix), None
    try:
        plan = plan_for(machine) if plan_for else None
        if usable and plan:
            wanted = plan.points[0].image
            folder = Path(found.facts.get("root") or "/nowhere")
            free = free_disk(folder) if folder.exists() else 0
            ready, needed = usable.has_image(wanted), build_disk(wanted)
            image = judge_image(usable.named(wanted), ready, free, needed)
    except AeError as error:
        refused = error
    where = results_dir(root)
    there = next(folder for folder in (where, *where.parents) if folder.exists())
    driver = _DRIVER_PARAMETERS.read_text() + "\n" if _DRIVER_PARAMETERS.exists() else None
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    return Facts(
        engine=found, wanted_engine=engine, local=local, docker=DockerEngine().available(),
        client=_client(), gpus=machine.gpus, mps_pipe=pipe if Path(pipe).exists() else "",
        counters_restricted=None if driver is None else "RmProfilingAdminOnly: 1\n" in driver,
        shm=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").exists() else 0,
        memlock=math.inf if memlock == resource.RLIM_INFINITY else memlock,
        disk_free=free_disk(where), disk_path=str(where),
        disk_writable=there.is_dir() and os.access(there, os.W_OK | os.X_OK),
        command=command, plan=plan, refused=refused, image=image, findings=findings,
    )  # fmt: skip


def _client() -> Availability:
    try:
        return Availability(ok=True, detail=find_client(endpoint_of()))
    except EnvironmentFault as error:
        return Availability(ok=False, detail=error.message, fix=error.fix)


def judge(facts: Facts) -> list[Check]:
    """Return every check. Pure."""
    checks = [Check("python", "ok", f"Python {platform.python_version()}, {platform.machine()}")]
    for look in (_programs, _gpus, _driver, _plan, _limits, _disk):
        checks += look(facts)
    checks += [facts.image] if facts.image else []
    return [*checks, _conclude(checks, facts)] if facts.command else checks


def exit_code(checks: Iterable[Check]) -> int:
    """3 when a check failed, else 0."""
    return int(ExitCode.ENVIRONMENT if "fail" in {one.verdict for one in checks} else ExitCode.OK)


def checks_to_text(checks: Iterable[Check], width: int = 100) -> str:
    """A line for each check, and the fix below what is not ok; wrapped at `width` characters."""
    lines = []
    for check in checks:
        head = f"{check.verdict:4}  {check.name:9}  "
        lines.append(folded(check.sentence, width, len(head), head))
        if check.fix and check.verdict != "ok":
            lines.append(folded(check.fix, width, 22, f"{'':17}fix: "))
    return "\n".join(lines)


def _check(name: str, well: str, fault: str, fix: str, verdict: Verdict = "warn") -> Check:
    """The fault, if there is one, with its fix; else what is well."""
    return Check(name, verdict, fault, fix) if fault else Check(name, "ok", well)


def _programs(facts: Facts) -> Iterator[Check]:
    """What runs points, and what builds images."""
    engine, client = facts.engine, facts.client
    if engine.ok and not facts.docker.ok and facts.wanted_engine is None:
        said = f"no Docker Engine answers, so points run as {engine.detail}"
        fix = "install Docker, or set DOCKER_HOST, to run in the paper's containers"
        yield Check("engine", "warn", said, fix)
    else:
        yield Check("engine", "ok" if engine.ok else "fail", engine.detail, engine.fix)
    fault = "" if client.ok else client.detail  # images that are there already still run
    yield from facts.findings
    yield _check("build", f"images are built with {client.detail}", fault, client.fix)


def _gpus(facts: Facts) -> Iterator[Check]:
    for gpu in facts.gpus:
        said = (
            f"{gpu.name}, {gpu.memory_gib:.0f} GiB ({gpu.memory_free_gib:.0f} free), compute "
            f"capability {'.'.join(map(str, gpu.compute_capability))}, driver {gpu.driver}"
        )
        pids = ", ".join(map(str, gpu.processes[:5]))
        busy = f"{said}; busy with {len(gpu.processes)} other process(es): {pids}" if pids else ""
        fix = "timings will suffer: stop them, or pick another GPU with --gpus device=N"
        yield _check(f"gpu {gpu.index}", said, busy, fix)
    if not facts.gpus:
        said = "nvidia-smi lists no GPU, so points run on the CPU"
        yield Check("gpu", "warn", said, "install the NVIDIA driver, if there is a GPU")


def _plan(facts: Facts) -> Iterator[Check]:
    """What the planner says of a run on this machine."""
    if facts.plan:
        said = "; ".join((f"{len(facts.plan.points)} points would run", *facts.plan.notes))
        yield Check("plan", "warn" if facts.plan.notes else "ok", said)
    if facts.refused:
        what = "image" if facts.plan else "plan"
        yield Check(what, "fail", facts.refused.message, facts.refused.fix)


def _driver(facts: Facts) -> Iterator[Check]:
    """How containers and profilers reach the GPUs, and what MPS has left."""
    if facts.gpus and facts.docker.ok:
        route = facts.docker.facts.get("gpu_route", "")
        word = {"cdi": "CDI", "nvidia": "the NVIDIA runtime"}.get(route)
        fault, fix = DockerEngine.no_gpus
        well = f"Docker hands GPUs to containers through {word}"
        yield _check("gpu route", well, "" if word else fault, fix)
    if (closed := facts.counters_restricted) is not None:
        well = "GPU performance counters are open to all users"
        fault = "GPU performance counters are for root only, so profiled experiments may be skipped"
        fix = "load the driver with NVreg_RestrictProfilingToAdminUsers=0"
        yield _check("counters", well, fault if closed else "", fix)
    pipe = facts.mps_pipe
    said = f"{pipe} exists: an MPS daemon runs, or one has left it, and containers will see it"
    fix = f"echo quit | nvidia-cuda-mps-control; then remove {pipe}"
    yield _check("mps", "no MPS daemon has left its pipe folder", said if pipe else "", fix)


def _limits(facts: Facts) -> Iterator[Check]:
    """Shared and locked memory; Docker can raise them, engine local cannot."""
    needs = [point.needs for point in facts.plan.points] if facts.plan else []
    shm = max((need.shm_bytes or 0 for need in needs), default=0)
    soft = [limit.soft for need in needs for limit in need.ulimits if limit.name == "memlock"]
    memlock = max((math.inf if limit == -1 else limit for limit in soft), default=0)
    said = f"/dev/shm has {format_size(facts.shm)}"
    small = f"{said}, {format_size(shm)} are needed, and engine local gives no more"
    small = small if shm > facts.shm and facts.local else ""
    yield _check("shm", said, small, f"mount -o remount,size={shm} /dev/shm", "fail")
    have = "unlimited" if facts.memlock == math.inf else format_size(facts.memlock)
    said = f"processes may lock {have}"
    small = f"{said} and the run locks more; Docker can raise it, engine local cannot"
    fix = "ulimit -l unlimited, or LimitMEMLOCK=infinity for the Docker daemon"
    verdict: Verdict = "fail" if facts.local else "warn"
    yield _check("memlock", said, small if memlock > facts.memlock else "", fix, verdict)


def _disk(facts: Facts) -> Iterator[Check]:
    needed = sum(point.disk_bytes for point in facts.plan.points) if facts.plan else 10**9
    said = f"{format_size(facts.disk_free)} free at {facts.disk_path}"
    fault, fix = "", "free some disk, or move results with AE_RESULTS"
    if not facts.disk_writable:
        fault = f"{facts.disk_path} cannot be written to by this user"
        fix = "change its permissions, or set AE_RESULTS to a folder of your own"
    elif facts.disk_free < needed:
        fault = f"{said}, and a run needs {format_size(needed)}"
    yield _check("disk", said, fault, fix, "fail")


def judge_image(name: str, ready: bool, free: int, needed: int) -> Check:
    """`ready`: there, and of what the tree holds; else a build takes `needed` bytes where `free`
    are (0: nobody knows)."""
    said = f"{name} is missing or out of date, so `ae run` will make it first"
    if 0 < free < needed and not ready:
        said += f", which takes {format_size(needed)}, and {format_size(free)} are free"
        fix = "free some disk: docker system df, docker builder prune"
        return Check("image", "fail", said, fix)
    fix = "just ae run; with Docker also ae build, or ae pull"
    return _check("image", f"{name} is there and up to date", "" if ready else said, fix)


def _conclude(checks: list[Check], facts: Facts) -> Check:
    """The last line: whether `ae run` will work."""
    if bad := [check.name for check in checks if check.verdict == "fail"]:
        said = f"`{facts.command}` will not work before this is put right: {', '.join(bad)}"
        return Check("result", "fail", said, "follow the fixes above, then ask again")
    doubts = sum(check.verdict == "warn" for check in checks)
    mind = f"; mind the {counted(doubts, 'warning')} above" if doubts else ""
    return Check("result", "ok", f"`{facts.command}` works here: {facts.engine.detail}{mind}")

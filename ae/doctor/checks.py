"""`ae doctor`: pure checks that judge what was found, each finding with its fix."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from textwrap import wrap
from typing import Literal

from ae.doctor.facts import Facts
from ae.errors import ExitCode
from ae.units import format_size

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One finding: `ok`, `warn` (works, but mind this) or `fail` (the recipe cannot run so)."""

    name: str
    verdict: Verdict
    sentence: str
    fix: str = ""


def judge(facts: Facts) -> list[Check]:
    """Return every check. Pure."""
    checks = [Check("python", "ok", f"Python {platform.python_version()}, {platform.machine()}")]
    checks += [
        _engine(facts),
        *(Check(*one) for one in facts.findings),
        _build(facts),
        *_gpus(facts),
        *_driver(facts),
        *_plan(facts),
    ]
    checks += [*_limits(facts), _disk(facts), *_image(facts)]
    return [*checks, _conclude(checks, facts)] if facts.command else checks


def exit_code(checks: Iterable[Check]) -> int:
    """3 when a check failed, else 0."""
    failed = any(check.verdict == "fail" for check in checks)
    return int(ExitCode.ENVIRONMENT if failed else ExitCode.OK)


def checks_to_text(checks: Iterable[Check], width: int = 100) -> str:
    """A line for each check, and the fix below what is not ok; wrapped at `width` characters."""
    lines = []
    for check in checks:
        said = [(f"{check.verdict:4}  {check.name:9}  ", check.sentence)]
        if check.fix and check.verdict != "ok":
            said.append((f"{'':17}fix: ", check.fix))
        for head, text in said:
            lines += wrap(
                text,
                width,
                initial_indent=head,
                subsequent_indent=" " * len(head),
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n".join(lines)


def _engine(facts: Facts) -> Check:
    if not facts.engine.ok:
        return Check("engine", "fail", facts.engine.detail, facts.engine.fix)
    if facts.docker.ok or facts.wanted_engine is not None:
        return Check("engine", "ok", facts.engine.detail)
    said = f"no Docker Engine answers, so points run as {facts.engine.detail}"
    fix = "install Docker, or set DOCKER_HOST, to run in the paper's containers"
    return Check("engine", "warn", said, fix)


def _build(facts: Facts) -> Check:
    said = "images are built with " if facts.client.ok else ""  # those there already still run
    verdict: Verdict = "ok" if facts.client.ok else "warn"
    return Check("build", verdict, said + facts.client.detail, facts.client.fix)


def _gpus(facts: Facts) -> Iterator[Check]:
    for gpu in facts.gpus:
        said = (
            f"{gpu.name}, {gpu.memory_gib:.0f} GiB ({gpu.memory_free_gib:.0f} free), compute "
            f"capability {'.'.join(map(str, gpu.compute_capability))}, driver {gpu.driver}"
        )
        fix = ""
        if gpu.processes:
            pids = ", ".join(map(str, gpu.processes[:5]))
            said += f"; busy with {len(gpu.processes)} other process(es): {pids}"
            fix = "timings will suffer: stop them, or pick another GPU with --gpus device=N"
        yield Check(f"gpu {gpu.index}", "warn" if fix else "ok", said, fix)
    if not facts.gpus:
        said = "nvidia-smi lists no GPU, so points run on the CPU"
        yield Check("gpu", "warn", said, "install the NVIDIA driver, if there is a GPU")


def _plan(facts: Facts) -> Iterator[Check]:
    """What the planner says of a run on this machine."""
    if facts.refused:
        yield Check("plan", "fail", facts.refused.message, facts.refused.fix)
    elif facts.plan:
        said = f"{len(facts.plan.points)} points would run"
        notes = "".join(f"; {note}" for note in facts.plan.notes)
        yield Check("plan", "warn" if notes else "ok", said + notes)


def _driver(facts: Facts) -> Iterator[Check]:
    """How containers and profilers reach the GPUs, and what MPS has left."""
    route = facts.docker.facts.get("gpu_route", "")
    if facts.gpus and facts.docker.ok and route:
        word = {"cdi": "CDI", "nvidia": "the NVIDIA runtime"}[route]
        yield Check("gpu route", "ok", f"Docker hands GPUs to containers through {word}")
    elif facts.gpus and facts.docker.ok:
        said = "Docker has neither a CDI spec for NVIDIA GPUs nor the NVIDIA runtime"
        fix = "install the NVIDIA Container Toolkit, then: sudo nvidia-ctk cdi generate "
        fix += "--output=/etc/cdi/nvidia.yaml"
        yield Check("gpu route", "warn", said, fix)
    if facts.counters_restricted:
        said = "GPU performance counters are for root only, so profiled experiments may be skipped"
        fix = "load the driver with NVreg_RestrictProfilingToAdminUsers=0"
        yield Check("counters", "warn", said, fix)
    elif facts.counters_restricted is not None:
        yield Check("counters", "ok", "GPU performance counters are open to all users")
    if facts.mps_pipe:
        said = f"{facts.mps_pipe} exists: an MPS daemon runs, or one has left it, and containers "
        fix = f"echo quit | nvidia-cuda-mps-control; then remove {facts.mps_pipe}"
        yield Check("mps", "warn", said + "will see it", fix)
    else:
        yield Check("mps", "ok", "no MPS daemon has left its pipe folder")


def _limits(facts: Facts) -> Iterator[Check]:
    """Shared and locked memory; Docker can raise them, engine local cannot."""
    needs = [point.needs for point in facts.plan.points] if facts.plan else []
    shm = max((need.shm_bytes or 0 for need in needs), default=0)
    soft = [limit.soft for need in needs for limit in need.ulimits if limit.name == "memlock"]
    memlock = max((math.inf if limit == -1 else limit for limit in soft), default=0)
    said = f"/dev/shm has {format_size(facts.shm)}"
    if shm > facts.shm and facts.local:
        said += f", {format_size(shm)} are needed, and engine local gives no more"
        yield Check("shm", "fail", said, f"mount -o remount,size={shm} /dev/shm")
    else:
        yield Check("shm", "ok", said)
    have = "unlimited" if facts.memlock == math.inf else format_size(facts.memlock)
    said = f"processes may lock {have}"
    if memlock > facts.memlock:
        said += " and the run locks more; Docker can raise it, engine local cannot"
        fix = "ulimit -l unlimited, or LimitMEMLOCK=infinity for the Docker daemon"
        yield Check("memlock", "fail" if facts.local else "warn", said, fix)
    else:
        yield Check("memlock", "ok", said)


def _disk(facts: Facts) -> Check:
    if not facts.disk_writable:
        said = f"{facts.disk_path} cannot be written to by this user"
        fix = "change its permissions, or set AE_RESULTS to a folder of your own"
        return Check("disk", "fail", said, fix)
    needed = sum(point.disk_bytes for point in facts.plan.points) if facts.plan else 10**9
    said = f"{format_size(facts.disk_free)} free at {facts.disk_path}"
    if facts.disk_free >= needed:
        return Check("disk", "ok", said)
    said += f", and a run needs {format_size(needed)}"
    return Check("disk", "fail", said, "free some disk, or move results with AE_RESULTS")


def _image(facts: Facts) -> Iterator[Check]:
    if (image := facts.image) is None:
        return
    if image.ready:
        yield Check("image", "ok", f"{image.reference} is there and up to date")
        return
    said = f"{image.reference} is missing or out of date, so `ae run` will make it first"
    if 0 < image.disk_free < image.disk_needed:
        have, need = format_size(image.disk_free), format_size(image.disk_needed)
        said += f", which takes {need}, and {have} are free"
        fix = "free some disk: docker system df, docker builder prune"
        yield Check("image", "fail", said, fix)
    else:
        yield Check("image", "warn", said, "ae build, or ae pull, or just ae run")


def _conclude(checks: list[Check], facts: Facts) -> Check:
    """The last line: whether `ae run` will work."""
    if bad := [check.name for check in checks if check.verdict == "fail"]:
        said = f"`{facts.command}` will not work before this is put right: {', '.join(bad)}"
        return Check("result", "fail", said, "follow the fixes above, then ask again")
    doubts = sum(check.verdict == "warn" for check in checks)
    mind = f"; mind the {doubts} warning{'s' if doubts > 1 else ''} above" if doubts else ""
    return Check("result", "ok", f"`{facts.command}` works here: {facts.engine.detail}{mind}")

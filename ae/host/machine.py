"""What this machine has: GPUs as the driver reports them, processors, memory, free disk."""

from __future__ import annotations

import csv
import os
import re
import shutil
from pathlib import Path

from ae.errors import EnvironmentFault
from ae.host import processes
from ae.model import Gpu, Machine
from ae.units import format_size

_GPU_FIELDS = ("index", "uuid", "name", "memory.total", "memory.free", "compute_cap")
_MIB_PER_GIB = 1024
_ANSWER_S = 20.0  # nvidia-smi wakes a driver without persistence mode, which takes seconds


def detect() -> Machine:
    """Return GPUs, processors this process may use, and memory in GiB. Never raises."""
    return Machine(gpus=query_gpus(), cpus=usable_cpus(), memory_gib=memory_gib())


def query_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that `nvidia-smi` lists; none without it, or when it fails."""
    if shutil.which("nvidia-smi") is None:
        return ()
    rows = _query("gpu", (*_GPU_FIELDS, "driver_version"))
    if not rows:
        return ()
    users: dict[str, list[int]] = {}
    for uuid, pid in (row for row in _query("compute-apps", ("gpu_uuid", "pid")) if len(row) == 2):
        if pid.isdigit():
            users.setdefault(uuid, []).append(int(pid))
    return tuple(gpu for row in rows if (gpu := _gpu(row, users)) is not None)


def usable_cpus() -> int:
    """Number of processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_gib() -> float:
    """Memory in GiB: the machine's, or less where a control group gives less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total / 2**30


def oom_kills() -> int:
    """How many processes the kernel has killed for lack of memory since the machine started."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def free_disk(path: Path) -> int:
    """Free bytes where `path` is, or will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def require_disk(path: Path, needed: int, what: str, fix: str = "") -> None:
    """Raise EnvironmentFault when fewer than `needed` bytes are free at `path`."""
    free = free_disk(path)
    if free < needed:
        raise EnvironmentFault(
            f"{what} needs {format_size(needed)} of disk, and {path} has {format_size(free)} free",
            fix=fix
            or "free some disk, or move results with AE_RESULTS and caches with XDG_CACHE_HOME",
        )


def cache_dir() -> Path:
    """Where environments and build logs are kept: $XDG_CACHE_HOME/ae."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ae"


def _query(what: str, fields: tuple[str, ...]) -> list[list[str]]:
    try:
        done = processes.run(
            ["nvidia-smi", f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"],
            timeout_s=_ANSWER_S,
        )
    except processes.ProcessFault:
        return []  # it hangs or cannot be started: no GPU that one could use
    if done.returncode != 0:
        return []
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return [[cell.strip() for cell in row] for row in csv.reader(lines, skipinitialspace=True)]


def _gpu(row: list[str], users: dict[str, list[int]]) -> Gpu | None:
    """One line of nvidia-smi; None when it reports an error instead of a GPU."""
    if len(row) != len(_GPU_FIELDS) + 1 or not row[0].isdigit():
        return None
    index, uuid, name, total, free, capability, driver = row
    match = re.fullmatch(r"(\d+)\.(\d+)", capability)
    return Gpu(
        index=int(index),
        uuid=uuid,
        name=name,
        memory_gib=_mib(total) / _MIB_PER_GIB,
        memory_free_gib=_mib(free) / _MIB_PER_GIB,
        compute_capability=(int(match[1]), int(match[2])) if match else (0, 0),
        driver=driver,
        processes=tuple(users.get(uuid, ())),
    )


def _mib(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return 0.0  # "[N/A]"

"""What this machine has: GPUs as the driver reports them, processors, memory, free disk."""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from ae.errors import EnvironmentFault
from ae.host import processes
from ae.model import Gpu, Machine
from ae.units import format_size

FIELDS = ("index", "uuid", "name", "memory.total", "memory.free", "compute_cap", "driver_version")
_ANSWER_S = 20.0  # nvidia-smi wakes a driver without persistence mode, which takes seconds


def detect() -> Machine:
    """Return GPUs, processors this process may use, and memory in GiB. Never raises."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Where a control group gives less, that.
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # none there, or `max`
            memory = min(memory, int(Path(path).read_text()))
    cpus = len(os.sched_getaffinity(0))
    return Machine(gpus=query_gpus(), cpus=cpus, memory_gib=memory / 2**30)


def query_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that `nvidia-smi` lists; none without it, or when it fails."""
    rows = _query("gpu", FIELDS)
    return gpus_of(rows, _query("compute-apps", ("gpu_uuid", "pid")) if rows else ())


def gpus_of(rows: Iterable[Sequence[str]], users: Sequence[Sequence[str]] = ()) -> tuple[Gpu, ...]:
    """GPUs from rows of FIELDS; `users` are rows of UUID and process id."""
    return tuple(
        Gpu(
            index=int(index),
            uuid=uuid,
            name=name,
            memory_gib=_gib(total),
            memory_free_gib=_gib(free),
            compute_capability=tuple(map(int, re.findall(r"\d+", capability))) or (0, 0),
            driver=driver,
            processes=tuple(int(pid) for user, pid in users if user == uuid and pid.isdigit()),
        )
        for index, uuid, name, total, free, capability, driver in rows
        if index.isdigit()
    )


def oom_kills() -> int:
    """How many processes the kernel has killed for lack of memory since the machine started."""
    with suppress(OSError):
        if found := re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE):
            return int(found[1])
    return 0


def free_disk(path: Path) -> int:
    """Free bytes where `path` is, or will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def require_disk(path: Path, needed: int, what: str, fix: str = "") -> None:
    """Raise EnvironmentFault when fewer than `needed` bytes are free at `path`."""
    if (free := free_disk(path)) < needed:
        raise EnvironmentFault(
            f"{what} needs {format_size(needed)} of disk, and {path} has {format_size(free)} free",
            fix=fix
            or "free some disk, or move results with AE_RESULTS and caches with XDG_CACHE_HOME",
        )


def cache_dir() -> Path:
    """Where environments and build logs are kept: $XDG_CACHE_HOME/ae."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ae"


def _query(what: str, fields: tuple[str, ...]) -> list[list[str]]:
    """The rows of nvidia-smi's answer that are whole; it also says errors there."""
    argv = ["nvidia-smi", f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = processes.run(argv, timeout_s=_ANSWER_S)
    except processes.ProcessFault:
        return []  # it is not there or hangs: no GPU that one could use
    if done.returncode != 0:
        return []
    rows = csv.reader(done.stdout.splitlines(), skipinitialspace=True)
    return [[cell.strip() for cell in row] for row in rows if len(row) == len(fields)]


def _gib(mib: str) -> float:
    return float(mib) / 1024 if mib.isdigit() else 0.0  # "[N/A]"

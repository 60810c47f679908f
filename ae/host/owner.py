"""Whose a container or process is, whether that launcher still runs, and who measures here."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ae.host.files import lock
from ae.host.machine import cache_dir

RUN, RECIPE, HOST, PID = "ae.run", "ae.recipe", "ae.host", "ae.pid"
STARTED = "ae.started"  # boot and start time of the launcher: process ids are used again
ENVIRONMENT = "AE_OWNER"  # the same for child processes, as "run|host|pid|started"


def stamp(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a job, completed with who this launcher is."""
    own = {HOST: socket.gethostname(), PID: str(os.getpid()), STARTED: started(os.getpid())}
    return own | dict(labels)


def to_environment(labels: Mapping[str, str]) -> str:
    """Write the owner's labels as one word for a child's environment."""
    return "|".join(labels.get(key, "") for key in (RUN, HOST, PID, STARTED))


def from_environment(word: str) -> dict[str, str]:
    """Read what `to_environment` wrote; an empty mapping when it is something else."""
    parts = word.split("|")
    return dict(zip((RUN, HOST, PID, STARTED), parts, strict=True)) if len(parts) == 4 else {}


def alive(labels: Mapping[str, str]) -> bool:
    """Whether the launcher still runs. True when nobody here can know: another host's, no stamp."""
    host, pid = labels.get(HOST, ""), labels.get(PID, "")
    if host != socket.gethostname() or not pid.isdigit():
        return True
    now = started(int(pid))
    return bool(now) and labels.get(STARTED, now) == now


def started(pid: int) -> str:
    """Boot and start time of a process, different for every process ever; empty: there is none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
        # Fields after the last ')': state first, start time the twentieth.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else f"{boot}-{fields[19]}"
    except (OSError, IndexError):
        return ""


@contextmanager
def measuring(name: str) -> Iterator[str]:
    """Yield the name of a run that measures here already, empty when there is none."""
    path = cache_dir() / "measuring"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = path.open("a+", encoding="utf-8")
    except OSError:  # a home that cannot be written to: nobody can know
        yield ""
        return
    with opened as file:
        if not lock(file):
            file.seek(0)
            yield file.read().strip() or "another run"
            return
        file.truncate(0)
        file.write(name + "\n")
        file.flush()
        yield ""

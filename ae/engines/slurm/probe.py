"""What a compute node has: one short job that looks, kept for a day."""

from __future__ import annotations

import json
import math
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from ae.engines.base import Check, Job
from ae.engines.output import Kept
from ae.engines.slurm import queue
from ae.engines.slurm.follow import Follower
from ae.engines.slurm.script import RUNTIMES, Batch, Share, script
from ae.errors import EnvironmentFault
from ae.host import owner
from ae.host.files import write_atomic
from ae.host.machine import FIELDS, cache_dir, gpus_of
from ae.model import Flavour, ImageRef, Machine, Point, RuntimeNeeds
from ae.recipe.load import find_root
from ae.records.folder import results_dir

_FRESH_S = 24 * 3600
_TIMEOUT_S = 60.0
_PROGRAM = f"""
for one in apptainer podman; do
    command -v $one >/dev/null && echo "runtime $one $($one --version | head -n 1)"
done
srun --help 2>&1 | grep -q container-image && echo "runtime pyxis"
[ -d "$1" ] && echo "cache $1"
nvidia-smi -L 2>/dev/null | sed 's/^/listed /'
nvidia-smi --query-gpu={",".join(FIELDS)} --format=csv,noheader,nounits 2>/dev/null |
    sed 's/^/gpu /'
echo "cgroup $(stat -f -c %T /sys/fs/cgroup)"
echo "memlock $(ulimit -l)"
"""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was seen. Memory of the node in MB."""

    node: str
    cpus: int
    memory: int
    kind: str  # of GPUs, as in Slurm's gres
    count: int  # GPUs of the node
    lines: tuple[str, ...]  # what the job printed

    def of(self, word: str) -> list[str]:
        """What it printed under a word."""
        return [line[len(word) + 1 :] for line in self.lines if line.startswith(word + " ")]

    @property
    def runtimes(self) -> list[str]:
        """What containers can run with there, the best first; at last none."""
        there = {words.split()[0] for words in self.of("runtime")} | {"none"}
        return [one for one in RUNTIMES if one in there]

    def machine(self) -> Machine:
        """The node as a plan sees it: its GPUs are all like the one that was seen."""
        seen = gpus_of(row.split(", ") for row in self.of("gpu"))
        gpus = [replace(seen[0], index=n, uuid="") for n in range(self.count)] if seen else []
        memory_gib, each = self.memory / 1024, " on a node"
        return Machine(gpus=tuple(gpus), cpus=self.cpus, memory_gib=memory_gib, each=each)

    def share(self, gpus: int, memory: int | None, *, shared: bool) -> Share:
        """All of a node; shared: the part of it that `gpus` are of its GPUs. `memory` in bytes."""
        part = (gpus or 0.5) / (self.count or 1) if shared else 1
        own = math.ceil(memory / 2**20) if memory else int(self.memory * part * 0.9) * shared
        return Share(gpus=gpus, kind=self.kind if gpus else "", exclusive=not shared,
                     cpus=max(1, int(self.cpus * min(1, part))), memory=own)  # fmt: skip


def look(follower: Follower, *, gpus: bool, fresh: bool = False) -> Found:
    """What a node has, from a job on it or from the latest one's notes. Raises EnvironmentFault."""
    root = find_root()
    top = results_dir(root) / "slurm"
    note, chosen = top / "probe.json", queue.choices()
    with suppress(OSError, ValueError, TypeError, KeyError):
        kept = json.loads(note.read_text())
        if not fresh and kept["chosen"] == chosen and time.time() - kept["at"] < _FRESH_S:
            return Found(**kept["found"] | {"lines": tuple(kept["found"]["lines"])})
    image = ImageRef(name="probe", flavour=Flavour.CPU, content="", source=root / "images/probe")
    point = Point(
        id="probe", recipe="probe", experiment="probe", labels={}, variants=(),
        argv=("bash", "-c", _PROGRAM, "bash", str(cache_dir())), env={}, image=image,
        needs=RuntimeNeeds(), timeout_s=_TIMEOUT_S, expected_s=1, disk_bytes=0,
    )  # fmt: skip
    folder = top / f"ae-probe-{secrets.token_hex(4)}"
    batch = Batch(
        job=Job(point=point, out=folder / "out", labels={owner.RUN: "probe"}), folder=folder,
        share=Share(gpus=int(gpus), cpus=1, memory=500, exclusive=False), runtime="none",
        timeout_s=_TIMEOUT_S, grace_s=5, beat_s=follower.poll_s,
    )  # fmt: skip
    lines = Kept()
    try:
        for path in (folder, cache_dir()):  # what a node is to see must be there
            path.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "job.sh", script(batch))
        follower.hand_in(batch)
        end = follower.end_of(batch, lines) or {"why": "Slurm has lost the job"}
    except BaseException:
        follower.cancel([batch])
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if end.get("code") != 0:
        why = end.get("why") or end.get("refused") or f"exit code {end.get('code')}"
        raise EnvironmentFault(
            f"a short job in {top} did not work: {why}",
            fix="is that folder on a disk that the nodes share? AE_RESULTS names another",
        )
    about = queue.call("scontrol", "show", "node", "--oneliner", end["node"])
    gres = re.search(r"\bGres=\S*?\bgpu:(?:([\w.-]+):)?(\d+)", about)
    found = Found(
        node=end["node"], lines=tuple(lines),
        cpus=int((re.search(r"CPUTot=(\d+)", about) or ["", "1"])[1]),
        memory=int((re.search(r"RealMemory=(\d+)", about) or ["", "0"])[1]),
        kind=(gres[1] or "") if gres else "", count=int(gres[2]) if gres else 0,
    )  # fmt: skip
    write_atomic(note, json.dumps({"at": time.time(), "chosen": chosen, "found": asdict(found)}))
    return found


def findings(found: Found, facts: Mapping[str, str], wanted: str | None) -> Iterator[Check]:
    """What to say of it, each with its fix; `wanted` is the runtime that the person named."""
    listed, chosen = found.of("listed"), queue.choices()
    said = f"a job ran on {found.node}: {found.cpus} CPUs, {found.memory} MB, {found.count} GPUs"
    where = ", ".join(f"{key}={value}" for key, value in chosen.items()) or "Slurm's defaults"
    yield Check("node", "ok", f"{said} ({where}); results are on a shared disk")
    runtime = wanted or found.runtimes[0]
    versions = ", ".join(found.of("runtime")) or "no pyxis, apptainer or podman"
    if runtime not in found.runtimes:
        fix = f"AE_SLURM_RUNTIME names one of: {', '.join(found.runtimes)}"
        yield Check("runtime", "fail", f"{found.node} has no {runtime} ({versions})", fix)
    elif runtime == "none":
        fix = "have one of them installed; without, points run in an environment of yours"
        yield Check("runtime", "warn", f"{versions}: points run as plain processes", fix)
    else:
        yield Check("runtime", "ok", f"points run with {runtime} ({versions})")
    if runtime == "none" and not found.of("cache"):
        fix = "XDG_CACHE_HOME names a folder on a disk that the nodes share"
        yield Check("cache", "fail", f"{found.node} does not see {cache_dir()}", fix)
    if any("MIG" in row for row in listed):
        fix = "name nodes with whole GPUs: SBATCH_PARTITION, SBATCH_CONSTRAINT"
        yield Check("gpus", "fail", "Slurm gives MIG slices, on which no claim is judged", fix)
    elif len(listed) > 1:
        fix = "ConstrainDevices=yes in cgroup.conf"
        said = f"a job that asked for one GPU sees {len(listed)}: others can use yours"
        yield Check("gpus", "warn", said, fix)
    elif listed:
        yield Check("gpus", "ok", "a job sees the GPUs that it was given, and no others")
    if facts.get("limits_memory", "no") == "no":
        fix = "ConstrainRAMSpace=yes in cgroup.conf"
        yield Check("memory", "warn", "Slurm enforces no memory limit", fix)

"""A point as a batch script for Slurm. Pure.

The script runs the point in the folder of its job and writes `end.json` there as the last thing it
does, whole and on the disk. That file is the end of the point; no state of Slurm is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote, split
from typing import Literal, get_args

from ae.engines.base import OUT_DIR, Job
from ae.engines.local import LocalEngine
from ae.engines.secrets import mounts_of
from ae.engines.spec import HOME, GpuGrant, spec_of, to_argv

Runtime = Literal["pyxis", "apptainer", "podman", "none"]  # the first that a node has is taken
RUNTIMES = get_args(Runtime)
_DEVICES = "@devices@"
_TEXT = Path(__file__).with_name("job.sh").read_text(encoding="utf-8")
_PODMAN = """\
( flock 9; podman image exists @id@ || podman load --quiet --input @file@ >&2 ) \\
    9>"/tmp/.ae-podman-$UID" || refuse "podman cannot load the image"
trap 'podman rm --force --time 0 @name@ >/dev/null 2>&1' EXIT
who=(--user "$(id -u):$(id -g)")
[ "$UID" = 0 ] || who+=(--userns keep-id)
most=$(cat /proc/sys/kernel/pid_max) own=$(ulimit -Hu) files=$(ulimit -Hn)
[ "$own" = unlimited ] || [ "$own" -gt "$most" ] || most=$own
limits=(--ulimit "nofile=$files:$files" --ulimit "nproc=$most:$most")
# In the job's own control group it has the job's limits, and ends with the job; runc cannot.
[ "$(podman info --format '{{.Host.OCIRuntime.Name}}')" = crun ] && limits+=(--cgroups disabled)"""
_WARNING_S = 60  # before its time limit a job gets TERM; Slurm may send it 60 s early


class Raw(str):
    """A word that the shell is to expand."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a job asks of a node: GPUs of a kind, processors, memory in MB."""

    gpus: int
    kind: str = ""  # of Slurm's gres, such as h200; empty: any
    cpus: int
    memory: int  # 0: all of the node's
    exclusive: bool = True  # nobody else on the node


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A job: a point, the folder that the job works in, and how."""

    job: Job
    folder: Path  # its name is the job's
    share: Share
    runtime: str
    image: str = ""  # the file of the image
    image_id: str = ""  # as the engine that made the file names it
    timeout_s: float
    grace_s: float
    beat_s: float

    @property
    def name(self) -> str:
        """The name that no other job has."""
        return self.folder.name

    @property
    def minutes(self) -> int:
        """The time limit, above the point's own: that is kept inside, to the second."""
        return math.ceil((self.timeout_s + self.grace_s + 2 * _WARNING_S) / 60) + 1


def options(batch: Batch) -> tuple[str, ...]:
    """What the job asks of Slurm, for sbatch and srun."""
    share = batch.share
    gres = f"gpu:{share.kind}:{share.gpus}".replace("::", ":") if share.gpus else "none"
    return (
        f"--job-name={batch.name}",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={share.cpus}",
        f"--mem={share.memory}",
        f"--time={batch.minutes}",
        f"--gres={gres}",
        *(("--exclusive",) if share.exclusive else ()),
        "--export=NIL",
    )


def script(batch: Batch) -> str:
    """The batch script. The same point in the same folder always gives the same text."""
    folder = str(batch.folder)
    asked = (*options(batch), f"--signal=B:TERM@{_WARNING_S}", "--no-requeue", "--open-mode=append")
    places = (f"--chdir={folder}", f"--output={folder.replace('%', '%%')}/slurm.log")
    before, words = line(batch)
    values = {
        "key": batch.job.point.key or "-",
        "runtime": batch.runtime,
        "folder": quote(folder),
        "count": str(batch.share.gpus),
        "beat": f"{batch.beat_s:g}",
        "deadline": f"{batch.timeout_s:g}",
        "grace": f"{batch.grace_s:g}",
        "limit": str(batch.minutes * 60 - 2 * _WARNING_S - 5),
        "exact": {"none": "", "apptainer": "some"}.get(batch.runtime, "all"),
        "before": before,
        "box": shell(words),
        "argv": shell(batch.job.point.argv if batch.runtime != "none" else ()),
    }
    text = re.sub(r"@(\w+)@", lambda match: values[match[1]], _TEXT)
    return "#!/bin/bash\n" + "".join(f"#SBATCH {quote(w)}\n" for w in (*asked, *places)) + text


def identity(text: str) -> list[str]:
    """What two scripts of the same point have in common, whatever they ask of Slurm."""
    return re.findall(r"^# The point of key .*$", text, re.M)[:1]


def asked_in(text: str) -> list[str]:
    """What a script asks of Slurm."""
    return [word for row in re.findall(r"^#SBATCH (.*)$", text, re.M) for word in split(row)]


def line(batch: Batch) -> tuple[str, tuple[str, ...]]:
    """What comes before the first container on a node, and the words before a point's command.

    Runtime none: with the command.
    """
    out = batch.folder / "out"
    job = replace(batch.job, out=out)
    if batch.runtime == "none":
        hides = "CUDA_VISIBLE_DEVICES="
        own = [word for word in LocalEngine().equivalent(job)[1:] if not word.startswith(hides)]
        clean = 'env -i PATH="$PATH" LANG=C.UTF-8 HOME="$scratch" TMPDIR="$scratch"'
        return "", (Raw(f'{clean} {hides}"$CUDA_VISIBLE_DEVICES"'), *own)
    file = batch.image
    if batch.runtime == "podman":
        values = {"id": batch.image_id, "file": quote(file), "name": batch.name}
        before = re.sub(r"@(\w+)@", lambda match: values[match[1]], _PODMAN)
        return before, _podman(job, batch)
    binds = [
        f"{mount.source}:{mount.target}{':ro' * mount.read_only}"
        for mount in (*job.point.needs.mounts, *mounts_of(job))
    ]
    binds.append(f"{out}:{OUT_DIR}")
    env = {"AE_OUT": OUT_DIR, "AE_POINT": job.point.id, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    env |= {"HOME": HOME, **job.point.env}
    if batch.runtime == "apptainer":
        words = ["apptainer", "--quiet", "exec", "--containall", "--cleanenv", "--no-home"]
        words += ["--pwd", "/"]
        words += ["--nv"] * bool(batch.share.gpus)
        words += ["--net", "--network", "none"] * (job.point.needs.network == "none")
        words += [word for bind in binds for word in ("--bind", bind)]
        words += ["--bind", Raw(f'"$scratch:{HOME}"'), "--bind", Raw('"$scratch:/tmp"'), file]
    else:
        words = ["srun", "--ntasks=1", Raw('--cpus-per-task="$SLURM_CPUS_ON_NODE"'), "--export=NIL"]
        words += [f"--gres=gpu:{batch.share.gpus}" if batch.share.gpus else "--gres=none"]
        words += [f"--container-image={file}", "--no-container-mount-home", "--container-workdir=/"]
        words += [Raw(f'--container-mounts={quote(",".join(binds))},"$scratch:{HOME}"')]
    visible = [Raw('CUDA_VISIBLE_DEVICES="$CUDA_VISIBLE_DEVICES"')] * (batch.runtime != "pyxis")
    return "", (*words, "env", *visible, *(f"{key}={value}" for key, value in env.items()))


def interactive(batch: Batch, *, terminal: bool) -> tuple[str, ...]:
    """The command of a shell where the point would run."""
    before, words = line(batch)
    argv = batch.job.point.argv if batch.runtime != "none" else ()
    text = f"""refuse() {{ echo "$1" >&2; exit 3; }}
scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT; cd {quote(str(batch.folder / "out"))}
{before}
{shell((*words, *argv))}"""
    asked = [word for word in options(batch) if not word.startswith("--time=")]  # the partition's
    return ("srun", *asked, *(("--pty",) if terminal else ()), "bash", "-c", text)


def shell(words: Iterable[str]) -> str:
    """Words as a shell reads them."""
    return " ".join(word if isinstance(word, Raw) else quote(word) for word in words)


def _podman(job: Job, batch: Batch) -> tuple[str, ...]:
    """The container of the engine podman, with the job's GPUs."""
    needs = replace(job.point.needs, memory_bytes=None)  # Slurm limits it
    spec = spec_of(
        replace(job, point=replace(job.point, needs=needs, argv=())),
        name=batch.name,
        labels={},
        user="",
        gpus=GpuGrant(route="cdi", devices=(_DEVICES,)) if batch.share.gpus else None,
        image=batch.image_id,
    )
    head = ["podman", "run", "--rm", "--init", "--interactive", "--pull", "never"]
    head += ["--log-driver", "none", "--http-proxy=false"]
    words = list(to_argv(replace(spec, pids=None), head))
    user = words.index("--user")
    words[user : user + 2] = [Raw('"${who[@]}" "${limits[@]}"')]
    if _DEVICES in words:
        device = words.index(_DEVICES)
        words[device - 1 : device + 1] = [Raw('"${uuids[@]/#/--device=nvidia.com/gpu=}"')]
    return tuple(words)

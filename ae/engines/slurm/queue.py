"""Slurm's queue: what is handed in, what is said of it, what is taken back.

Jobs go by their folder; a controller that was killed gives an id away twice.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from ae.engines.slurm.script import Runtime
from ae.errors import EnvironmentFault, UsageError
from ae.host import processes, signals

TIMEOUT_S = 60.0
_KEPT = ("PATH", "HOME", "USER", "LANG", "SLURM_CONF")
_CHOICE = re.compile("SBATCH_(PARTITION|ACCOUNT|QOS|CONSTRAINT|RESERVATION)")
_AWAY = re.compile(
    r"unable to contact|connection refused|timed out|standby|zero bytes|not respond|communication"
    r"|connect failure|did not answer|temporarily|not connected|reset by peer|broken pipe",
    re.I,
)
_OVER = {
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL",
    "PREEMPTED", "DEADLINE", "REVOKED",
}  # fmt: skip
# Why a job will never start, and what to do; other reasons pass.
NEVER = {
    "PartitionTimeLimit": "the partition allows less time: SBATCH_PARTITION names another",
    "PartitionNodeLimit": "the partition has no such node: SBATCH_PARTITION names another",
    "PartitionConfig": "the partition's limits (time, memory) forbid it: SBATCH_PARTITION names "
    "another",
    "AssocMaxWallDurationPerJobLimit": "your account allows less time: ask its owner",
    "QOSMaxWallDurationPerJobLimit": "the QOS allows less time: SBATCH_QOS names another",
    "BadConstraints": "no node has all of SBATCH_CONSTRAINT",
    "InvalidAccount": "name an account of yours: SBATCH_ACCOUNT",
    "InvalidQOS": "name a QOS of yours: SBATCH_QOS",
    "JobHeldAdmin": "an administrator holds it: ask there",
    "JobHeldUser": "release it: scontrol release",
    "AccountNotAllowed": "the partition is closed to your account: SBATCH_ACCOUNT names another",
    "QOSNotAllowed": "the partition is closed to your QOS: SBATCH_QOS names another",
}
_REFUSED = (
    ("partition", "see `sinfo`; SBATCH_PARTITION names another"),
    ("account", "SBATCH_ACCOUNT names one of yours: sacctmgr show associations user=$USER"),
    ("qos", "SBATCH_QOS names one of yours"),
    ("limit", "ask for less: fewer GPUs, or another SBATCH_PARTITION or SBATCH_QOS"),
    ("configuration source", "no Slurm is set up here: type it on a login node, or set SLURM_CONF"),
    ("node configuration", "no node has so much: see `sinfo -o '%N %G %c %m'`; name another "
     "partition with SBATCH_PARTITION"),
)  # fmt: skip


class Wanted(BaseModel):
    """What a person asks of this engine; a variable that is empty counts as not set."""

    runtime: Runtime | None = Field(None, alias="AE_SLURM_RUNTIME")  # None: a node's first
    shared: bool = Field(False, alias="AE_SLURM_SHARED")
    poll_s: float = Field(30.0, alias="AE_SLURM_POLL_S", gt=0, allow_inf_nan=False)


class Away(EnvironmentFault):
    """The controller does not answer; its jobs go on."""


class NoNode(EnvironmentFault):
    """No node that is up has so much; it may be back soon."""


@dataclass(frozen=True)
class Seen:
    """What squeue says of a job."""

    ident: str
    state: str
    reason: str
    comment: str

    @property
    def over(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.state in _OVER

    @property
    def lives(self) -> bool:
        """Whether it waits or runs."""
        return not self.over and self.state != "COMPLETING"


class Queue:
    """One squeue for all jobs, asked at most every `poll_s`, later and later while it fails."""

    def __init__(self, poll_s: float) -> None:
        self._poll_s = self._pause = poll_s
        self._due = 0.0
        self._seen: dict[Path, Seen] = {}
        self._last: frozenset[Path] = frozenset()  # the jobs of the latest answer

    def look(self) -> bool:
        """Ask squeue when it is time; whether there is a new answer. Never raises for an outage."""
        if time.monotonic() < self._due:
            return False
        try:
            found = jobs()
        except Away:
            self._pause = min(2 * self._pause, 10 * self._poll_s)
            self._due = time.monotonic() + self._pause
            return False
        self._pause = self._poll_s
        self._due = time.monotonic() + self._pause
        self._seen |= found
        self._last = frozenset(found)
        return True

    def find(self, folder: Path) -> tuple[Seen | None, bool]:
        """What was said of a job last, be it long ago; whether the latest answer had it."""
        return self._seen.get(folder), folder in self._last


def facts() -> dict[str, str]:
    """What Slurm says of itself. Raises EnvironmentFault."""
    chosen = choices()
    where = [f"--partition={chosen['SBATCH_PARTITION']}"] if "SBATCH_PARTITION" in chosen else []
    gpus = "gpu" in call("sinfo", "--noheader", "--format=%G", *where)
    about = dict(re.findall(r"^(\w+)\s*=\s*(.*)$", call("scontrol", "show", "config"), re.M))
    return {
        "endpoint": f"cluster {about.get('ClusterName', '?')}",
        "version": about.get("SLURM_VERSION", "?"),
        "gpu_route": "slurm" if gpus else "",
        "limits_memory": about.get("ConstrainRAMSpace", "no"),
        **chosen,
    }


def jobs() -> dict[Path, Seen]:
    """The caller's jobs by folder, those that are over as long as Slurm remembers. Raises Away."""
    argv = ("squeue", "--noheader", "--states=all", f"--user={os.getuid()}")
    try:
        text = call(*argv, "--format=%i|%T|%r|%k|%Z")
    except EnvironmentFault as fault:  # whatever it says: without an answer nothing is known
        raise Away(fault.message, fix=fault.fix) from fault
    found = {}
    for row in text.splitlines():
        ident, state, reason, rest = row.split("|", 3)
        comment, _, folder = rest.rpartition("|")
        found[Path(folder)] = Seen(ident, state, reason, comment)
    return found


def submit(path: Path, comment: str) -> None:
    """Hand a script in. Raises Away, which may mean that it was handed in; EnvironmentFault."""
    with signals.shielded():
        call("sbatch", "--parsable", f"--comment={comment}", str(path))


def admits(path: Path) -> None:
    """Raise EnvironmentFault where Slurm says at once that it takes no such job."""
    call("sbatch", "--test-only", str(path))


def cancel(folders: Container[Path]) -> None:
    """Cancel the jobs of these folders; what is over already is fine."""
    if idents := [one.ident for folder, one in jobs().items() if folder in folders and one.lives]:
        call("scancel", "--quiet", *idents)


def choices() -> dict[str, str]:
    """What the person chose of Slurm, by sbatch's own variables."""
    return {key: value for key, value in os.environ.items() if value and _CHOICE.fullmatch(key)}


def wanted() -> Wanted:
    """What the person chose of this engine. Raises UsageError, which says what may be there."""
    try:
        return Wanted.model_validate({key: word for key, word in os.environ.items() if word})
    except ValidationError as error:
        first = error.errors()[0]
        said = f"{first['loc'][0]}={first['input']}: {first['msg'].lower()}"
        raise UsageError(said, fix="unset it for the default; see docs/slurm.md") from error


def environment() -> Mapping[str, str]:
    """What Slurm's commands see: nothing by which the caller's shell would change a job."""
    return {key: os.environ[key] for key in _KEPT if key in os.environ} | choices()


def call(*argv: str) -> str:
    """Run one of Slurm's commands. Raises Away when the controller does not answer, else
    EnvironmentFault with what it said and a fix."""
    try:
        done = processes.run(argv, timeout_s=TIMEOUT_S, env=environment())
    except processes.ProcessFault as fault:
        if _AWAY.search(fault.message):
            raise Away(fault.message, fix="see `scontrol ping`") from fault
        raise
    if done.returncode == 0:
        return done.stdout
    said = " ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
    said = said.replace(f"{argv[0]}: ", "").replace("error: ", "")[:300] or "it gave no reason"
    if _AWAY.search(said):
        raise Away(f"Slurm's controller does not answer: {said}", fix="see `scontrol ping`")
    fix = next((fix for word, fix in _REFUSED if word in said.lower()), "see `sinfo`, `squeue`")
    kind = NoNode if "configuration is not available" in said else EnvironmentFault
    raise kind(f"{argv[0]} refused: {said}", fix=fix)

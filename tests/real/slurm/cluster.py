"""The private cluster of .ci/slurm.sh: its daemons, its jobs, and points that run on it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ae.engines.base import Job
from ae.engines.slurm import queue
from ae.engines.slurm.engine import SlurmEngine
from ae.model import Outcome
from tests.engines.acts import Lines, make_job

ROOT = Path(__file__).resolve().parents[3]


def folder() -> Path:
    """Where the cluster lies."""
    return Path(os.environ["AE_TEST_SLURM"])


def start() -> None:
    """Start what does not run, and wait for the nodes."""
    env = {**os.environ, "AE_CI_SLURM": str(folder())}
    subprocess.run([ROOT / ".ci/slurm.sh", "start"], env=env, check=True, capture_output=True)


def kill(daemon: str, number: signal.Signals = signal.SIGKILL) -> None:
    """End one of the cluster's daemons by its pid file, and wait until it is gone."""
    pid = int((folder() / f"run/{daemon}.pid").read_text())
    os.kill(pid, number)
    until(lambda: not Path(f"/proc/{pid}/stat").exists())


def saved() -> None:
    """Have the controller write down what it knows now: killed before it has, it takes what was
    cancelled for running."""
    kill("slurmctld", signal.SIGTERM)
    start()


def steps(name: str) -> list[int]:
    """The slurmstepds of a job."""
    ident = job_id(name)
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"slurmstepd: [%d." % ident):
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


def job_id(name: str) -> int:
    """The number of the latest job of a name."""
    said = queue.call("squeue", "--noheader", "--states=all", "--format=%i", f"--name={name}")
    return max(int(word) for word in said.split())


def state(name: str) -> str:
    """Slurm's word for a job; empty: it knows none."""
    said = queue.call("squeue", "--noheader", "--states=all", "--format=%T", f"--name={name}")
    return (said.split() or [""])[-1]


def cancel(name: str) -> None:
    """As somebody at a terminal does."""
    subprocess.run(["scancel", "--name", name], check=True)


def living() -> list[str]:
    """Jobs that wait or run."""
    return [folder.name for folder, one in queue.jobs().items() if one.lives]


def until(what: Callable[[], object], seconds: float = 30) -> None:
    """Wait for something to be true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.1)


def job_of(folder: Path, *acts: str, **how: object) -> Job:
    """A job as `make_job` makes it, of a run of its own: Slurm remembers those before."""
    run = f"slurm-{secrets.token_hex(3)}"
    return make_job(folder / "out", *acts, run=run, **how)  # type: ignore[arg-type]


def tries(job: Job) -> list[Path]:
    """The folders of a point's jobs, by their number."""
    return sorted((job.out.parent / ".slurm").glob(f"ae-*-{job.point.id}-*"))


class Running:
    """A point that runs, followed by a thread of this process."""

    def __init__(self, job: Job, engine: SlurmEngine | None = None, timeout_s: float = 60) -> None:
        self.job, self.lines = job, Lines()
        self._engine = engine or SlurmEngine()
        self._timeout_s = timeout_s
        self._outcome: list[Outcome | BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome.append(self._engine.run(self.job, self.lines, self._timeout_s))
        except BaseException as error:  # noqa: BLE001 it is handed on
            self._outcome.append(error)

    @property
    def name(self) -> str:
        """The name of its latest job."""
        return tries(self.job)[-1].name

    def says(self, word: str) -> None:
        """Wait until it has printed a word."""
        until(lambda: word in self.lines.of("stdout"))

    def end(self, seconds: float = 60) -> Outcome:
        """How it ended."""
        self._thread.join(seconds)
        assert self._outcome, f"it does not end; {self.lines.got}"
        if isinstance(self._outcome[0], BaseException):
            raise self._outcome[0]
        return self._outcome[0]


def node_of(name: str) -> str:
    """The node that a job runs on."""
    return queue.call("squeue", "--noheader", "--format=%N", f"--name={name}").strip()


def children_of(name: str) -> list[int]:
    """The processes that a job's slurmstepds have started."""
    return [
        int(word)
        for pid in steps(name)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for word in (task / "children").read_text().split()
    ]


def signal_tree(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a process and all that it has started a signal."""
    try:
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for word in below:
        signal_tree(int(word), number)
    with suppress(ProcessLookupError):
        os.kill(pid, number)


@contextmanager
def forgetting() -> Iterator[Callable[[], None]]:
    """Yields what makes the controller die, and come back as it was at the start of the block."""
    state, before = folder() / "state", folder() / "state.before"
    shutil.rmtree(before, ignore_errors=True)  # of tests that were killed
    kill("slurmctld", signal.SIGTERM)  # it saves its state
    shutil.copytree(state, before)
    start()

    def forget() -> None:
        kill("slurmctld")
        shutil.rmtree(state)
        shutil.copytree(before, state)
        start()

    try:
        yield forget
    finally:
        shutil.rmtree(before)

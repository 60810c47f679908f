"""What goes wrong on a cluster: a finished point is not lost, a lost one is not called done, and no
job is left. Exit codes, signals, deadlines, memory: tests/engines/test_contract.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ae.engines.slurm import queue
from ae.engines.slurm.engine import SlurmEngine
from ae.errors import EnvironmentFault
from ae.model import GpuRequest, RuntimeNeeds, Status
from tests.engines.acts import Lines
from tests.real.slurm import cluster
from tests.real.slurm.cluster import Running, job_of, tries, until

pytestmark = pytest.mark.slurm


@pytest.fixture(autouse=True)
def _cluster(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AE_SLURM_SHARED", "1")  # so that jobs need not wait for each other
    yield
    cluster.start()
    until(lambda: not cluster.living(), 10)


def hasty(grace_s: float = 1.0) -> SlurmEngine:
    """An engine that waits no longer than that for a job to clean up."""
    made = SlurmEngine()
    made.grace_s = grace_s
    return made


# A job ends in an unusual way.


def test_somebody_cancels_it(tmp_path: Path) -> None:
    one = Running(job_of(tmp_path, "listen", "print:up", "sleep:60"))
    one.says("up")
    cluster.cancel(one.name)
    outcome = one.end()
    assert outcome.status is Status.FAILED
    assert "stopped by Slurm (CANCELLED)" in outcome.reason
    assert (tmp_path / "out/cleaned").exists()  # it had the time


def test_a_clean_exit_after_a_stop_is_not_done(tmp_path: Path) -> None:
    script = 'trap "exit 0" TERM; echo up; while :; do sleep 0.1; done'
    one = Running(job_of(tmp_path, argv=("bash", "-c", script)))
    one.says("up")
    cluster.cancel(one.name)
    assert (one.end().status, one.end().exit_code) == (Status.FAILED, 0)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[None]:
    """A cluster on which a job must wait."""
    words = ("--nodes=3", "--exclusive", "--mem=0", "--wrap=sleep 60", "--job-name=all")
    subprocess.run(["sbatch", *words], check=True, capture_output=True, cwd=tmp_path)
    until(lambda: cluster.state("all") == "RUNNING")
    yield
    cluster.cancel("all")


@pytest.mark.usefixtures("full")
def test_somebody_cancels_it_while_it_waits(tmp_path: Path) -> None:
    one = Running(job_of(tmp_path, "print:x"))
    until(lambda: tries(one.job) and cluster.state(one.name) == "PENDING")
    cluster.cancel(one.name)
    outcome = one.end()
    assert outcome.status is Status.FAILED
    assert "Slurm says CANCELLED and the job left no end file" in outcome.reason


@pytest.mark.usefixtures("full")
def test_slurm_ends_it_in_place_of_another_of_its_number(tmp_path: Path) -> None:
    """As a controller does that had lost that one, when its end is reported."""
    one = Running(job_of(tmp_path, "write:result:1"))
    until(lambda: tries(one.job) and cluster.state(one.name) == "PENDING")
    other = tries(one.job)[0].with_name("ae-other-1")
    other.mkdir()
    (other / "end.json").write_text(json.dumps({"job": cluster.job_id(one.name)}))
    cluster.cancel(one.name)
    cluster.cancel("all")
    assert one.end().status is Status.DONE
    assert len(tries(one.job)) == 2


def test_slurm_ends_it_at_a_time_limit_of_its_own(tmp_path: Path) -> None:
    one = Running(job_of(tmp_path, "print:up", "sleep:60"))
    one.says("up")
    queue.call("scontrol", "update", f"JobId={cluster.job_id(one.name)}", "TimeLimit=1")
    outcome = one.end()  # it is told 60 s before
    assert outcome.status is Status.FAILED
    assert "stopped by Slurm" in outcome.reason


def test_it_is_started_again(tmp_path: Path) -> None:
    """What the first attempt wrote is gone: it is a measurement of its own."""
    script = '[ -e ../seen ] || { touch ../seen "$AE_OUT/first"; echo up; sleep 60; }; echo again'
    one = Running(job_of(tmp_path, argv=("bash", "-c", script)))
    one.says("up")
    ident = cluster.job_id(one.name)
    with pytest.raises(EnvironmentFault):
        queue.call("scontrol", "requeue", str(ident))  # as it was handed in, nobody can
    queue.call("scontrol", "update", f"JobId={ident}", "Requeue=1")
    queue.call("scontrol", "requeue", str(ident))
    until(lambda: cluster.state(one.name) == "PENDING")
    queue.call("scontrol", "update", f"JobId={ident}", "StartTime=now+2", "Requeue=0")
    outcome = one.end()
    assert outcome.status is Status.DONE
    assert outcome.honoured["restarts"] == 1
    assert not (tmp_path / "out/first").exists()


def test_another_job_needs_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = hasty(0.3)
    assert engine.machine.gpus
    monkeypatch.setenv("SBATCH_PARTITION", "scavenge")
    one = Running(job_of(tmp_path, "print:up", "sleep:60"), engine)
    one.says("up")
    monkeypatch.delenv("SBATCH_PARTITION")
    strong = ("srun", "--nodes=3", "--exclusive", "--mem=0", "--time=1", "true")
    subprocess.run(strong, check=True, capture_output=True, timeout=60)
    outcome = one.end()
    assert outcome.status is Status.FAILED
    assert "Slurm" in outcome.reason


# Something dies.


def test_a_node_fails(tmp_path: Path) -> None:
    one = Running(job_of(tmp_path, "print:up", "sleep:600"))
    one.says("up")
    node = cluster.node_of(one.name)
    script = cluster.children_of(one.name)
    pids = cluster.steps(one.name)
    cluster.kill(f"slurmd.{node}")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    try:
        outcome = one.end(90)
    finally:
        for pid in script:  # Slurm has lost them
            cluster.signal_tree(pid)
    assert outcome.status is Status.FAILED
    assert "NODE_FAIL" in outcome.reason


def test_a_job_without_its_slurmstepd_ends_by_its_file(tmp_path: Path) -> None:
    script = "echo up; until [ -e go ]; do sleep 0.1; done; printf 1 >result"
    one = Running(job_of(tmp_path, argv=("bash", "-c", script)))
    one.says("up")
    for pid in cluster.steps(one.name):
        os.kill(pid, signal.SIGKILL)
    (tries(one.job)[-1] / "out/go").touch()  # at once: when Slurm notices is its own affair
    assert one.end().status is Status.DONE
    assert (tmp_path / "out/result").read_text() == "1"
    until(lambda: cluster.state(one.name) != "RUNNING")  # which it would be for minutes


def test_a_job_without_a_sign_of_life_is_cancelled(tmp_path: Path) -> None:
    one = Running(job_of(tmp_path, "print:up", "sleep:600"))
    one.says("up")
    for pid in cluster.children_of(one.name):  # as on a node that hangs: Slurm sees it run
        cluster.signal_tree(pid, signal.SIGSTOP)
    outcome = one.end()
    assert outcome.status is Status.FAILED
    assert "no sign of life" in outcome.reason


def test_the_controller_dies_with_a_job_just_handed_in(tmp_path: Path) -> None:
    cluster.saved()
    one = Running(job_of(tmp_path, "sleep:1", "write:result:1"))
    until(lambda: tries(one.job) and (tries(one.job)[0] / "sent").exists())
    cluster.kill("slurmctld")
    cluster.start()
    job = job_of(tmp_path, "write:result:2")  # of the same run; it may get the same number
    job = replace(job, point=replace(job.point, id="other"), out=tmp_path / "other")
    job.out.mkdir()
    other = Running(job)
    assert one.end().status is Status.DONE
    assert other.end().status is Status.DONE
    assert (tmp_path / "out/result").read_text() == "1"
    assert (tmp_path / "other/result").read_text() == "2"


def test_a_job_that_slurm_has_forgotten_is_handed_in_once_more(tmp_path: Path) -> None:
    script = 'echo up; [ "${PWD%-2/out}" != "$PWD" ] || sleep 60'  # the second one ends
    job = job_of(tmp_path, argv=("bash", "-c", script))
    with cluster.forgetting() as forget:
        one = Running(job)
        one.says("up")
        forget()
        assert one.end().status is Status.DONE
    first, second = tries(job)
    assert (first / "closed").read_text() == "lost\n"
    assert not (second / "closed").exists()  # until the launcher has kept it


def test_the_controller_is_away(tmp_path: Path) -> None:
    """A job's end counts without it; what is handed in meanwhile waits for it, and goes in once."""
    one = Running(job_of(tmp_path / "one", "print:up", "sleep:2", "write:result:1"))
    one.says("up")
    engine = hasty()
    assert engine.machine
    cluster.kill("slurmctld", signal.SIGTERM)
    two = Running(job_of(tmp_path / "two", "write:result:2"), engine)
    assert one.end().status is Status.DONE
    cluster.start()
    assert two.end().status is Status.DONE
    assert len(tries(two.job)) == 1


# A launcher comes later.


def test_a_job_is_taken_up_long_after_its_end(tmp_path: Path) -> None:
    """Slurm does not know it any more; it is not handed in again."""
    job = job_of(tmp_path, "print:said", "write:result:1")
    hasty().ahead([job])
    (folder,) = tries(job)
    until((folder / "end.json").exists)
    until(lambda: cluster.state(folder.name) == "", 90)  # MinJobAge
    one = Running(job)
    outcome = one.end()
    assert outcome.status is Status.DONE
    assert one.lines.of("stdout") == ["said"]
    assert (tmp_path / "out/result").read_text() == "1"
    assert tries(job) == [folder]


def test_a_job_of_other_sources_is_not_taken_up(tmp_path: Path) -> None:
    job = job_of(tmp_path, "print:up", "sleep:60")
    hasty().ahead([job])
    (old,) = tries(job)
    until(lambda: cluster.state(old.name) == "RUNNING")
    point = replace(job.point, key="other", argv=("echo", "new"))
    one = Running(replace(job, point=point))
    assert one.end().status is Status.DONE
    assert one.lines.of("stdout") == ["new"]
    assert not (old / "end.json").exists() or "143" in (old / "end.json").read_text()


# Slurm says no.


def test_a_partition_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = hasty()
    assert engine.machine
    monkeypatch.setenv("SBATCH_PARTITION", "nope")
    with pytest.raises(EnvironmentFault, match="nvalid partition") as caught:
        engine.run(job_of(tmp_path, "print:x"), Lines(), 60)
    assert "SBATCH_PARTITION" in caught.value.fix


def test_a_partition_with_too_little_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm takes the job, and would never start it."""
    engine = hasty()
    assert engine.machine
    monkeypatch.setenv("SBATCH_PARTITION", "short")
    with pytest.raises(EnvironmentFault, match="wait for ever: Partition") as caught:
        engine.run(job_of(tmp_path, "print:x"), Lines(), 60)
    assert caught.value.fix


def test_more_gpus_than_a_node_has(tmp_path: Path) -> None:
    needs = RuntimeNeeds(gpus=GpuRequest(count=5))
    with pytest.raises(EnvironmentFault, match="configuration is not available") as caught:
        hasty().run(job_of(tmp_path, "print:x", needs=needs), Lines(), 60)
    assert "sinfo" in caught.value.fix


# What a job sees, and much of it.


def test_nothing_of_the_callers_shell_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AE_TEST_SECRET", "LD_PRELOAD_OF_MINE", "SBATCH_GPUS", "SBATCH_EXPORT"):
        monkeypatch.setenv(name, "7")
    one = Running(job_of(tmp_path, argv=("env",)))
    assert one.end().status is Status.DONE
    names = {line.partition("=")[0] for line in one.lines.of("stdout")}
    assert names - {"PYTHONPATH"} == {
        "AE_OUT", "AE_POINT", "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "HOME", "LANG", "PATH",
        "TMPDIR",
    }  # fmt: skip


@pytest.mark.parametrize("shared", ["", "1"])
def test_a_job_has_the_gpus_that_it_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: str
) -> None:
    """Alone on its node it could open both; the point is told of one."""
    monkeypatch.setenv("AE_SLURM_SHARED", shared)
    needs = RuntimeNeeds(gpus=GpuRequest(count=1))
    one = Running(job_of(tmp_path, "env:CUDA_VISIBLE_DEVICES", needs=needs))
    outcome = one.end()
    assert one.lines.of("stdout") == ["0"]
    assert list(outcome.honoured["gpus"].values()) == ["NVIDIA H200"]  # type: ignore[attr-defined]
    assert outcome.honoured["shared_node"] is bool(shared)


def test_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], check=True)
    try:
        command = "head -c 2000000 /dev/zero >$AE_OUT/filler"
        outcome = Running(job_of(disk, argv=("sh", "-c", command))).end()
    finally:
        until(lambda: not cluster.living())
        subprocess.run(["umount", "--lazy", disk], check=True)
    assert (outcome.status, outcome.exit_code) == (Status.FAILED, 1)  # and its end was written


def test_a_long_log(tmp_path: Path) -> None:
    class Counting:
        lines = 0

        def line(self, stream: str, text: str) -> None:
            self.lines += 1
            assert len(text) == 99

    sink = Counting()
    script = "yes $(printf %099d 0) | head -n 2000000"  # 200 MB
    job = job_of(tmp_path, argv=("bash", "-c", script))
    assert hasty().run(job, sink, 60).status is Status.DONE
    assert sink.lines == 2_000_000


def test_ten_runs_at_once(tmp_path: Path) -> None:
    jobs = [job_of(tmp_path / str(n), f"write:result:{n}") for n in range(10)]
    running = [Running(job) for job in jobs]
    assert {one.end(120).status for one in running} == {Status.DONE}
    assert [(job.out / "result").read_text() for job in jobs] == [str(n) for n in range(10)]

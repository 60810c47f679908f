"""A point as a batch script: what Slurm is asked for, in every runtime. Nothing runs here."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ae.engines.slurm.probe import Found, findings
from ae.engines.slurm.script import RUNTIMES, Batch, Share, asked_in, identity, line, script, shell
from ae.model import GpuRequest, Mount, RuntimeNeeds
from tests.engines.acts import make_job

GOLDEN = Path(__file__).with_name("slurm")
POINT = ("python3", "-m", "w", "--out", "/ae/out", "a b", "it's", "@box@ $HOME")


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Batch:
    monkeypatch.setenv("AE_LOCAL_PYTHON", "/shared/env/bin/python")
    needs = RuntimeNeeds(
        gpus=GpuRequest(count=2), mounts=(Mount(source=Path("/data/x"), target="/data"),)
    )
    job = make_job(tmp_path / "out", argv=POINT, needs=needs, env={"K": "a,b c"})
    job = replace(job, point=replace(job.point, key="f00"), out=Path("/r/points/.point.tmp"))
    return Batch(
        job=job, folder=Path("/r/points/.slurm/ae-run-point-1"),
        share=Share(gpus=2, kind="h200", cpus=96, memory=0), runtime="none",
        image="/cache/slurm/x.img", image_id="sha256:1234", timeout_s=600, grace_s=10, beat_s=30,
    )  # fmt: skip


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_script(batch: Batch, runtime: str, tmp_path: Path) -> None:
    """`AE_TEST_WRITE=1` writes what is expected anew; look at the difference."""
    text = script(replace(batch, runtime=runtime))
    text = text.replace(str(tmp_path), "/checkout")
    golden = GOLDEN / f"{runtime}.sh"
    if os.environ.get("AE_TEST_WRITE"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_what_slurm_is_always_asked(batch: Batch, runtime: str) -> None:
    asked = asked_in(script(replace(batch, runtime=runtime)))
    for word in (
        "--ntasks=1", "--cpus-per-task=96", "--mem=0", "--time=14", "--gres=gpu:h200:2",
        "--export=NIL", "--signal=B:TERM@60", "--no-requeue", "--exclusive",
        "--job-name=ae-run-point-1",
    ):  # fmt: skip
        assert word in asked
    assert not [word for word in asked if "per-task" in word and "cpus" not in word]


def test_which_scripts_are_of_the_same_point(batch: Batch) -> None:
    """How a job is followed, and what it asks of Slurm, may change while it waits."""
    mine = identity(script(batch))
    assert mine
    assert identity(script(replace(batch, beat_s=1, share=Share(gpus=2, cpus=1, memory=9)))) == mine
    assert identity(script(replace(batch, runtime="podman"))) != mine
    point = replace(batch.job.point, key="f01")
    assert identity(script(replace(batch, job=replace(batch.job, point=point)))) != mine


def test_a_point_without_gpus_asks_for_none(batch: Batch) -> None:
    text = script(replace(batch, share=Share(gpus=0, cpus=1, memory=100, exclusive=False)))
    assert "\n#SBATCH --gres=none\n" in text
    assert "--exclusive" not in text


def test_words_arrive_as_they_are(batch: Batch) -> None:
    """Also those that a shell, or the template, would take for its own."""
    before, words = line(replace(batch, runtime="apptainer"))
    assert before == ""
    argv = shell((*words[words.index("env") :], *POINT))
    said = subprocess.run(
        ["bash", "-c", f"set -- {argv}; printf '%s\\n' \"$@\""],
        capture_output=True, text=True, check=True, env={"CUDA_VISIBLE_DEVICES": "0,1"},
    )  # fmt: skip
    assert said.stdout.splitlines()[-len(POINT) :] == list(POINT)
    assert "K=a,b c" in said.stdout.splitlines()


def test_the_part_of_a_node() -> None:
    node = Found(node="n", cpus=96, memory=1_000_000, kind="h200", count=8, lines=())
    assert node.share(2, None, shared=False) == Share(gpus=2, kind="h200", cpus=96, memory=0)
    assert node.share(2, None, shared=True) == Share(
        gpus=2, kind="h200", cpus=24, memory=225_000, exclusive=False
    )
    assert node.share(0, 2**30, shared=True) == Share(gpus=0, cpus=6, memory=1024, exclusive=False)


def test_what_a_probe_printed() -> None:
    lines = (
        "runtime apptainer apptainer version 1.4.5",
        "runtime pyxis",
        "gpu 0, GPU-a, NVIDIA H200, 143771, 143000, 9.0, 580.65.06",
    )
    node = Found(node="n", cpus=96, memory=2048, kind="", count=8, lines=lines)
    assert node.runtimes == ["pyxis", "apptainer", "none"]
    gpus = node.machine().gpus
    assert [gpu.index for gpu in gpus] == list(range(8))
    assert {(gpu.name, gpu.uuid, gpu.driver) for gpu in gpus} == {("NVIDIA H200", "", "580.65.06")}


def test_the_doctor_speaks_of_the_runtime_that_is_asked_for() -> None:
    lines = ("runtime apptainer apptainer version 1.4.5", "cache /there")
    node = Found(node="n", cpus=96, memory=2048, kind="", count=8, lines=lines)

    def said(runtime: str | None) -> tuple[str, str]:
        (found,) = [one for one in findings(node, {}, runtime) if one.name == "runtime"]
        return found.verdict, found.sentence

    assert said(None) == said("apptainer")
    assert said(None)[0] == "ok"
    assert said("none") == (
        "warn", "apptainer apptainer version 1.4.5: points run as plain processes"
    )  # fmt: skip
    assert said("pyxis") == ("fail", "n has no pyxis (apptainer apptainer version 1.4.5)")


def test_what_a_probe_leaves_is_none_of_git() -> None:
    words = ["git", "check-ignore", "--quiet", "--no-index", "results/slurm/probe.json"]
    assert subprocess.run(words, cwd=Path(__file__).parents[2], check=False).returncode == 0

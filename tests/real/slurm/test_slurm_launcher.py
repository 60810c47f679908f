"""Real `ae run --engine slurm`: launchers that are killed, interrupted and come back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.acting import NAME, ROOT, Launch, make_root
from tests.real.slurm import cluster
from tests.real.slurm.cluster import until

pytestmark = pytest.mark.slurm


@pytest.fixture(autouse=True)
def _cluster(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AE_SLURM_SHARED", "1")
    yield
    until(lambda: not cluster.living(), 10)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "root", disk="1MB")


def launch(root: Path, *words: str) -> Launch:
    image = os.environ.get("AE_TEST_IMAGE")  # of .ci/slurm13.sh
    words += ("--image", image) if image and "--resume" not in words else ()
    argv = ("run", NAME, "--engine", "slurm", "-v", *words)
    return Launch(root, *argv, results=root.parent / "results")


def jobs_of(one: Launch, point: str) -> list[Path]:
    return sorted((one.run_folder() / "points/.slurm").glob(f"*-{point}-*"))


def test_a_launcher_that_was_killed_finds_its_jobs(root: Path) -> None:
    """What ran while nobody watched is taken; nothing is handed in again."""
    one = launch(root, "--set", "acts=print:up|sleep:3|write:result:1")
    one.until("up")
    one.kill()
    assert cluster.living()  # it goes on
    again = launch(root, "--resume")
    code, said = again.end()
    assert code == 0, said
    assert again.words() == {"first": "done", "middle": "done", "last": "done"}
    assert (again.run_folder() / "points/middle/result").read_text() == "1"
    assert (again.run_folder() / "points/middle/stdout.log").read_text() == "up\n"
    for point in ("first", "middle", "last"):
        (job,) = jobs_of(again, point)
        assert (job / "closed").read_text() == "taken\n"
        assert not (job / "out").exists()
    assert [len(list(x.iterdir())) for x in (again.run_folder() / "attempts").iterdir()] == [1]


def test_an_interrupt_cancels_all_jobs(root: Path) -> None:
    one = launch(root, "--set", "acts=print:up|sleep:60")
    one.until("up")
    one.process.send_signal(signal.SIGINT)
    code, said = one.end()
    assert code == 130, said
    assert cluster.living() == []
    assert one.words() == {"first": "done", "middle": "interrupted"}


def test_what_a_killed_launcher_left_can_be_cancelled(root: Path) -> None:
    one = launch(root, "--set", "acts=print:up|sleep:60")
    one.until("up")
    one.kill()
    code, said = Launch(root, "clean", "--dry-run", results=one.results).end()
    assert (code, "would remove job ae-" in said) == (3, True)  # no Docker at DOCKER_HOST to ask
    code, said = Launch(root, "clean", results=one.results).end()
    assert (code, "removed job ae-" in said) == (3, True)
    until(lambda: not cluster.living(), 10)


def test_doctor_shows_the_node(root: Path) -> None:
    code, said = Launch(root, "doctor", "--engine", "slurm", results=root.parent / "results").end()
    assert "a job ran on n" in said
    assert "a job sees the GPUs that it was given, and no others" in said
    assert "NVIDIA H200, 140 GiB" in said
    assert code == 0, said


def test_more_gpus_than_a_node_has(tmp_path: Path) -> None:
    """The ranks of a point are processes of one node: it is no point for two nodes of two GPUs."""
    words = ("run", "rap", "--engine", "slurm", "--experiment", "fig9", "--gpus", "4")
    code, said = Launch(ROOT, *words, results=tmp_path / "results").end()
    assert code == 3, said
    assert "4 GPUs are needed and there are 2 on a node" in said
    assert not cluster.living()

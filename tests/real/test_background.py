"""`ae run --detach`, `ae wait` and `ae cancel` on every engine, each a real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ae.engines import choose
from ae.host import owner
from tests.conftest import BASE_IMAGE
from tests.real.acting import NAME, Launch, gone, make_root

ENGINES = [
    "local",
    pytest.param("docker", marks=pytest.mark.docker),
    pytest.param("podman", marks=pytest.mark.docker),
    pytest.param("slurm", marks=pytest.mark.slurm),
]


class Detached:
    """A checkout whose runs are detached on one engine."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.engine, self.results = engine, folder / "results"
        self.root = make_root(folder / "root", disk="1MB")

    def ae(self, *words: str) -> Launch:
        return Launch(self.root, *words, results=self.results)

    def start(self, acts: str, *words: str) -> str:
        """Detach a run; return its name."""
        wanted = {"local": None, "slurm": os.environ.get("AE_TEST_IMAGE")}  # of .ci/slurm13.sh
        found = wanted.get(self.engine, BASE_IMAGE)
        image = ("--image", found) if found else ()
        asked = ("--engine", self.engine, "--set", f"acts={acts}", *image, *words)
        code, said = self.ae("run", NAME, "--detach", "--no-build", "--json", *asked).end()
        assert code == 0, said
        return str(json.loads(said)["run"])

    def state(self, run: str) -> tuple[str, int]:
        """How `ae runs` lists it: its state, and how many points are done."""
        code, said = self.ae("runs", "--json").end()
        assert code == 0, said
        (about,) = (one for one in json.loads(said) if one["run"] == run)
        return about["state"], about["done"]

    def folder(self, run: str) -> Path:
        return self.results / "runs" / NAME / run

    def words(self, run: str) -> dict[str, str]:
        """How every point ended."""
        paths = self.folder(run).glob("points/[!.]*/status.json")
        return {path.parent.name: json.loads(path.read_text())["status"] for path in paths}

    def launcher(self, run: str) -> dict[str, str]:
        """Whose it is."""
        return owner.from_environment((self.folder(run) / ".lock").read_text())

    def until(self, run: str, word: str) -> None:
        """Wait until the middle point has printed a word."""
        log = self.folder(run) / "points/.middle.tmp/stdout.log"
        assert not gone(lambda: [1] * (not log.is_file() or word not in log.read_text()), 60)

    def left(self, run: str) -> list[str]:
        """What of a run still runs on its engine."""
        return [one.id for one in choose.make(self.engine).leftovers() if one.run == run]


@pytest.fixture(params=ENGINES)
def detached(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Detached]:
    monkeypatch.setenv("AE_LOCAL_PYTHON", sys.executable)
    monkeypatch.setenv("AE_SLURM_SHARED", "1")
    needed = {"docker": "docker_host", "podman": "podman", "slurm": "slurm"}
    if request.param in needed:
        request.getfixturevalue(needed[request.param])
    made = Detached(tmp_path, request.param)
    yield made
    runs = [lock.parent.name for lock in made.results.glob("runs/*/*/.lock")]
    living = [run for run in runs if owner.alive(made.launcher(run))]
    for run in living:  # after a test that failed: the next ones find nothing of it
        made.ae("cancel", run).end()
    assert living == [], "a test has left a launcher"
    assert [run for run in runs if made.left(run)] == []


def test_it_is_waited_for(detached: Detached) -> None:
    """Its exit code is that of the same run in the foreground, its output is there."""
    run = detached.start("print:up|until:go|exit:5")
    detached.until(run, "up")
    assert detached.state(run)[0] == "running"
    waiting = detached.ae("wait", run)
    points = detached.folder(run) / "points"
    for out in (points / ".middle.tmp", *points.glob(".slurm/*-middle-*/out")):
        (out / "go").touch()
    code, said = waiting.end()
    assert code == 4, said
    assert "failed: middle: exit code 5" in said
    assert f"run {run}: failed, 2 of 3 points done" in said
    assert detached.words(run) == {"first": "done", "middle": "failed", "last": "done"}
    assert detached.ae("wait", run).end()[0] == 4  # also of one that is over


def test_it_is_cancelled_and_goes_on_later(detached: Detached) -> None:
    run = detached.start("print:up|until:../../../go")
    detached.until(run, "up")
    waiting = detached.ae("wait", run)
    code, said = detached.ae("cancel", run).end()
    assert code == 0, said
    assert detached.left(run) == []
    assert not owner.alive(detached.launcher(run))
    code, said = waiting.end()
    assert code == 130, said
    assert detached.words(run) == {"first": "done", "middle": "interrupted"}
    assert detached.state(run) == ("stopped", 1)
    log = (detached.folder(run) / "launcher.log").read_text()
    assert f"to run the rest: ae run {run} --resume" in log


def test_what_a_dead_launcher_left_is_cancelled(detached: Detached) -> None:
    """That run's alone. On Slurm it goes on without one; else the watchdog may be the first."""
    run = detached.start("print:up|sleep:600")
    other = detached.start("print:up|sleep:600")
    for one in (run, other):
        detached.until(one, "up")
    os.kill(int(detached.launcher(run)[owner.PID]), signal.SIGKILL)
    assert detached.ae("wait", run).end()[0] == 137
    if detached.engine == "slurm":
        assert detached.left(run)
    code, said = detached.ae("cancel", run).end()
    assert code == 0, said
    assert detached.engine != "slurm" or f"of run {run} (slurm)" in said
    assert detached.left(run) == []
    assert detached.left(other)
    assert detached.state(other)[0] == "running"
    code, said = detached.ae("cancel", other).end()
    assert code == 0, said


def test_one_that_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is resumed alone; a second launcher of it is refused."""
    monkeypatch.setenv("AE_LOCAL_PYTHON", sys.executable)
    one = Detached(tmp_path, "local")
    run = one.start("print:up|sleep:600")
    one.until(run, "up")
    code, said = one.ae("run", NAME, "--engine", "local", "--resume", "--detach").end()
    assert (code, f"run {run} goes on already" in said) == (2, True), said
    assert one.ae("cancel", run).end()[0] == 0
    assert one.ae("wait", run).end()[0] == 130
    recipe = one.root / "recipes" / NAME / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace('"{acts}"', '"print:again", "{acts}"'))
    assert one.start("print:up|sleep:600", "--resume") == run
    code, said = one.ae("wait", run).end()
    assert code == 0, said
    assert one.words(run) == {"first": "done", "middle": "done", "last": "done"}


def test_who_waits_no_longer_is_told_that_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AE_LOCAL_PYTHON", sys.executable)
    one = Detached(tmp_path, "local")
    run = one.start("print:up|sleep:600", "-v")
    waiting = one.ae("wait", run)
    waiting.until("up")
    waiting.process.send_signal(signal.SIGINT)
    code, said = waiting.end()
    assert code == 130
    assert said.splitlines()[-1] == (
        f"interrupted; run {run} goes on: ae wait {run}, ae cancel {run}"
    )
    assert "kept" not in said
    assert one.state(run)[0] == "running"
    assert one.ae("cancel", run).end()[0] == 0


def test_one_that_cannot_start_says_so(tmp_path: Path) -> None:
    """With what the launcher says and its exit code, and no run is left."""
    one = Detached(tmp_path, "nope")
    code, said = one.ae("run", NAME, "--detach", "--engine", "nope").end()
    assert code == 2, said
    assert "'nope'" in said
    assert "Traceback" not in said
    assert list(one.results.glob("runs/*/*")) == []
    code, said = one.ae("run", NAME, "toy", "--detach").end()
    assert (code, "--detach starts one paper's run" in said) == (2, True)


def test_one_in_the_foreground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cancelled from another terminal; nobody has its exit code, so the points say it."""
    monkeypatch.setenv("AE_LOCAL_PYTHON", sys.executable)
    one = Detached(tmp_path, "local")
    words = (
        "run",
        NAME,
        "--engine",
        "local",
        "--no-build",
        "-v",
        "--set",
        "acts=print:up|sleep:600",
    )
    launched = one.ae(*words)
    launched.until("up")
    run = launched.run_folder().name
    waiting = one.ae("wait", run)
    assert one.ae("cancel", run).end()[0] == 0
    assert launched.end()[0] == 130
    assert waiting.end()[0] == 130
    code, said = one.ae("cancel", run).end()
    assert (code, said) == (0, f"nothing of run {run} runs\n")


def test_ctrl_c_before_there_is_a_run_stops_it(tmp_path: Path) -> None:
    one = Detached(tmp_path, "local")
    slow = tmp_path / "bin"
    slow.mkdir()
    (slow / "nvidia-smi").write_text("#!/bin/sh\necho asked >&2\ntouch $0.asked\nsleep 60\n")
    (slow / "nvidia-smi").chmod(0o755)
    path = f"{slow}{os.pathsep}{os.environ['PATH']}"
    words = ("run", NAME, "--engine", "local", "--detach")
    launched = Launch(one.root, *words, results=one.results, PATH=path)
    assert not gone(lambda: [1] * (not (slow / "nvidia-smi.asked").exists()))
    launched.process.send_signal(signal.SIGINT)
    code, said = launched.end()
    assert code == 130, said
    found = subprocess.run(["pgrep", "-f", str(one.results)], capture_output=True, check=False)
    assert found.stdout == b""
    assert list(one.results.glob("runs/*/*")) == []

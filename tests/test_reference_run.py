"""images/airgap/reference_run.sh: two at once on one host, in a real engine that they share."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ae.records.folder import RunStore
from tests.toy import make_checkout

AIRGAP = Path(__file__).resolve().parents[1] / "images/airgap"
SMI = """#!/bin/sh
case $1 in --query-gpu=*) for number in 0 1; do
    echo "$number, GPU-$number, NVIDIA H200, 143771, 143000, 9.0, 580.159"
done ;; esac
"""
TESTS = """import glob, os, pytest
pytestmark = pytest.mark.gpu
def test_in_a_worker(worker_id):
    assert (worker_id != "master", os.environ["AE_OUT"]) == (True, "/ae/out"), "in a container"
    assert glob.glob("/dev/nvidia[0-9]") == ["/dev/nvidia0"]
@pytest.mark.timed
def test_alone(worker_id): assert worker_id == "master"
"""
PASSED = "1 passed, 0 failed, 0 skipped"
pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not Path("/usr/sbin/dockerd").exists(), reason="needs root and Docker"
    ),
]


class Host:
    """A GPU host with a checkout of two papers, `toy` and `twin`, and Docker's programs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.root = folder, folder / "home", folder / "checkout"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        make_checkout(self.root)
        twin = make_checkout(folder / "twin", "twin")
        for part in ("recipes", "images"):
            shutil.copytree(twin / part / "twin", self.root / part / "twin")
        recipe = self.root / "recipes/twin/recipe.yaml"
        recipe.write_text(recipe.read_text().replace("full: 5s", "full: 5m"))  # until it is stopped
        shutil.copytree(AIRGAP, self.root / "images/airgap")
        for file in ("conftest.py", "tests/allowed_skips.txt"):
            (self.root / file).parent.mkdir(exist_ok=True)
            shutil.copy(AIRGAP.parents[1] / file, self.root / file)
        dockerfile = self.root / "images/toy/Dockerfile"  # its Python has no pytest, the base's has
        dockerfile.write_text(dockerfile.read_text().replace("PATH=", "PATH=/opt/ae/bin:", 1))
        (self.root / "images/toy/tests").mkdir()
        (self.root / "images/toy/tests/test_gpus.py").write_text(TESTS)
        (self.home / "site").mkdir(parents=True)
        for program in ("sbin/dockerd", "bin/docker", "bin/docker-registry"):  # as if carried
            (self.home / "usr" / program).parent.mkdir(parents=True, exist_ok=True)
            (self.home / "usr" / program).symlink_to(f"/usr/{program}")
        devices = folder / "dev"
        devices.mkdir()
        for name in ("nvidia0", "nvidia1", "nvidiactl"):
            os.mknod(devices / name, 0o20666, os.makedev(1, 3))  # /dev/null in disguise
        # An engine that the script starts finds the devices in their unusual place, too.
        own = f'case "$*" in *airgap.py\\ start) set -- "$@" --dev {devices} ;; esac'
        for name, text in {
            "python3": f'#!/bin/sh\n{own}\nexec {sys.executable} "$@"\n',
            "nvidia-smi": SMI,
        }.items():
            program = folder / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(text)
            program.chmod(0o755)
        self.environment = os.environ | {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "AE_AIRGAP_HOME": str(self.home),
            "AE_REVISION": "a" * 40,
            "XDG_CACHE_HOME": str(folder / "cache"),
        }

    def start(self, name: str, recipe: str, *words: str) -> subprocess.Popen[bytes]:
        """The script in the background; OUT and its log are called `name`."""
        argv = [str(self.root / "images/airgap/reference_run.sh"), recipe]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                [*argv, str(self.folder / name), *words],
                env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        return self.running[name]

    def until(self, true: Callable[[], bool]) -> None:
        """Wait for something that the scripts do."""
        ends = time.monotonic() + 120
        while not true():
            for name, script in self.running.items():
                assert script.poll() is None, self.log(name)
                assert time.monotonic() < ends, self.log(name)
            time.sleep(0.1)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def airgap(self, *words: str) -> str:
        argv = ["python3", str(self.root / "images/airgap/airgap.py"), *words]
        done = subprocess.run(
            argv, env=self.environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    def stuck(self) -> int:
        """How many of the points `stuck` of `twin` are running."""
        return len(list(self.root.glob("results/runs/twin/*/points/.stuck.tmp/stdout.log")))

    def tested(self, name: str) -> list[str]:
        """What OUT/gpu-tests.txt says of each kind of test."""
        lines = (self.folder / name / "gpu-tests.txt").read_text().splitlines()
        return [line.removeprefix("GPU tests in the image's container, ") for line in lines]

    def packed(self, name: str, recipe: str) -> list[list[str]]:
        """The finished points of every run in OUT/run.tgz."""
        results = self.folder / "unpacked"
        shutil.rmtree(results, ignore_errors=True)
        place = results / "runs" / recipe
        place.mkdir(parents=True)
        with tarfile.open(self.folder / name / "run.tgz") as tar:
            assert not any("/." in member for member in tar.getnames()), "nothing unfinished"
            tar.extractall(place, filter="data")
        runs = RunStore(results).list(recipe)
        return [sorted(status.id for status in run.finished().values()) for run in runs]


@pytest.fixture
def host(docker_host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    for name in ("AE_ROOT", "AE_RESULTS", "AE_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    one = Host(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    one.airgap("registry", "--port", str(port))  # the scripts find it there
    yield one
    for script in one.running.values():
        if script.poll() is None:
            script.terminate()
            script.wait(60)
    one.airgap("stop")


def waits(script: subprocess.Popen[bytes]) -> bool:
    """Whether a script waits for others that use the engine."""
    with suppress(OSError):  # what ends meanwhile
        of = Path(f"/proc/{script.pid}/task/{script.pid}/children").read_text()
        return any(Path(f"/proc/{pid}/comm").read_text() == "flock\n" for pid in of.split())
    return False


def runs_engine(host: Host) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(AIRGAP)
        return importlib.import_module("airgap").daemon_pid(host.home) is not None


def test_two_at_once(host: Host) -> None:
    """The first has started the engine and is through first; the second is never disturbed."""
    words = ["--quick", "--gpus", "device=0", "--experiment", "either", "--experiment", "noop"]
    first = host.start("a", "toy", "--", *words)
    host.until(lambda: "=== engine" in host.log("a"))
    words = ["--repeat", "1", "--gpus", "device=1", "--experiment", "either"]
    second = host.start("b", "twin", "tests=no", "minutes=10", "--", *words, "--experiment=stuck")
    host.until((host.folder / "a/run.tgz").exists)
    host.until(lambda: waits(first))  # it has started the engine
    assert host.packed("a", "toy") == [["either", "noop"]]
    assert host.tested("a") == [f"correct: {PASSED}", f"timed: {PASSED}"]
    host.until(lambda: host.stuck() == 1)

    assert int((host.folder / "b/pid").read_text()) == second.pid
    second.send_signal(signal.SIGUSR1)
    host.until((host.folder / "b/run.tgz").exists)
    assert host.packed("b", "twin") == [["either"]]
    assert host.tested("b") == ["correct: not run by this call", "timed: not run by this call"]
    (host.folder / "b/run.tgz").unlink()
    second.terminate()
    assert second.wait(60) == 128 + signal.SIGTERM, host.log("b")
    assert host.packed("b", "twin") == [["either"]]
    assert first.wait(60) == 0, host.log("a")
    assert not runs_engine(host)
    for recipe, gpu in {"toy": 0, "twin": 1}.items():
        (run,) = RunStore(host.root / "results").list(recipe)
        (given,) = [p.needs.gpus for p in run.record.plan.points if p.id == "either"]
        assert given is not None
        assert [device["index"] for device in given.model_dump()["devices"]] == [gpu]
        assert len(run.record.provenance.about) == 2


def test_an_engine_that_runs_is_left_running(host: Host) -> None:
    """One recipe twice: neither takes the image from under the other, or packs the other's run."""
    host.airgap("start")
    for name in ("either", "noop"):
        words = ("--experiment", name, "--experiment", "stuck")
        host.start(name, "twin", "tests=no", "--", *words)
    host.until(lambda: host.stuck() == 2)
    for name, script in host.running.items():
        script.terminate()
        assert script.wait(60) == 128 + signal.SIGTERM, host.log(name)
        assert host.packed(name, "twin") == [[name]]
    for word in ("built ae/twin:cuda", "twin:cuda pulled", "as another of these scripts"):
        assert sum(word in host.log(name) for name in host.running) == 1, word
    assert runs_engine(host)


def test_one_that_fails_lets_the_others_go_on(host: Host) -> None:
    """It has started the engine, which it stops when the other, that waited for it, is through."""
    first = host.start("a", "toy", "nowhere=/nowhere", "--", "--experiment", "noop")
    host.until(lambda: "=== engine" in host.log("a"))
    second = host.start("b", "toy", "tests=timed", "--", "--quick", "--experiment", "noop")
    assert second.wait(120) == 0, host.log("b")
    assert host.packed("b", "toy") == [["noop"]]
    assert host.tested("b") == ["correct: not run by this call", f"timed: {PASSED}"]
    assert first.wait(60) == 2, host.log("a")
    assert "nowhere" in host.log("a")
    assert not runs_engine(host)


def test_tests_that_fail_are_named(host: Host) -> None:
    """The run is made all the same: what it measured is for a person to judge."""
    words = ("--", "--quick", "--experiment", "noop")  # no GPU is named, and the test wants one
    script = host.start("a", "toy", "tests=correct", *words)
    assert script.wait(120) == 1, host.log("a")
    assert host.packed("a", "toy") == [["noop"]]
    counts = "0 passed, 1 failed, 0 skipped"
    failed = f"correct: {counts}, exit code 1: no number of this run holds"
    assert host.tested("a") == [failed, "timed: not run by this call"]
    assert host.start("b", "toy", "tests=perhaps").wait(60) == 2
    assert "tests=perhaps: yes, no, correct or timed" in host.log("b")

"""What goes wrong while a real `ae run` runs: nothing that was finished is lost, the state is said
as it is, and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ae.engines.docker import DockerEngine
from ae.host import processes
from ae.model import Status
from tests.engines.acts import Lines, make_job
from tests.real.acting import NAME, Launch, ae_resume, ae_run, gone, make_root
from tests.real.machine import OwnDaemon

pytestmark = pytest.mark.docker

MIB = 2**20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "root", disk="1MB")


def left(endpoint: str) -> list[str]:
    """Containers of our recipe on a daemon."""
    argv = ["docker", "--host", endpoint, "ps", "--all", "--quiet"]
    argv += ["--filter", f"label=ae.recipe={NAME}"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True)
    return said.stdout.split()


def first_is_kept(launch: Launch) -> None:
    """The point that was finished before is whole."""
    folder = launch.run_folder() / "points/first"
    assert launch.words()["first"] == "done"
    assert (folder / "stdout.log").read_text() == "first\n"
    assert len((folder / "records.jsonl").read_text().splitlines()) == 1


def watchdogs_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    said = {int(word): Path(f"/proc/{word}/cmdline").read_text() for word in children}
    return [child for child, line in said.items() if "clean" in line.split("\0")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_daemon_stops_in_the_middle(
    own_daemon: OwnDaemon, root: Path, tmp_path: Path, number: signal.Signals
) -> None:
    results = tmp_path / "results"
    host = own_daemon.endpoint
    launch = ae_run(root, results, "print:up|sleep:300", DOCKER_HOST=host)
    launch.until("up")
    own_daemon.stop(number)
    try:
        code, said = launch.end(30)
        assert code == 3
        assert "error: " in said
        assert "Docker daemon" in said
        assert "Traceback" not in said
        first_is_kept(launch)
        assert launch.words() == {"first": "done", "middle": "interrupted"}
        assert "Docker daemon" in launch.statuses()["middle"]["reason"]
        assert (launch.run_folder() / "points/middle/stdout.log").read_text() == "up\n"
    finally:
        own_daemon.start()
    assert len(left(host)) == 1
    code, said = Launch(root, "clean", results=results, DOCKER_HOST=host).end()
    assert (code, left(host)) == (0, []), said
    again = ae_resume(root, results, "print:again", DOCKER_HOST=host)
    code, said = again.end()
    assert code == 0, said
    assert again.words() == {"first": "done", "middle": "done", "last": "done"}
    assert again.statuses()["first"]["attempt"] == 1


@pytest.mark.parametrize("words", [("kill",), ("rm", "--force")])
def test_a_container_that_somebody_kills(
    docker_host: str, root: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    launch = ae_run(root, tmp_path / "results", "write:half:1|print:up|sleep:300")
    launch.until("up")
    (container,) = left(docker_host)
    subprocess.run(["docker", *words, container], check=True, capture_output=True)
    code, said = launch.end()
    assert code == 4, said
    # A killed container is that point's affair; the others go on.
    assert launch.words() == {"first": "done", "middle": "failed", "last": "done"}
    status = launch.statuses()["middle"]
    assert status["exit_code"] == 137
    assert "SIGKILL" in status["reason"] or "somebody else" in status["reason"]
    assert (launch.run_folder() / "points/middle/half").read_text() == "1"
    assert left(docker_host) == []


def test_the_results_fill_their_disk(docker_host: str, root: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "results") as results:
        launch = ae_run(root, results, "fill:100")
        code, said = launch.end()
        assert code == 3, said
        assert "No space left on device" in said
        assert f"ae run {launch.run_folder().name} --resume" in said
        assert launch.words() == {"first": "done", "middle": "interrupted"}
        assert "No space left" in launch.statuses()["middle"]["reason"]
        assert not list((launch.run_folder() / "points").glob(".*"))
        assert "1 of 3 points are done and kept" in said
        first_is_kept(launch)
        assert left(docker_host) == []
        (launch.run_folder() / "points/middle/filler").unlink()
        again = ae_resume(root, results, "print:again")
        code, said = again.end()
        assert code == 0, said
        assert again.words() == {"first": "done", "middle": "done", "last": "done"}


def test_the_log_fills_the_disk(docker_host: str, root: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "results") as results:
        launch = ae_run(root, results, "lines:100|sleep:300")
        code, said = launch.end()  # it does not wait for the workload's own end
        assert code == 3, said[-2000:]
        assert launch.words() == {"first": "done", "middle": "interrupted"}
        log = launch.run_folder() / "points/middle/stdout.log"
        assert log.stat().st_size > 10 * MIB
        first_is_kept(launch)
        assert left(docker_host) == []


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_200_megabytes_of_lines(docker_host: str, tmp_path: Path) -> None:
    """All of them are in the log; the terminal gets few, and the launcher's memory none."""
    root = make_root(tmp_path / "root", disk="300MB")
    launch = ae_run(root, tmp_path / "results", "lines:200", verbose=False)
    peaks = [0]

    def watch() -> None:
        while launch.process.poll() is None:
            try:
                text = Path(f"/proc/{launch.process.pid}/status").read_text()
            except OSError:
                return
            if found := re.search(r"VmHWM:\s+(\d+) kB", text):
                peaks.append(int(found[1]) * 1024)
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    code, said = launch.end(300)
    watcher.join()
    assert code == 0, said[-2000:]
    log = launch.run_folder() / "points/middle/stdout.log"
    assert log.stat().st_size == 200_000_000
    with log.open() as file:
        assert sum(line == "x" * 99 + "\n" for line in file) == 2_000_000
    assert len(said.splitlines()) < 40  # it fits a screen
    assert "x" * 99 not in said
    assert 20 * MIB < max(peaks) < 150 * MIB
    assert launch.words()["middle"] == "done"
    log.unlink()  # the temporary folders of three sessions are kept


def test_binary_noise(docker_host: str, root: Path, tmp_path: Path) -> None:
    launch = ae_run(root, tmp_path / "results", "noise:5|print:|print:after")
    code, said = launch.end()
    assert code == 0
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", said)
    log = (launch.run_folder() / "points/middle/stdout.log").read_text()
    assert log.endswith("\nafter\n")
    assert len(log) > 2 * MIB
    assert launch.words()["middle"] == "done"


@pytest.mark.parametrize("with_reaper", [True, False])
def test_the_launcher_is_killed(
    docker_host: str, root: Path, tmp_path: Path, with_reaper: bool
) -> None:
    results = tmp_path / "results"
    launch = ae_run(root, results, "deaf|print:up|sleep:300")
    launch.until("up")
    (reaper,) = watchdogs_of(launch.process.pid)
    if not with_reaper:
        os.kill(reaper, signal.SIGKILL)
    launch.kill()
    if with_reaper:
        assert gone(lambda: left(docker_host)) == []
        assert gone(lambda: [1] if Path(f"/proc/{reaper}").exists() else []) == []
    else:
        assert len(left(docker_host)) == 1
    code, said = Launch(root, "clean", results=results).end()
    assert code == 0
    assert ("removed container" in said) is not with_reaper
    assert gone(lambda: left(docker_host)) == []
    first_is_kept(launch)
    assert launch.words() == {"first": "done"}  # the middle one has not ended, and nothing says so
    again = ae_resume(root, results, "print:again")
    code, said = again.end()
    assert code == 0, said
    assert again.words() == {"first": "done", "middle": "done", "last": "done"}
    assert again.statuses()["first"]["attempt"] == 1


def test_ten_runs_at_once_each_with_its_own_fate(docker_host: str, tmp_path: Path) -> None:
    calm = make_root(tmp_path / "calm", disk="1MB")
    short = make_root(tmp_path / "short", timeout="30s")
    small = make_root(tmp_path / "small", needs="{memory: {value: 100MB, why: to meet it}}")
    fates = [
        *[(calm, f"print:{number}|write:out:{number}", "done") for number in range(6)],
        (calm, "error:no|exit:3", "failed"),
        (calm, "exit:77", "skipped"),
        (short, "deaf|print:up|sleep:300", "timeout"),
        (small, "eat:1000000000", "oom"),
    ]
    launches = [
        ae_run(root, tmp_path / "results" / str(number), acts)
        for number, (root, acts, _) in enumerate(fates)
    ]
    for number, (launch, (_, _, fate)) in enumerate(zip(launches, fates, strict=True)):
        code, said = launch.end(180)
        assert code == (0 if fate in ("done", "skipped") else 4), said
        assert launch.words() == {"first": "done", "middle": fate, "last": "done"}
        assert launch.statuses()["middle"]["exit_code"] is not None
        first_is_kept(launch)
        point = launch.run_folder() / "points/middle"
        if fate == "done":
            assert (point / "out").read_text() == str(number)
            assert (point / "stdout.log").read_text() == f"{number}\n"
    assert left(docker_host) == []


def test_runs_of_one_recipe_at_once_have_folders_of_their_own(
    docker_host: str, root: Path, tmp_path: Path
) -> None:
    launches = [ae_run(root, tmp_path / "results", f"print:{number}") for number in range(3)]
    assert [launch.end()[0] for launch in launches] == [0, 0, 0]
    runs = sorted((tmp_path / "results/runs" / NAME).iterdir())
    logs = [(run / "points/middle/stdout.log").read_text() for run in runs]
    assert sorted(logs) == ["0\n", "1\n", "2\n"]


def test_a_slow_reader_of_a_fast_writer_loses_nothing(
    docker_host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container has long ended when its last line is read."""

    class Slow(Lines):
        def line(self, stream: str, text: str) -> None:
            time.sleep(0.001)
            super().line(stream, text)

    monkeypatch.setattr(processes, "_DRAIN_S", 0.5)
    engine = DockerEngine()
    lines = Slow()
    outcome = engine.run(make_job(tmp_path, argv=("seq", "3000")), lines, 60)
    engine.close()
    assert outcome.status is Status.DONE
    assert lines.of("stdout") == [str(number) for number in range(1, 3001)]

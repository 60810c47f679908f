"""The same tests over a real Docker Engine and podman: grants, dropped requests, nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ae.commands import machine
from ae.engines import spec
from ae.engines.containers import ContainerEngine
from ae.engines.docker import DockerEngine
from ae.engines.podman import PodmanEngine
from ae.errors import EnvironmentFault
from ae.host import owner
from ae.model import GpuId, GpuRequest, Mount, RuntimeNeeds, Secret, Status, Ulimit
from tests.engines.acts import Lines, make_job

pytestmark = pytest.mark.docker
ROOT = Path(__file__).resolve().parents[2]
Make = Callable[..., ContainerEngine]
NEEDS = RuntimeNeeds(
    cap_add=("SYS_PTRACE",),
    ulimits=(Ulimit(name="nofile", soft=2048, hard=2048),),
    shm_bytes=128 * 2**20,
    memory_bytes=10**9,
)


@pytest.fixture(params=["docker", "podman"])
def make(request: pytest.FixtureRequest) -> Make:
    """The engine's class; the engine is set for children too."""
    request.getfixturevalue("docker_host" if request.param == "docker" else "podman")
    return DockerEngine if request.param == "docker" else PodmanEngine


@pytest.fixture
def engine(make: Make) -> Iterator[ContainerEngine]:
    made = make()
    made.grace_s = 1.0
    yield made
    made.close()


@pytest.fixture
def card(engine: ContainerEngine, request: pytest.FixtureRequest) -> str:
    """The CDI name of a GPU that is none; podman's is one of these tests."""
    return "0" if engine.name == "docker" else str(request.getfixturevalue("gpu"))


def one(name: str) -> GpuRequest:
    """A request for the GPU of that CDI name."""
    known = GpuId(index=int(name)) if name.isdecimal() else GpuId(index=-1, uuid=name)
    return GpuRequest(count=1, devices=(known,))


def sh(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


def containers(engine: ContainerEngine, run: str) -> list[str]:
    return [one.id for one in engine.leftovers() if one.run == run]


def gone(engine: ContainerEngine, run: str) -> bool:
    end = time.monotonic() + 15
    while containers(engine, run) and time.monotonic() < end:
        time.sleep(0.1)
    return containers(engine, run) == []


def test_a_gpu_asked_for_is_a_gpu_inside(
    engine: ContainerEngine, card: str, tmp_path: Path
) -> None:
    """The CDI spec sets a variable: it shows that the request arrived."""
    lines = Lines()
    job = make_job(tmp_path, argv=sh("echo gpu=$AE_FAKE_GPU"), needs=RuntimeNeeds(gpus=one(card)))
    outcome = engine.run(job, lines, 60)
    assert outcome.status is Status.DONE
    assert lines.of("stdout") == [f"gpu={card}"]
    assert outcome.honoured["gpu_route"] == "cdi"
    (asked,) = outcome.honoured["DeviceRequests"]  # type: ignore[misc]
    assert (asked["Driver"], asked["DeviceIDs"]) == ("cdi", [f"nvidia.com/gpu={card}"])
    argv, _ = engine.shell(job.point, tmp_path)
    assert f"nvidia.com/gpu={card}" in argv


def test_a_container_that_several_remove_at_once(engine: ContainerEngine, tmp_path: Path) -> None:
    """As when the watchdog and `ae cancel` meet."""
    job = make_job(tmp_path, "sleep:300", run=tmp_path.name)
    with ThreadPoolExecutor() as pool:
        ran = pool.submit(engine.run, job, Lines(), 60)
        while not (found := [one for one in engine.leftovers() if one.run == tmp_path.name]):
            assert not ran.done()
        (one,) = found
        for removed in [pool.submit(engine.remove, one) for _ in range(8)]:
            removed.result()
        assert gone(engine, tmp_path.name)


def test_a_gpu_that_the_engine_does_not_know(
    engine: ContainerEngine, card: str, tmp_path: Path
) -> None:
    needs = RuntimeNeeds(gpus=one("7" if card.isdecimal() else "no-such"))
    with pytest.raises(EnvironmentFault, match=r"no CDI device nvidia\.com/gpu=(7|no-such)"):
        engine.run(make_job(tmp_path, "write:ran:1", needs=needs), Lines(), 60)
    assert not (tmp_path / "ran").exists()


def test_dropped_requests_stop_the_run(
    make: Make, card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for less than the point needs, as an engine that drops it would do."""
    whole = spec.to_argv
    pairs = {"--device", "--cap-add", "--shm-size", "--memory", "--memory-swap", "--user",
             "--init-path", "--cap-drop", "--security-opt", "--pids-limit", "--tmpfs"}  # fmt: skip
    lesser = {"nofile=2048:2048": "nofile=1024:1024"}

    def without(*given: object) -> Sequence[str]:
        argv = whole(*given)  # type: ignore[arg-type]
        kept = []
        for before, word in zip(("", *argv), argv, strict=False):
            if before not in pairs and word not in {*pairs, "--init", "--read-only"}:
                kept.append(lesser.get(word, word).removesuffix(",readonly"))
        return tuple(kept)

    monkeypatch.setattr(spec, "to_argv", without)
    mounts = (Mount(source=tmp_path, target="/data"),)
    needs = replace(NEEDS, gpus=one(card), mounts=mounts)
    job = make_job(tmp_path / "out", "write:ran:1", needs=needs, run="dropped")
    engine = make()
    engine.caller = "12345:12346"
    with pytest.raises(EnvironmentFault, match="dropped what the point needs") as caught:
        engine.run(job, Lines(), 60)
    said = caught.value.message
    for words in (
        f"GPUs (nvidia.com/gpu={card})", "capability SYS_PTRACE", "ulimit nofile", "CapDrop",
        "no-new-privileges", "Init True", "ReadonlyRootfs True", "PidsLimit", "tmpfs /tmp",
        "ShmSize 134217728", "Memory 1000000000", "user ", "mount /data (read-only)",
    ):  # fmt: skip
        assert words in said
    assert caught.value.fix
    assert not (tmp_path / "out/ran").exists()
    assert containers(engine, "dropped") == []
    engine.close()


def test_every_need_is_granted_and_nothing_else(
    engine: ContainerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://user:word@proxy:1")
    script = (
        "ulimit -n; df -B1 --output=size /dev/shm | tail -1; grep CapEff /proc/self/status;"
        "ls /sys/class/net; env | grep -ci proxy; echo gpu=$AE_FAKE_GPU"
    )
    lines = Lines()
    engine.run(make_job(tmp_path, argv=sh(script), needs=NEEDS), lines, 60)
    files, shm, capabilities, network, proxies, gpu = lines.of("stdout")
    assert files == "2048"
    assert int(shm) == 128 * 2**20
    assert int(capabilities.split()[1], 16) == 1 << 19  # CAP_SYS_PTRACE
    assert (network, proxies, gpu) == ("lo", "0", "gpu=")


def test_an_oom_kill_is_not_a_mere_137(
    engine: ContainerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    needs = RuntimeNeeds(memory_bytes=100 * 2**20)
    outcome = engine.run(make_job(tmp_path, f"eat:{10**9}", needs=needs), Lines(), 60)
    assert (outcome.status, outcome.exit_code) == (Status.OOM, 137)
    assert not (tmp_path / "oom").exists()  # which podman's monitor leaves where it works
    outcome = engine.run(make_job(tmp_path, "signal:9"), Lines(), 60)
    assert (outcome.status, outcome.exit_code) == (Status.FAILED, 137)
    assert "SIGKILL" in outcome.reason


def test_much_output_arrives_whole(engine: ContainerEngine, tmp_path: Path) -> None:
    lines = Lines()
    outcome = engine.run(make_job(tmp_path, argv=("seq", "200000")), lines, 60)
    assert outcome.status is Status.DONE
    assert lines.of("stdout") == [str(number) for number in range(1, 200001)]


def test_the_client_is_killed(engine: ContainerEngine, tmp_path: Path) -> None:
    class Killing(Lines):
        def line(self, stream: str, text: str) -> None:
            found = subprocess.run(
                ["pgrep", "--parent", str(os.getpid()), "--full", "start --attach"],
                capture_output=True,
                text=True,
                check=True,
            )
            os.kill(int(found.stdout), signal.SIGKILL)

    job = make_job(tmp_path, "print:up", "sleep:60", run="client")
    with pytest.raises(EnvironmentFault, match="ended while the container"):
        engine.run(job, Killing(), 60)
    assert containers(engine, "client") == []


LAUNCHER = """
import os, sys
from pathlib import Path
from ae.host import signals
from ae.engines.docker import DockerEngine
from ae.engines.podman import PodmanEngine
from ae.host.processes import watched
from tests.engines.acts import Lines, make_job
class Telling(Lines):
    def line(self, stream, text): print(text, flush=True)
with signals.handled(), watched(sys.argv[2]):
    job = make_job(Path(sys.argv[1]), "deaf", "print:up", "sleep:300", run=sys.argv[2])
    engine = {name}Engine()
    engine.grace_s = 0.5
    engine.run(job, Telling(), 300)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_dead_launcher_leaves_nothing(
    engine: ContainerEngine, tmp_path: Path, number: signal.Signals
) -> None:
    run = f"dead-{number.name}-{os.getpid()}"
    launcher = subprocess.Popen(
        [sys.executable, "-c", code(engine), str(tmp_path), run],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline().strip() == "up"
    assert len(containers(engine, run)) == 1
    launcher.send_signal(number)
    launcher.wait(30)
    launcher.stdout.close()
    assert gone(engine, run)


def code(engine: ContainerEngine) -> str:
    return LAUNCHER.replace("{name}", engine.name.capitalize())


def test_killed_during_creation_leaves_nothing(engine: ContainerEngine, tmp_path: Path) -> None:
    """The launcher dies when it has told the client to create, and the client goes on."""
    torn = code(engine).replace(
        "with signals",
        "from ae.host import processes; real = processes.subprocess.Popen\n"
        "def torn(words, **options):\n"
        "    child = real(words, **options)\n"
        "    if 'create' in words: os.kill(os.getpid(), 9)\n"
        "    return child\n"
        "processes.subprocess.Popen = torn\n"
        "with signals",
    )
    run = f"torn-{os.getpid()}"
    launcher = subprocess.run(
        [sys.executable, "-c", torn, str(tmp_path), run],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert launcher.returncode == -signal.SIGKILL
    time.sleep(1.5)  # it comes up only now
    assert gone(engine, run)


def test_clean_removes_orphans_and_nothing_else(engine: ContainerEngine) -> None:
    living = owner.stamp({owner.RUN: "living", owner.RECIPE: "contract"})
    dead = living | {owner.RUN: "dead", owner.STARTED: "another-boot-1"}
    elsewhere = living | {owner.RUN: "elsewhere", owner.HOST: "another-host", owner.PID: "1"}
    made = []
    for labels in (living, dead, elsewhere, {"not": "ours"}):
        words = [word for key, value in labels.items() for word in ("--label", f"{key}={value}")]
        made.append(engine.do("create", *words, "ae/base:cpu", "true").strip())
    try:
        listed = machine.clean_engines([engine], dry_run=True)
        assert [one.id for one in listed if one.id in made] == [made[1]]
        removed = machine.clean_engines([engine], dry_run=False)
        assert made[1] in [one.id for one in removed]
        left = engine.do("ps", "--all", "--quiet", "--no-trunc").split()
        assert set(left) & set(made) == {made[0], made[2], made[3]}
    finally:
        engine.call("rm", "--force", *made)


def test_a_shell_is_a_run(
    engine: ContainerEngine, card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the point's container, with its GPU, its home and its outputs."""
    point = make_job(tmp_path, "print:x", needs=RuntimeNeeds(gpus=one(card))).point
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        assert {"--interactive", "--tty"} <= set(engine.shell(point, tmp_path)[0])
    argv, environment = engine.shell(point, tmp_path)
    assert "--tty" not in argv
    words = "echo gpu=$AE_FAKE_GPU home=$HOME; touch $AE_OUT/x"
    done = subprocess.run(
        argv, env=environment, input=words, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"gpu={card} home=/ae/home\n"
    assert (tmp_path / "x").exists()


@pytest.mark.parametrize("user", ["", "12345:12346"])
def test_a_secret_can_be_read_by_the_user_inside_and_written_by_nobody(
    make: Make, tmp_path: Path, user: str
) -> None:
    licence, target = tmp_path / "licence", "/run/secrets/gurobi.lic"
    licence.write_text("TOKEN")
    licence.chmod(0o600)
    caller = f"{os.getuid()}:{os.getgid()}"
    os.chown(licence, *(int(word) for word in (user or caller).split(":")))
    needs = RuntimeNeeds(secrets=(Secret(name="gurobi", target=target),))
    script = f"cat {target}; echo; stat -c %a {target}; id -u; echo more >>{target}"
    lines = Lines()
    job = make_job(tmp_path / "out", argv=sh(script), needs=needs)
    job.secrets["gurobi"] = licence  # type: ignore[index]
    engine = make()
    engine.caller = user or caller
    outcome = engine.run(job, lines, 60)
    engine.close()
    assert lines.of("stdout") == ["TOKEN", "600", (user or caller).partition(":")[0]]
    assert outcome.status is Status.FAILED
    assert "Read-only file system" in outcome.reason or "Permission denied" in outcome.reason

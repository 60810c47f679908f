"""What only a real podman can show: grants, dropped requests, images, and nothing left behind."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ae.commands import clean
from ae.engines import podman as podman_module
from ae.engines.docker import DockerEngine
from ae.engines.podman import PodmanEngine
from ae.engines.spec import to_argv
from ae.errors import EnvironmentFault
from ae.host import owner
from ae.images import content as images
from ae.images import lockfile
from ae.images.content import BuildOptions
from ae.images.registry import push
from ae.model import Flavour, GpuId, GpuRequest, ImageRef, Mount, RuntimeNeeds, Status, Ulimit
from tests.engines.acts import Lines, make_job
from tests.servers.registry import registry

pytestmark = pytest.mark.docker
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def engine(podman: dict[str, str]) -> PodmanEngine:
    return PodmanEngine(grace_s=1.0)


def sh(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


def one(name: str) -> GpuRequest:
    """A request for the GPU that the CDI spec knows by this name alone."""
    return GpuRequest(count=1, devices=(GpuId(index=-1, uuid=name),))


def containers(engine: PodmanEngine, run: str) -> list[str]:
    return [one.id for one in engine.leftovers() if one.run == run]


def gone(engine: PodmanEngine, run: str) -> bool:
    end = time.monotonic() + 15
    while containers(engine, run) and time.monotonic() < end:
        time.sleep(0.1)
    return containers(engine, run) == []


def test_a_gpu_asked_for_is_a_gpu_inside(engine: PodmanEngine, gpu: str, tmp_path: Path) -> None:
    assert engine.supports(Flavour.CUDA).ok
    lines = Lines()
    needs = RuntimeNeeds(gpus=one(gpu))
    job = make_job(tmp_path, argv=sh("echo gpu=$AE_FAKE_GPU"), needs=needs)
    outcome = engine.run(job, lines, 60)
    assert outcome.status is Status.DONE
    assert lines.of("stdout") == [f"gpu={gpu}"]
    assert outcome.honoured["DeviceRequests"] == [
        {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={gpu}"]}
    ]
    argv, _ = engine.shell(job.point, tmp_path)
    assert f"nvidia.com/gpu={gpu}" in argv


def test_a_gpu_that_podman_does_not_know(engine: PodmanEngine, gpu: str, tmp_path: Path) -> None:
    needs = RuntimeNeeds(gpus=one("no-such"))
    job = make_job(tmp_path, "write:ran:1", needs=needs)
    with pytest.raises(EnvironmentFault, match=r"no CDI device nvidia\.com/gpu=no-such"):
        engine.run(job, Lines(), 60)
    # A spec that has gone since podman was asked: podman itself refuses, before anything runs.
    engine.cdi_devices["nvidia.com/gpu=no-such"] = frozenset({"/dev/null"})
    with pytest.raises(EnvironmentFault, match="podman refused") as caught:
        engine.run(job, Lines(), 60)
    assert "nvidia-ctk" in caught.value.fix
    assert not (tmp_path / "ran").exists()


def test_dropped_requests_stop_the_run(
    engine: PodmanEngine, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """podman is asked for less than the point needs, as one that drops it would do."""
    pairs = {"--device", "--cap-add", "--shm-size", "--memory", "--memory-swap", "--user"}
    pairs.add("--init-path")
    pairs |= {"--cap-drop", "--security-opt", "--pids-limit", "--tmpfs"}
    lesser = {"nofile=2048:2048": "nofile=1024:1024"}

    def without(*given: object) -> Sequence[str]:
        whole = to_argv(*given)  # type: ignore[arg-type]
        kept = []
        for before, word in zip(("", *whole), whole, strict=False):
            if before not in pairs and word not in {*pairs, "--init", "--read-only"}:
                kept.append(lesser.get(word, word).removesuffix(",readonly"))
        return kept

    monkeypatch.setattr(podman_module, "to_argv", without)
    needs = RuntimeNeeds(
        gpus=one(gpu),
        cap_add=("SYS_ADMIN",),
        ulimits=(Ulimit(name="nofile", soft=2048, hard=2048),),
        shm_bytes=128 * 2**20,
        memory_bytes=10**9,
        mounts=(Mount(source=tmp_path, target="/data"),),
    )
    job = make_job(tmp_path / "out", "write:ran:1", needs=needs, run="dropped")
    engine = PodmanEngine(user="12345:12346")
    with pytest.raises(EnvironmentFault, match="dropped what the point needs") as caught:
        engine.run(job, Lines(), 60)
    said = caught.value.message
    for words in (
        f"GPUs (nvidia.com/gpu={gpu})",
        "capability SYS_ADMIN",
        "ulimit nofile",
        "no-new-privileges",
        "Init True",
        "CapDrop",
        "ReadonlyRootfs True",
        "PidsLimit",
        "tmpfs /tmp",
        "ShmSize 134217728",
        "Memory 1000000000",
        "user 12345:12346",
        "mount /data (read-only)",
    ):
        assert words in said
    assert caught.value.fix
    assert not (tmp_path / "out/ran").exists()
    assert containers(engine, "dropped") == []


def test_every_need_is_granted_and_nothing_else(
    engine: PodmanEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://user:word@proxy:1")
    needs = RuntimeNeeds(
        cap_add=("SYS_PTRACE",),
        ulimits=(Ulimit(name="nofile", soft=2048, hard=2048),),
        shm_bytes=128 * 2**20,
        memory_bytes=10**9,
    )
    script = (
        "ulimit -n; df -B1 --output=size /dev/shm | tail -1; grep CapEff /proc/self/status;"
        "ls /sys/class/net; env | grep -ci proxy"
    )
    lines = Lines()
    engine.run(make_job(tmp_path, argv=sh(script), needs=needs), lines, 60)
    files, shm, capabilities, network, proxies = lines.of("stdout")
    assert files == "2048"
    assert int(shm) == 128 * 2**20
    assert int(capabilities.split()[1], 16) & (1 << 19)  # CAP_SYS_PTRACE
    assert (network, proxies) == ("lo", "0")


def test_an_oom_kill_is_not_a_mere_137(
    engine: PodmanEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    needs = RuntimeNeeds(memory_bytes=100 * 2**20)
    outcome = engine.run(make_job(tmp_path, f"eat:{10**9}", needs=needs), Lines(), 60)
    assert (outcome.status, outcome.exit_code) == (Status.OOM, 137)
    assert not (tmp_path / "oom").exists()  # which podman's monitor leaves where it works
    outcome = engine.run(make_job(tmp_path, "signal:9"), Lines(), 60)
    assert (outcome.status, outcome.exit_code) == (Status.FAILED, 137)
    assert "SIGKILL" in outcome.reason


def test_a_limit_above_what_may_be_given(engine: PodmanEngine, tmp_path: Path) -> None:
    """A fault where the caller may not raise limits; where he may, the limit is there."""
    needs = RuntimeNeeds(ulimits=(Ulimit(name="memlock", soft=2**50, hard=2**50),))
    lines = Lines()
    job = make_job(tmp_path, argv=sh("ulimit -l"), needs=needs, run="limits")
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    if hard == resource.RLIM_INFINITY or may_raise_limits():
        engine.run(job, lines, 60)
        assert lines.of("stdout") == [str(2**40)]
    else:
        with pytest.raises(EnvironmentFault, match="rlimit"):
            engine.run(job, lines, 60)
        assert lines.got == []
    assert containers(engine, "limits") == []


def may_raise_limits() -> bool:
    status = Path("/proc/self/status").read_text()
    capabilities = next(line for line in status.splitlines() if line.startswith("CapEff"))
    return bool(int(capabilities.split()[1], 16) & (1 << 24))  # CAP_SYS_RESOURCE


def test_much_output_arrives_whole(engine: PodmanEngine, tmp_path: Path) -> None:
    lines = Lines()
    outcome = engine.run(make_job(tmp_path, argv=("seq", "200000")), lines, 60)
    assert outcome.status is Status.DONE
    assert lines.of("stdout") == [str(number) for number in range(1, 200001)]


def test_the_client_is_killed(engine: PodmanEngine, tmp_path: Path) -> None:
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
from ae.engines.podman import PodmanEngine
from ae.host.watchdog import watched
from ae.images.registry import push
from tests.engines.acts import Lines, make_job
from tests.servers.registry import registry
class Telling(Lines):
    def line(self, stream, text): print(text, flush=True)
with signals.handled(), watched(sys.argv[2]):
    job = make_job(Path(sys.argv[1]), "deaf", "print:up", "sleep:300", run=sys.argv[2])
    PodmanEngine(grace_s=0.5).run(job, Telling(), 300)
"""


def test_a_dead_launcher_leaves_nothing(engine: PodmanEngine, tmp_path: Path) -> None:
    run = f"dead-{os.getpid()}"
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path), run],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline().strip() == "up"
    assert len(containers(engine, run)) == 1
    launcher.kill()
    launcher.wait(30)
    launcher.stdout.close()
    assert gone(engine, run)


def test_killed_during_creation_leaves_nothing(engine: PodmanEngine, tmp_path: Path) -> None:
    """The launcher dies when it has told podman to create, and podman goes on."""
    code = LAUNCHER.replace(
        "with signals",
        "from ae.host import processes; real = processes.subprocess.Popen\n"
        "def torn(words, **options):\n"
        "    child = real(words, **options)\n"
        "    if 'create' in words: os.kill(os.getpid(), 9)\n"
        "    return child\n"
        "processes.subprocess.Popen = torn\n"
        "with signals",
    )
    launcher = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), "torn"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert launcher.returncode == -signal.SIGKILL
    time.sleep(1.5)  # it comes up only now
    assert gone(engine, "torn")


def test_clean_removes_orphans_and_nothing_else(
    engine: PodmanEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    living = owner.stamp({owner.RUN: "living", owner.RECIPE: "contract"})
    dead = living | {owner.RUN: "dead", owner.STARTED: "another-boot-1"}
    made = []
    for labels in (living, dead, {"not": "ours"}):
        words = [word for key, value in labels.items() for word in ("--label", f"{key}={value}")]
        made.append(engine.do("create", *words, "ae/base:cpu", "true").strip())
    try:
        listed = clean.clean_engines([engine], dry_run=True)
        assert [one.id for one in listed] == [made[1]]
        clean.clean_engines([engine], dry_run=False)
        left = engine.do("ps", "--all", "--quiet", "--no-trunc").split()
        assert set(left) & set(made) == {made[0], made[2]}
    finally:
        engine.call("rm", "--force", *made)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageRef:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "root/images/tiny"
    folder.mkdir(parents=True)
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY tiny/file /file\n")
    (folder / "file").write_text(secrets.token_hex(8))  # no step comes from a cache
    return images.image_ref(tmp_path / "root", "tiny", Flavour.CPU)


def options() -> BuildOptions:
    return BuildOptions(base_image="ae/base:cpu", network="host")


def test_an_image_that_docker_saved_is_loaded_by_hand(
    engine: PodmanEngine, docker_host: str, tiny: ImageRef, tmp_path: Path
) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        engine.prepare(tiny, Lines())
    assert "docker save IMAGE | podman load" in caught.value.fix
    docker = DockerEngine(build=options())
    docker.prepare(tiny, Lines())
    archive = str(tmp_path / "image.tar")
    try:
        saved = [images.find_client(docker_host), "save", "--output", archive, tiny.reference]
        subprocess.run(saved, check=True, capture_output=True)
        engine.do("load", "--input", archive)
        assert engine.has_image(tiny)
        (tiny.source / "file").write_text("two")
        assert not engine.has_image(images.image_ref(tmp_path / "root", "tiny", Flavour.CPU))
    finally:
        docker.daemon.client.remove_image(tiny.reference, force=True)
        docker.close()
        engine.call("rmi", "--force", f"localhost/{tiny.reference}", f"docker.io/{tiny.reference}")


def test_the_locked_image_is_pulled_by_digest(
    engine: PodmanEngine,
    docker_host: str,
    tiny: ImageRef,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, image = tmp_path / "root", tiny
    docker = DockerEngine(build=options())
    docker.prepare(image, Lines())
    with registry(tmp_path / "registry") as store:
        try:
            entry = push(docker.daemon, image, store.name, Lines())
        finally:
            docker.daemon.client.remove_image(image.reference, force=True)
            docker.close()
        monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
        monkeypatch.setenv("AE_REGISTRY", store.name)
        lockfile.store(root, "tiny", Flavour.CPU, entry)
        assert not engine.has_image(image)
        engine.prepare(image, Lines())
        assert engine.has_image(image)
        found = engine.inspect("image", f"localhost/{image.reference}")
        assert found is not None
        assert found["Id"] == entry.image_id
        engine.do("rmi", "--force", entry.image_id.removeprefix("sha256:"))
        missing = entry.model_copy(update={"digest": "sha256:" + "0" * 64})
        lockfile.store(root, "tiny", Flavour.CPU, missing)
        with pytest.raises(EnvironmentFault, match="pulling "):
            engine.prepare(image, Lines())


def test_the_lines_to_type_do_the_same(engine: PodmanEngine, tmp_path: Path) -> None:
    job = make_job(tmp_path, "print:same", "write:result:1")
    argv, environment = engine.shell(job.point, tmp_path)
    words = "echo home=$HOME; touch $AE_OUT/x"
    done = subprocess.run(
        argv, env=environment, input=words, capture_output=True, text=True, check=True
    )
    assert done.stdout == "home=/ae/home\n"
    assert (tmp_path / "x").exists()
    line = engine.equivalent(job)
    assert line[:2] == ("podman", "run")
    # What a plain `podman run` needs besides depends on the machine's limits.
    limited = [*line[:2], *argv[argv.index("--ulimit") : argv.index("--http-proxy=false")]]
    limited += line[2:]
    done = subprocess.run(limited, capture_output=True, text=True, check=True)
    assert done.stdout == "same\n"
    assert (tmp_path / "result").stat().st_uid == os.getuid()
